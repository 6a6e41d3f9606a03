"""A chunk's bytes are verified as they arrive: whatever the pieces, nobody is told of a layer that is not
right."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kv_store.fetching.verification import ArrivingPart, FileSection, parts_of, sections_of
from shared.errors import CorruptData
from shared.kv_format import Frame, write_chunk
from tests.kv_chunks import chunk_id_of, header_of, kv_of

CHUNK = chunk_id_of(1)
NUM_LAYERS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path: Path = tmp_path_factory.mktemp("chunk") / "c"
    header = header_of(layers=NUM_LAYERS, chunk_id=CHUNK)
    write_chunk(path, header, *kv_of(header, 0))
    return path.read_bytes()


def sections(data: bytes) -> list[FileSection]:
    return sections_of(Frame.of_tail(data, len(data)))


def feed(part: ArrivingPart, data: bytes, *cuts: int) -> None:
    start, length = part.rest()
    edges = [start, *sorted({start + cut % length for cut in cuts} - {start}), start + length]
    for begin, end in itertools.pairwise(edges):
        part.arrived(begin, data[begin:end])


def layer_len(data: bytes) -> int:
    return sections(data)[1].end - sections(data)[1].start


@pytest.mark.parametrize("num_layers", [1, 2, NUM_LAYERS])
def test_parts_cover_head_and_layers_once_and_layers_are_never_torn(data: bytes, num_layers: int) -> None:
    found = list(parts_of(sections(data), num_layers * layer_len(data)))
    assert [section for part in found for section in part] == sections(data)
    assert all(sum(s.layer is not None for s in part) <= num_layers for part in found)
    assert [s.layer for s in found[0][:2]] == [None, 0]  # the head is not worth a request of its own
    assert list(parts_of([], 10)) == []


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 1 << 20), max_size=12), per_part=st.integers(1, 3))
def test_layers_are_marked_once_whatever_the_pieces(data: bytes, cuts: list[int], per_part: int) -> None:
    marked: list[int] = []
    for of_part in parts_of(sections(data), per_part * layer_len(data)):
        part = ArrivingPart(of_part, CHUNK, marked.append)
        feed(part, data, *cuts)
        part.check_whole()
        assert part.rest()[1] == 0
    assert marked == list(range(NUM_LAYERS))


def test_a_layer_is_there_with_its_last_byte_and_not_before(data: bytes) -> None:
    marked: list[int] = []
    part = ArrivingPart(sections(data), CHUNK, marked.append)
    first = sections(data)[1]
    part.arrived(0, data[: first.end - 1])
    assert marked == []
    part.arrived(first.end - 1, data[first.end - 1 : first.end])
    assert marked == [0]


@settings(deadline=None)
@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7), cuts=st.lists(st.integers(0, 1 << 20), max_size=5))
def test_a_flipped_bit_is_found_before_its_layer_is_marked_and_the_right_bytes_are_taken_then(
    data: bytes, at: int, bit: int, cuts: list[int]
) -> None:
    marked: list[int] = []
    part = ArrivingPart(sections(data), CHUNK, marked.append)
    at %= part.rest()[1]
    wrong = bytearray(data)
    wrong[at] ^= 1 << bit
    with pytest.raises(CorruptData, match="fails its checksum"):
        feed(part, bytes(wrong), *cuts)
    assert part.is_damaged
    assert marked == [s.layer for s in sections(data) if s.layer is not None and s.end <= at]
    with pytest.raises(CorruptData):
        part.check_whole()
    feed(part, data, *cuts)  # from the first layer on that was not right
    part.check_whole()
    assert marked == list(range(NUM_LAYERS))
    assert not part.is_damaged


def test_bytes_that_do_not_follow_are_refused_and_are_no_damage(data: bytes) -> None:
    part = ArrivingPart(sections(data), CHUNK, lambda layer: None)
    part.arrived(0, data[:10])
    with pytest.raises(CorruptData, match="order"):
        part.arrived(0, data[:10])
    assert not part.is_damaged
