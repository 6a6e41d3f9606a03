"""Documents below a prefix of a bucket: what `kvquilt sync s3://BUCKET/PREFIX` finds.

What an object holds is read every time, and compared by its hash as files are: an ETag says nothing about the
settings a document was cut by, and is no hash of objects that were sent in parts or are encrypted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.cli.readers_file import READERS_FILE, UNSAID, Access, ReadersFile, ReadersRules
from cluster.cli.sources import Sources, hidden, named, nothing_in, unfit
from services.kv_store.blobs.protocol import Blobs, list_all
from services.kv_store.s3.bucket import ObjectBlobs
from services.kv_store.s3.settings import ObjectSettings
from shared.config import load, read_yaml
from shared.errors import ConfigError, InvalidRequest, KvquiltError, NotFound, UnreadableDocument

SCHEME = "s3://"
_URL = re.compile(r"((?P<scheme>https?)://)?(?P<host>[^/?#@\s]+)/?")
_AMAZON = "https://s3.amazonaws.com"
# the object store's client names settings of the system's own bucket
_IN_THESE_WORDS = (
    ("objects.bucket: there is no such bucket; create it, or set objects.create_bucket", "no such bucket"),
    ("to keys that may list, read, write and delete in objects.bucket", "to keys that may list and read it"),
    ("objects.endpoint, objects.secure: what answers there", "--endpoint: what answers there"),
    ("objects.secure: the object store does not speak TLS", "--endpoint: does not speak TLS; say http://"),
    ("objects.region: ", "AWS_REGION, or region in --config: "),
    ("objects.credentials_file", "credentials_file in --config"),
    ("objects.ca_file: ", "ca_file in --config, or SSL_CERT_FILE: "),
    ("objects.bucket: ", ""),
)


@dataclass(frozen=True, slots=True)
class SourceObject:
    document_id: str
    source: str
    num_bytes: int
    _key: str
    _prefix: ObjectPrefix
    access: Access = UNSAID

    def read(self) -> bytes:
        return self._prefix.read(self._key)


class ObjectPrefix:
    """The objects whose keys begin with ``prefix``, a folder's name: it ends with a slash unless it is empty.
    Documents remember server, bucket and prefix, or ``label`` (``Folder``)."""

    def __init__(self, blobs: Blobs, endpoint: str, bucket: str, prefix: str, label: str = "") -> None:
        """
        Raises:
            InvalidRequest: ``label`` is no name.
        """
        self._blobs = blobs
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._where = f"{SCHEME}{bucket}/{self._prefix}"
        self._paths: frozenset[str] = frozenset()
        self.name, self.id_prefix = named(f"{SCHEME}{endpoint}/{bucket}/{self._prefix}", label)

    def find(self) -> Sources[SourceObject]:
        """
        Raises:
            InvalidRequest: there are no documents.
            KvquiltError: the objects cannot be listed to the last one.
        """
        files: list[SourceObject] = []
        skipped: dict[Path | str, str] = {}
        paths: set[str] = set()
        readers_files: list[ReadersFile] = []
        with self._told_of_this():
            for found in list_all(self._blobs, self._prefix):
                path = found.name.removeprefix(self._prefix)
                paths.add(path)
                folder, _, name = path.rpartition("/")
                if name == READERS_FILE and not hidden(folder):
                    content = b"".join(self._blobs.read(found.name))
                    readers_files.append(ReadersFile(SCHEME + found.name, folder, content))
                if path.endswith("/") or not path or hidden(path):
                    continue
                if reason := unfit(path, found.size_bytes):
                    skipped[SCHEME + found.name] = reason
                else:
                    document_id = self.id_prefix + path
                    files.append(SourceObject(document_id, self.name, found.size_bytes, found.name, self))
        self._paths = frozenset(paths)
        if not files:
            raise nothing_in(self._where)
        rules = ReadersRules(readers_files)
        rules.check_named(paths)
        files = [
            replace(file, access=rules.access_to(file.document_id.removeprefix(self.id_prefix)))
            for file in files
        ]
        return Sources(files, skipped)

    def has(self, document_id: str) -> bool:
        """Whether the object of a document was there when they were listed last."""
        return document_id.removeprefix(self.id_prefix) in self._paths

    def read(self, key: str) -> bytes:
        """
        Raises:
            UnreadableDocument: there is no such object any more.
            KvquiltError: the object store cannot be reached, or refuses.
        """
        with self._told_of_this():
            try:
                return b"".join(self._blobs.read(key))
            except NotFound:
                raise UnreadableDocument("cannot be read: it was removed meanwhile") from None

    @contextmanager
    def _told_of_this(self) -> Iterator[None]:
        """Errors name this source, not the bucket in which the system keeps KV."""
        try:
            yield
        except InvalidRequest:
            raise
        except KvquiltError as error:
            raise type(error)(f"{self._where}: {in_these_words(error.detail)}") from error


def object_prefix(
    uri: str, endpoint: str, config: Path | None, label: str, environ: Mapping[str, str]
) -> ObjectPrefix:
    """``uri``: ``s3://BUCKET/PREFIX``. The server: as ``settings_of``.

    Raises:
        InvalidRequest: names what cannot be used.
    """
    bucket, _, prefix = uri.removeprefix(SCHEME).partition("/")
    settings = settings_of(endpoint, config, environ)
    try:
        settings = replace(settings, bucket=bucket)
    except ValueError as error:
        raise InvalidRequest(f"{uri}: {error}") from None
    return ObjectPrefix(ObjectBlobs(settings), settings.endpoint, bucket, prefix, label)


def settings_of(endpoint: str, config: Path | None, environ: Mapping[str, str]) -> ObjectSettings:
    """The server: ``endpoint`` (a URL, or ``HOST:PORT`` for https), else ``kv_store.objects`` of the YAML
    file ``config``, else the environment's, else Amazon's. Of the system's own bucket nothing is taken.

    Raises:
        InvalidRequest: names the option, or the setting.
    """
    values = _objects_in(config) if config else {}
    values.pop("bucket", None)
    values |= {"prefix": "", "create_bucket": False}
    if endpoint or not values.get("endpoint"):
        from_environment = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        values |= _server(endpoint or from_environment or _AMAZON)
    if region := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        values.setdefault("region", region)
    return load(ObjectSettings, values, "kv_store.objects.")


def in_these_words(detail: str) -> str:
    for theirs, ours in _IN_THESE_WORDS:
        detail = detail.replace(theirs, ours)
    return detail


def _server(endpoint: str) -> dict[str, Any]:
    """The settings that a URL stands for."""
    url = _URL.fullmatch(endpoint)
    if url is None:
        raise InvalidRequest(f"--endpoint: must be http://HOST:PORT or https://HOST:PORT, got {endpoint!r}")
    return {"endpoint": url["host"], "secure": url["scheme"] != "http"}


def _objects_in(path: Path) -> dict[str, Any]:
    try:
        values = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} cannot be read: {error}") from error
    for section in ("kv_store", "objects"):
        values = values.get(section) or {}
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {section}: expected a section, got {values!r}")
    return dict(values)
