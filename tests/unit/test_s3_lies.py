"""What a lying S3 server says is in good order, and not what was stored."""

from __future__ import annotations

import random

import pytest

from load_tests.servers.faulty_s3 import Request, S3Answer
from load_tests.servers.s3_lies import half, object_of, wrong_bytes

PART = S3Answer(206, (("Content-Range", "bytes 100-109/4000"), ("ETag", '"e"')), b"0123456789")
REFUSED = S3Answer(404, (), b"<Error/>")


def test_wrong_bytes_differ_in_one_bit() -> None:
    altered = wrong_bytes(PART, random.Random(1))
    assert (altered.status, altered.headers) == (PART.status, PART.headers)
    assert sum((a ^ b).bit_count() for a, b in zip(altered.body, PART.body, strict=True)) == 1


def test_half_of_a_body_calls_itself_all_that_was_asked_for() -> None:
    assert half(PART) == S3Answer(206, (("Content-Range", "bytes 100-104/4000"), ("ETag", '"e"')), b"01234")
    assert half(S3Answer(200, (("ETag", '"e"'),), b"0123")).body == b"01"


def test_errors_stay_as_they_are() -> None:
    assert half(REFUSED) is REFUSED
    assert wrong_bytes(REFUSED, random.Random(1)) is REFUSED


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "/kvquilt/chunks/ab/x.arrow?X-Amz-Date=1", ("kvquilt", "chunks/ab/x.arrow")),
        ("GET", "/kvquilt/manifests/a%20b.json", ("kvquilt", "manifests/a b.json")),
        ("GET", "/kvquilt?list-type=2&prefix=chunks", None),
        ("GET", "/kvquilt/?location=", None),
        ("PUT", "/kvquilt/chunks/ab/x.arrow", None),
    ],
)
def test_only_reads_of_objects_are_lied_about(method: str, path: str, found: tuple[str, str] | None) -> None:
    assert object_of(Request(0, method, path)) == found
