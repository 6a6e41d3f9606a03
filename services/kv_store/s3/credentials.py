"""The keys of the object store: from the environment or from a file, never from the settings.

Environment: ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY`` (with ``AWS_SESSION_TOKEN`` where there is
one), ``MINIO_ACCESS_KEY`` and ``MINIO_SECRET_KEY``, or ``MINIO_ROOT_USER`` and ``MINIO_ROOT_PASSWORD``; the
first complete pair counts.

File, read again whenever it changes (secrets are rotated):
    {"access_key": "…", "secret_key": "…", "session_token": "…"}       JSON, the token is optional
    [default] aws_access_key_id = … aws_secret_access_key = …           as the AWS tools write it
    <directory>/access-key, <directory>/secret-key                      a mounted Kubernetes secret
"""

from __future__ import annotations

import json
import os
from configparser import Error as IniError
from pathlib import Path

from minio.credentials.credentials import Credentials
from minio.credentials.providers import AWSConfigProvider, EnvAWSProvider, EnvMinioProvider, Provider

from shared.errors import FailedPrecondition

ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MINIO_ACCESS_KEY",
    "MINIO_SECRET_KEY",
    "MINIO_ROOT_USER",
    "MINIO_ROOT_PASSWORD",
)
WHERE = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or objects.credentials_file"
_Stamp = tuple[tuple[int, int, int], ...]


def credentials_from(credentials_file: str) -> Provider:
    """The file's if one is named, else the environment's."""
    return FileCredentials(Path(credentials_file)) if credentials_file else EnvironmentCredentials()


class EnvironmentCredentials(Provider):
    """
    Raises (``retrieve``):
        FailedPrecondition: no complete pair of keys; says what to set.
    """

    def retrieve(self) -> Credentials:
        for provider in (EnvAWSProvider(), EnvMinioProvider(), _RootCredentials()):
            try:
                return provider.retrieve()
            except ValueError:  # an empty key
                continue
        raise FailedPrecondition(f"the object store has no credentials: set {WHERE}")


class FileCredentials(Provider):
    """Thread-safe: the worst that two threads do is to read the file twice.

    Raises (``retrieve``):
        FailedPrecondition: the file is not there or not of a known form.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[_Stamp, Credentials] | None = None

    def retrieve(self) -> Credentials:
        try:
            stamp = self._stamp()
            if self._known is None or self._known[0] != stamp:
                self._known = stamp, self._read()
            return self._known[1]
        # the message would hold what stands in the file
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            IniError,
        ):
            raise FailedPrecondition(
                "objects.credentials_file: cannot be read as JSON with access_key and secret_key, as "
                "an AWS credentials file, "
                "or as a directory with the files access-key and secret-key"
            ) from None

    def _stamp(self) -> _Stamp:
        paths = (self._access_key, self._secret_key) if self._path.is_dir() else (self._path,)
        return tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in map(os.stat, paths))

    def _read(self) -> Credentials:
        if self._path.is_dir():
            return Credentials(self._access_key.read_text().strip(), self._secret_key.read_text().strip())
        text = self._path.read_text(encoding="utf-8")
        if not text.lstrip().startswith("{"):
            return AWSConfigProvider(str(self._path)).retrieve()
        fields = json.loads(text)
        return Credentials(fields["access_key"], fields["secret_key"], fields.get("session_token"))

    @property
    def _access_key(self) -> Path:
        return self._path / "access-key"

    @property
    def _secret_key(self) -> Path:
        return self._path / "secret-key"


class _RootCredentials(Provider):
    def retrieve(self) -> Credentials:
        return Credentials(os.environ.get("MINIO_ROOT_USER", ""), os.environ.get("MINIO_ROOT_PASSWORD", ""))
