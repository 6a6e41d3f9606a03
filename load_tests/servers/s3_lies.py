"""Alters what an S3 server answers, each answer in good order as far as HTTP and S3 are concerned: only who
knows what was stored can tell."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from minio import Minio
from minio.error import MinioException

from load_tests.servers.faulty_s3 import Request, S3Answer, of_the_body
from load_tests.servers.s3 import S3Server

_READ = (200, 206)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_MOST_LISTED = 100


def object_of(request: Request) -> tuple[str, str] | None:
    """Bucket and key of the object whose bytes are asked for; None: something else is."""
    bucket, _, key = unquote(urlsplit(request.path).path).lstrip("/").partition("/")
    return (bucket, key) if request.method == "GET" and bucket and key else None


def wrong_bytes(answer: S3Answer, rng: random.Random) -> S3Answer:
    """One bit of the body is another one."""
    if answer.status not in _READ or not answer.body:
        return answer
    body = bytearray(answer.body)
    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return replace(answer, body=bytes(body))


def half(answer: S3Answer) -> S3Answer:
    """The first half of the body, called all that there is."""
    if answer.status not in _READ or len(answer.body) < 2:
        return answer
    body = answer.body[: len(answer.body) // 2]

    def told(name: str, value: str) -> str:
        found = _CONTENT_RANGE.fullmatch(value) if name.lower() == "content-range" else None
        return f"bytes {found[1]}-{int(found[1]) + len(body) - 1}/{found[2]}" if found else value

    return S3Answer(answer.status, tuple((name, told(name, value)) for name, value in answer.headers), body)


class OtherObjects:
    """Answers with the same range of another object of the same kind, which its key begins with."""

    def __init__(self, server: S3Server, rng: random.Random) -> None:
        self._rng = rng
        self._client = Minio(
            server.endpoint, server.access_key, server.secret_key, secure=False, region="us-east-1"
        )

    def __call__(self, request: Request, answer: S3Answer) -> S3Answer:
        asked = object_of(request)
        if asked is None or answer.status not in _READ:
            return answer
        bucket, key = asked
        try:
            others = self._others(bucket, key)
            return self._read(bucket, self._rng.choice(others), request) if others else answer
        except MinioException:  # removed meanwhile, or shorter than the range begins
            return answer

    def _others(self, bucket: str, key: str) -> list[str]:
        listed = self._client.list_objects(bucket, prefix=key.partition("/")[0] + "/", recursive=True)
        names = [found.object_name for found, _ in zip(listed, range(_MOST_LISTED), strict=False)]
        return [name for name in names if name and name != key]

    def _read(self, bucket: str, key: str, request: Request) -> S3Answer:
        asked = request.headers.get("range")
        response = self._client.get_object(bucket, key, request_headers={"Range": asked} if asked else None)
        try:
            return S3Answer(response.status, of_the_body(response.headers.items()), response.data)
        finally:
            response.close()
            response.release_conn()
