"""Blobs in a bucket of an S3-compatible server (``services.kv_store.blobs.protocol.Blobs``), through the
``minio`` SDK.

Retrying is ours alone (``retries``, ``reader``): urllib3 would repeat requests in ways of its own, and
cannot go on with a body that broke off. The region is given, so that no request has to ask for it first.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import ssl
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

import urllib3
from minio.datatypes import Object
from minio.error import MinioException
from minio.sse import Sse, SseKMS, SseS3

from services.kv_store.blobs.disk import storing
from services.kv_store.blobs.protocol import (
    WHOLE,
    BlobPage,
    BlobStat,
    ByteRange,
    Last,
    Link,
    Sink,
    Span,
    check_whole,
    piece_buffer,
)
from services.kv_store.s3.client import SkewCorrectingClient
from services.kv_store.s3.credentials import credentials_from
from services.kv_store.s3.errors import answer_of, speaking_s3
from services.kv_store.s3.reader import ObjectReader
from services.kv_store.s3.retries import Clock, Retries
from services.kv_store.s3.settings import ObjectSettings
from shared.errors import ConfigError, FailedPrecondition, NotFound, Unavailable
from shared.tls import trusting

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

_LARGEST_PAGE = 999
"""A thousand names come with one request, and one more than the page tells whether it is the last."""
_LINK_EXPIRES = timedelta(minutes=10)
"""A chunk that is read at all is read within seconds."""


class ObjectBlobs:
    """Thread-safe. Construction asks nothing of the server: it may be down then, and every call says so."""

    def __init__(self, settings: ObjectSettings, clock: Clock | None = None) -> None:
        """
        Raises:
            ConfigError: ``ca_file`` cannot be read.
        """
        self._settings, self._bucket = settings, settings.bucket
        self._prefix = settings.prefix.rstrip("/") + "/" if settings.prefix else ""
        self._retries = Retries(settings.retry_s, clock)
        self._bucket_is_there = False
        self._encryption = encryption_of(settings)
        self._client = SkewCorrectingClient(
            settings.endpoint,
            secure=settings.secure,
            region=settings.region,
            credentials=credentials_from(settings.credentials_file),
            http_client=_connections(settings),
        )

    def check(self) -> None:
        """Whether the store can be used now; a missing bucket is created. Raises like every method of
        ``Blobs``."""
        self._bucket_is_there = False
        self._repeat(lambda: None)

    def stat(self, name: str) -> BlobStat | None:
        try:
            found = self._repeat(lambda: self._client.stat_object(self._bucket, self._key(name)))
        except NotFound:
            return None
        return self._stat_of(found, name)

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        if isinstance(byte_range, (Span, Last)) and not byte_range.length:
            self._check_there(name)
            return
        yield from self._reader(name, byte_range).pieces()

    def read_to(self, name: str, byte_range: Span | Last, sink: Sink) -> int:
        if not byte_range.length:
            return self._check_there(name)
        buffer, num_bytes = piece_buffer(), 0
        with contextlib.closing(self._reader(name, byte_range)) as reader:
            while count := reader.readinto(buffer):
                sink(reader.position - count, buffer[:count])
                num_bytes += count
        check_whole(name, byte_range, num_bytes)
        return reader.size

    def link(self, name: str) -> Link:
        with speaking_s3():
            url = self._client.presigned_get_object(
                self._bucket, self._key(name), expires=_LINK_EXPIRES, request_date=self._client.now()
            )
        return Link(url, self._settings.ca_file)

    def put(self, name: str, data: bytes) -> None:
        self._repeat(lambda: self._put(name, io.BytesIO(data), len(data)))

    def put_file(self, name: str, path: Path) -> None:
        with storing(), open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size

            def attempt() -> None:
                file.seek(0)
                self._put(name, file, size_bytes)

            self._repeat(attempt)

    def delete(self, name: str) -> bool:
        if self.stat(name) is None:  # the server's answer to a removal does not tell
            return False
        self._repeat(lambda: self._client.remove_object(self._bucket, self._key(name)))
        return True

    def list(self, prefix: str = "", start_after: str = "", limit: int = 1000) -> BlobPage:
        limit = min(limit, _LARGEST_PAGE)
        found = self._repeat(lambda: list(islice(self._listing(prefix, start_after), limit + 1)))
        stats = tuple(self._stat_of(o, (o.object_name or "")[len(self._prefix) :]) for o in found[:limit])
        return BlobPage(stats, truncated=len(found) > limit)

    def _listing(self, prefix: str, start_after: str) -> Iterator[Object]:
        after = self._prefix + start_after if start_after else ""
        objects: Iterator[Object] = self._client.list_objects(
            self._bucket, prefix=self._prefix + prefix, recursive=True, start_after=after or None
        )
        # some servers need an object of that name
        return (o for o in objects if (o.object_name or "") > after)

    def _put(self, name: str, data: BinaryIO, size_bytes: int) -> None:
        self._client.put_object(
            self._bucket,
            self._key(name),
            data,
            size_bytes,
            part_size=self._settings.part_bytes,
            sse=self._encryption,
        )

    def _reader(self, name: str, byte_range: ByteRange) -> ObjectReader:
        def request(headers: dict[str, str | list[str] | tuple[str]]) -> urllib3.BaseHTTPResponse:
            with self._noticing_a_lost_bucket():
                self._find_bucket()
                return self._client.get_object(self._bucket, self._key(name), request_headers=headers)

        return ObjectReader(request, byte_range, self._retries.attempts())

    def _repeat(self, call: Callable[[], ResultT]) -> ResultT:
        attempts = self._retries.attempts()
        while True:
            try:
                with speaking_s3(), self._noticing_a_lost_bucket():
                    self._find_bucket()
                    result = call()
                attempts.succeeded()
                return result
            except Unavailable as error:
                attempts.failed(error)

    def _find_bucket(self) -> None:
        """Asks once in this object's life, not once per call."""
        if not self._bucket_is_there and not self._client.bucket_exists(self._bucket):
            self._create_bucket()
        self._bucket_is_there = True

    def _create_bucket(self) -> None:
        if not self._settings.create_bucket:
            raise FailedPrecondition(
                "objects.bucket: there is no such bucket; create it, or set objects.create_bucket"
            )
        log.info("creating bucket %s", self._bucket)
        try:
            self._client.make_bucket(self._bucket)
        except MinioException as error:
            if answer_of(error).code == "AccessDenied":
                raise FailedPrecondition(
                    "objects.bucket: there is no such bucket, and these credentials may not create it; "
                    "create it for them"
                ) from error
            if answer_of(error).code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise  # else another thread or node was faster; somebody else's bucket will refuse us

    @contextlib.contextmanager
    def _noticing_a_lost_bucket(self) -> Iterator[None]:
        try:
            yield
        except MinioException as error:
            if answer_of(error).code == "NoSuchBucket":
                self._bucket_is_there = False  # the next call creates it, or says why not
            raise

    def _check_there(self, name: str) -> int:
        """Its length."""
        found = self.stat(name)
        if found is None:
            raise NotFound(f"{name}: not stored")
        return found.size_bytes

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _stat_of(self, found: Object, name: str) -> BlobStat:
        modified_s = found.last_modified.timestamp() if found.last_modified else 0.0
        return BlobStat(name, found.size or 0, modified_s, found.etag or "")


class _BucketKms(Sse):
    """SSE-KMS by the key that the bucket has."""

    def headers(self) -> dict[str, str]:
        return {"X-Amz-Server-Side-Encryption": "aws:kms"}


def encryption_of(settings: ObjectSettings) -> Sse | None:
    """Returns the encryption that is asked for with every object that is written."""
    match settings.encryption:
        case "kms":
            return SseKMS(settings.kms_key_id, {}) if settings.kms_key_id else _BucketKms()
        case "s3":
            return SseS3()
        case _:
            return None


def _connections(settings: ObjectSettings) -> urllib3.PoolManager:
    return urllib3.PoolManager(
        maxsize=settings.connections,
        timeout=urllib3.Timeout(connect=settings.connect_timeout_s, read=settings.read_timeout_s),
        retries=False,
        ssl_context=_tls(settings.ca_file) if settings.secure else None,
    )


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return trusting(ca_file)
    except OSError as error:
        raise ConfigError(
            f"objects.ca_file: cannot be read as PEM ({error.strerror or 'no certificate in it'})"
        ) from None
