"""What every keeper of blobs promises (``services.kv_store.blobs.protocol.Blobs``): memory, disk, a real S3
server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from load_tests.servers.s3 import S3Server
from services.kv_store.blobs.protocol import WHOLE, Blobs, ByteRange, From, Last, Span
from services.kv_store.s3.bucket import ObjectBlobs
from shared.errors import CorruptData, KvquiltError, NotFound
from tests.blob_keepers import KEEPERS, keeper
from tests.dict_blobs import fill_by_sink, slice_of

DATA = bytes(range(256)) * 20
RANGES = [
    WHOLE,
    From(1),
    From(5119),
    From(5120),
    From(9999),
    Span(0, 1),
    Span(7, 300),
    Span(5000, 500),
    Span(6000, 5),
    Span(3, 0),
]
SUFFIXES = [Last(0), Last(1), Last(5120), Last(9999)]


@pytest.fixture(params=KEEPERS)
def blobs(request: pytest.FixtureRequest, s3_server: S3Server) -> Iterator[Blobs]:
    with keeper(request.param, s3_server.endpoint) as it:
        yield it


def read(blobs: Blobs, name: str, byte_range: ByteRange = WHOLE) -> bytes:
    return b"".join(blobs.read(name, byte_range))


def names(blobs: Blobs, prefix: str = "", start_after: str = "", limit: int = 1000) -> tuple[list[str], bool]:
    page = blobs.list(prefix, start_after, limit)
    return [b.name for b in page.blobs], page.truncated


@pytest.mark.parametrize("data", [b"", b"x", DATA, DATA * 1000], ids=len)
def test_what_was_put_is_read_back(blobs: Blobs, data: bytes) -> None:
    blobs.put("chunks/ab/abcd.arrow", data)
    stat = blobs.stat("chunks/ab/abcd.arrow")
    assert stat is not None
    assert (stat.name, stat.size_bytes) == ("chunks/ab/abcd.arrow", len(data))
    assert read(blobs, "chunks/ab/abcd.arrow") == data


@pytest.mark.parametrize("byte_range", [*RANGES, *SUFFIXES], ids=str)
def test_ranges_are_those_of_a_slice(blobs: Blobs, byte_range: ByteRange) -> None:
    for name, data in (("a", DATA), ("empty", b"")):
        blobs.put(name, data)
        assert read(blobs, name, byte_range) == slice_of(data, byte_range)


def test_pieces_of_a_large_blob_come_one_by_one_and_reading_may_end_early(blobs: Blobs) -> None:
    blobs.put("a", DATA * 1000)
    for _ in range(20):
        pieces = blobs.read("a")
        assert DATA.startswith(next(pieces)[:100])
        pieces.close()  # type: ignore[attr-defined]
    assert read(blobs, "a", Last(5)) == DATA[-5:]


def test_bytes_are_given_to_a_sink(blobs: Blobs) -> None:
    blobs.put("a", DATA * 1000)
    out = bytearray(b"-" * 1_000_020)
    fill_by_sink(blobs, "a", 5120 * 7 + 3, memoryview(out)[10:-10])
    assert out == b"-" * 10 + (DATA * 1000)[5120 * 7 + 3 :][:1_000_000] + b"-" * 10
    fill_by_sink(blobs, "a", 5_120_000, memoryview(out)[:0])
    for start, length in ((5_119_999, 2), (5_120_000, 1), (9_999_999, 1)):
        with pytest.raises(CorruptData):
            fill_by_sink(blobs, "a", start, memoryview(out)[:length])


def test_what_is_not_there_is_said_to_be_not_there(blobs: Blobs) -> None:
    blobs.put("a/b", b"x")
    for name in ("a", "a/b/c", "a/bc", "z"):
        assert blobs.stat(name) is None
        assert blobs.delete(name) is False
        for byte_range in (WHOLE, Last(3), Span(0, 0)):
            with pytest.raises(NotFound):
                read(blobs, name, byte_range)
        for length in (0, 1):
            with pytest.raises(NotFound):
                fill_by_sink(blobs, name, 0, memoryview(bytearray(length)))
    assert read(blobs, "a/b") == b"x"


def test_putting_again_replaces_and_changes_the_version(blobs: Blobs) -> None:
    versions = []
    for data in (b"one", b"two", b"three"):
        blobs.put("a", data)
        stat = blobs.stat("a")
        assert stat is not None
        assert stat.version == blobs.list().blobs[0].version
        versions.append(stat.version)
    assert read(blobs, "a") == b"three"
    assert len(set(versions)) == 3


def test_a_file_is_put_whole(blobs: Blobs, tmp_path: Path) -> None:
    for name, data in (("a", DATA * 1000), ("empty", b"")):
        path = tmp_path / "file"
        path.write_bytes(data)
        blobs.put_file(name, path)
        assert read(blobs, name) == data
    with pytest.raises(KvquiltError):
        blobs.put_file("b", tmp_path / "no such file")
    assert blobs.stat("b") is None


def test_what_was_deleted_is_gone(blobs: Blobs) -> None:
    blobs.put("a", b"x")
    blobs.put("b", b"y")
    assert blobs.delete("a") is True
    assert blobs.delete("a") is False
    assert blobs.stat("a") is None
    assert names(blobs) == (["b"], False)
    blobs.put("a", b"z")
    assert read(blobs, "a") == b"z"


def test_listings_are_sorted_and_come_in_pages(blobs: Blobs) -> None:
    expected = sorted(
        f"{folder}/{name}"
        for folder in ("a", "a-b", "b", "chunks/ab")
        for name in ("0", "A", "a", "b.json", "b_c")
    )
    for name in reversed(expected):
        blobs.put(name, name.encode())
    assert names(blobs) == (expected, False)
    assert names(blobs, limit=len(expected)) == (expected, False)
    assert names(blobs, limit=len(expected) - 1) == (expected[:-1], True)

    found: list[str] = []
    truncated = True
    while truncated:
        page, truncated = names(blobs, start_after=found[-1] if found else "", limit=3)
        found += page
    assert found == expected


def test_listings_know_prefixes_and_where_to_begin(blobs: Blobs) -> None:
    for name in ("a/1", "a/2", "ab/1", "b/1"):
        blobs.put(name, b"")
    assert names(blobs, "a/") == (["a/1", "a/2"], False)
    assert names(blobs, "a") == (["a/1", "a/2", "ab/1"], False)
    assert names(blobs, "a/", "a/1") == (["a/2"], False)
    assert names(blobs, "a/", "0") == (["a/1", "a/2"], False)
    assert names(blobs, "a/", "zz") == ([], False)
    assert names(blobs, "", "a/15") == (["a/2", "ab/1", "b/1"], False)
    assert names(blobs, "no such/") == ([], False)


def test_two_writers_of_one_blob_leave_one_of_the_two(blobs: Blobs, s3_server: S3Server) -> None:
    written = [bytes([65 + n]) * 300_000 for n in range(4)]
    threads = [threading.Thread(target=blobs.put, args=("a", data)) for data in written for _ in range(3)]
    at_once = not isinstance(blobs, ObjectBlobs) or s3_server.program.replaces_in_one_step
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join()
    seen = set()
    while any(t.is_alive() for t in threads):
        if blobs.stat("a"):
            seen.add(read_or_fail(blobs, "a"))
    for thread in threads:
        thread.join()
    assert seen <= {*written, b""}
    assert read(blobs, "a") in written


def read_or_fail(blobs: Blobs, name: str) -> bytes:
    """Whole, or nothing if the keeper cannot go on with the bytes that it began with."""
    try:
        return read(blobs, name)
    except KvquiltError:
        return b""


def test_deleting_during_a_read_gives_the_old_bytes_or_an_error(blobs: Blobs) -> None:
    blobs.put("a", DATA * 1000)
    pieces = blobs.read("a")
    first = next(pieces)
    blobs.delete("a")
    try:
        assert first + b"".join(pieces) == DATA * 1000
    except KvquiltError:
        assert blobs.stat("a") is None


def test_many_threads_use_it_at_once(blobs: Blobs) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(5):
                blobs.put(f"{number}/{i}", DATA[i : i + number * 100])
                assert read(blobs, f"{number}/{i}") == DATA[i : i + number * 100]
            assert len(blobs.list(f"{number}/").blobs) == 5
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
