"""Chunks from node to node by Arrow Flight, over real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from services.kv_store.fetching.flight import FlightReader, FlightServer
from shared.errors import CorruptData, NotFound, Unavailable

HERE, GONE, FAILING = "a" * 40, "b" * 40, "c" * 40
CHUNK = os.urandom(3 << 20)


def pieces(chunk_id: str, start: int, length: int) -> Iterator[bytes]:
    if chunk_id == FAILING:
        yield CHUNK[:10]
        raise Unavailable("the disk is busy")
    if chunk_id != HERE:
        raise NotFound("not stored")
    data = CHUNK[start : start + length]
    for at in range(0, len(data), 1 << 20):
        yield data[at : at + (1 << 20)]


@pytest.fixture
def server() -> Iterator[FlightServer]:
    server = FlightServer("127.0.0.1", pieces)
    yield server
    server.close()


@pytest.fixture
def reader() -> Iterator[FlightReader]:
    reader = FlightReader()
    yield reader
    reader.close()


def fetch(reader: FlightReader, server: FlightServer, chunk_id: str, start: int, length: int) -> bytes:
    received = bytearray(len(CHUNK) + 100)

    def write(offset: int, data: memoryview) -> None:
        received[offset : offset + len(data)] = data

    reader.read(server.location, chunk_id, start, length, write, timeout_s=20)
    return bytes(received[start : start + length])


@pytest.mark.parametrize(
    ("start", "length"), [(0, len(CHUNK)), (0, 1), (12_345, 1_500_000), (len(CHUNK) - 7, 7)]
)
def test_any_range_arrives_as_it_is(
    reader: FlightReader, server: FlightServer, start: int, length: int
) -> None:
    assert fetch(reader, server, HERE, start, length) == CHUNK[start : start + length]


def test_what_is_not_there_is_not_found(reader: FlightReader, server: FlightServer) -> None:
    with pytest.raises(NotFound):
        fetch(reader, server, GONE, 0, 10)


def test_a_copy_that_is_too_short_is_corrupt(reader: FlightReader, server: FlightServer) -> None:
    with pytest.raises(CorruptData):
        fetch(reader, server, HERE, len(CHUNK) - 5, 10)


def test_a_node_that_fails_in_the_middle_or_is_gone_is_unavailable(
    reader: FlightReader, server: FlightServer
) -> None:
    with pytest.raises(Unavailable):
        fetch(reader, server, FAILING, 0, 100)
    assert fetch(reader, server, HERE, 0, 5) == CHUNK[:5]
    server.close()
    with pytest.raises(Unavailable):
        fetch(reader, server, HERE, 0, 5)
