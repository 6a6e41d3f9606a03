"""Settings of the object store: where it is and how to talk to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.config import check_above_zero, check_least

_ENDPOINT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?)?")
_KMS_KEY = re.compile(r"[A-Za-z0-9:/_-]{0,2048}")
_SMALLEST_PART = 5 << 20  # S3's own limit


@dataclass(frozen=True, slots=True)
class ObjectSettings:
    """Keys are never among the settings: they come from the environment or from ``credentials_file``
    (``services.kv_store.s3.credentials``).

    endpoint: host or host:port of an S3-compatible server; empty means that there is no object store.
    bucket, region: giving the right region saves asking for it.
    prefix: of all names in the bucket, so that several systems can share one.
    secure: TLS; ca_file: PEM file of the authority that signed the server's certificate, empty for the usual
    ones.
    credentials_file: JSON with access_key and secret_key, an AWS credentials file, or a directory with the
        files access-key and secret-key; read again whenever it changes.
    create_bucket: whether a missing bucket may be created.
    connections: how many requests are under way at the same time without opening connections anew.
    connect_timeout_s, read_timeout_s: a server that does not answer, or sends nothing, for so long has
    failed.
    retry_s: how long a call is repeated when the server fails or is overloaded.
    encryption: at rest, asked for with every object that is written. `kms`: SSE-KMS, by kms_key_id (empty:
        the bucket's own key); `s3`: SSE-S3; empty: as the bucket says by itself.
    kms_key_id: id, alias or ARN of the key; only with `kms`.
    part_bytes: larger objects are sent in parts of this size, several at once.
    """

    endpoint: str = ""
    bucket: str = "kvquilt"
    region: str = "us-east-1"
    prefix: str = ""
    secure: bool = True
    ca_file: str = ""
    credentials_file: str = ""
    create_bucket: bool = True
    connections: int = 16
    connect_timeout_s: float = 3.0
    read_timeout_s: float = 10.0
    retry_s: float = 10.0
    encryption: Literal["", "kms", "s3"] = ""
    kms_key_id: str = ""
    part_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.endpoint and not _ENDPOINT.fullmatch(self.endpoint):
            raise ValueError(
                f"endpoint: must be host or host:port (say `secure` for https or http), got {self.endpoint!r}"
            )
        if not _BUCKET.fullmatch(self.bucket):
            raise ValueError(
                f"bucket: 3 to 63 lower-case letters, digits, dots and hyphens, got {self.bucket!r}"
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f"prefix: letters, digits, '.', '_', '-', in parts separated by '/', got {self.prefix!r}"
            )
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.region):
            raise ValueError(f"region: letters, digits, '_' and '-', got {self.region!r}")
        if self.ca_file and not self.secure:
            raise ValueError("ca_file: only with secure")
        for name in ("ca_file", "credentials_file"):
            if getattr(self, name) and not Path(getattr(self, name)).is_absolute():
                raise ValueError(f"{name}: must be an absolute path, got {getattr(self, name)!r}")
        if self.kms_key_id and self.encryption != "kms":
            raise ValueError("kms_key_id: only with encryption: kms")
        if not _KMS_KEY.fullmatch(self.kms_key_id):
            raise ValueError(f"kms_key_id: must be an id, alias or ARN of a key, got {self.kms_key_id!r}")
        if self.encryption == "kms" and not self.secure:
            raise ValueError("encryption: kms only with secure, for servers refuse it without TLS")
        check_above_zero(self, "connect_timeout_s", "read_timeout_s")
        check_least(self, 0, "retry_s")
        check_least(self, 1, "connections")
        check_least(self, _SMALLEST_PART, "part_bytes")
