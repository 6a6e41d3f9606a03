"""Pins outlive their process, follow the documents, and leave room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import xxhash

from services.kv_store.blobs.protocol import WHOLE, ByteRange
from services.kv_store.documents.catalog import Document
from services.kv_store.documents.pins import BLOB, COPY, Pin, Pins, check_room
from shared.errors import KvquiltError, NotFound, StorageFull, Unavailable
from shared.kv_reports import DamagedRecord
from tests.dict_blobs import DictBlobs


class Catalog:
    def __init__(self) -> None:
        self.documents: dict[tuple[str, str, str], Document] = {}

    def __call__(self) -> list[Document]:
        return list(self.documents.values())

    def put(self, collection: str, document_id: str, *chunk_ids: str, tenant: str = "t") -> None:
        self.documents[tenant, collection, document_id] = Document(tenant, collection, document_id, chunk_ids)


class Failing(DictBlobs):
    failure: KvquiltError | None = None
    failing: frozenset[str] | set[str] = frozenset()

    def put(self, name: str, data: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        if name in self.failing:
            raise StorageFull("full")
        super().put(name, data)

    def read(self, name: str, byte_range: ByteRange = WHOLE) -> Iterator[bytes]:
        if self.failure is not None:
            raise self.failure
        yield from super().read(name, byte_range)


def pins_in(blobs: DictBlobs, catalog: Catalog) -> Pins:
    pins = Pins(blobs, catalog)
    pins.load()
    return pins


@pytest.fixture
def catalog() -> Catalog:
    made = Catalog()
    made.put("books", "1", "a", "b")
    made.put("books", "2", "b", "c")
    made.put("films", "1", "d")
    made.put("books", "1", "x", tenant="u")
    return made


def test_a_pinned_collection_includes_documents_that_come_later(catalog: Catalog) -> None:
    pins = pins_in(DictBlobs(), catalog)
    pins.change(Pin("t", "books"), unpin=False)
    before = pins.chunks()
    assert before.chunk_ids == {"a", "b", "c"}
    catalog.put("books", "3", "e")
    assert pins.chunks().chunk_ids == {"a", "b", "c", "e"}
    assert pins.chunks().version != before.version
    catalog.put("films", "2", "f")
    assert pins.chunks().chunk_ids == {"a", "b", "c", "e"}


def test_the_version_changes_with_the_set_only(catalog: Catalog) -> None:
    pins = pins_in(DictBlobs(), catalog)
    pins.change(Pin("t", "books", "1"), unpin=False)
    before = pins.chunks()
    catalog.put("films", "2", "f")
    assert pins.chunks().version == before.version


def test_pins_outlive_the_process_and_can_be_taken_back(catalog: Catalog) -> None:
    blobs = DictBlobs()
    pins = pins_in(blobs, catalog)
    for pin in (Pin("t", "books", "1"), Pin("t", "films"), Pin("u", "books")):
        pins.change(pin, unpin=False)
    again = pins_in(blobs, catalog)
    assert again.of("t") == [Pin("t", "books", "1"), Pin("t", "films")]
    assert again.chunks().chunk_ids == {"a", "b", "d", "x"}
    again.change(Pin("t", "films"), unpin=True)
    again.check_invariants()
    assert pins_in(blobs, catalog).chunks().chunk_ids == {"a", "b", "x"}


def test_what_does_not_exist_cannot_be_pinned_and_what_is_not_pinned_cannot_be_unpinned(
    catalog: Catalog,
) -> None:
    pins = pins_in(DictBlobs(), catalog)
    for pin in (Pin("t", "songs"), Pin("t", "books", "9")):
        with pytest.raises(NotFound, match="does not exist"):
            pins.change(pin, unpin=False)
        with pytest.raises(NotFound, match="kvquilt store pins"):
            pins.change(pin, unpin=True)


def test_a_document_that_is_gone_leaves_its_pin_without_chunks(catalog: Catalog) -> None:
    pins = pins_in(DictBlobs(), catalog)
    pins.change(Pin("t", "films"), unpin=False)
    del catalog.documents["t", "films", "1"]
    assert pins.chunks().chunk_ids == frozenset()
    pins.change(Pin("t", "films"), unpin=True)


def test_a_pinned_collection_loses_what_is_deleted(catalog: Catalog) -> None:
    pins = pins_in(DictBlobs(), catalog)
    pins.change(Pin("t", "books"), unpin=False)
    assert pins.chunks().chunk_ids == {"a", "b", "c"}
    del catalog.documents["t", "books", "2"]
    assert pins.chunks().chunk_ids == {"a", "b"}


def test_a_pin_that_cannot_be_written_down_does_not_hold(catalog: Catalog) -> None:
    blobs = Failing()
    pins = pins_in(blobs, catalog)
    blobs.failure = Unavailable("down")
    with pytest.raises(Unavailable):
        pins.change(Pin("t", "books"), unpin=False)
    assert pins.chunks().chunk_ids == frozenset()


def test_while_the_keeper_is_down_nobody_is_told_that_nothing_is_pinned(catalog: Catalog) -> None:
    blobs = Failing()
    pins_in(blobs, catalog).change(Pin("t", "films"), unpin=False)
    blobs.failure = Unavailable("down")
    pins = Pins(blobs, catalog)
    for ask in (pins.load, pins.chunks):
        with pytest.raises(Unavailable):
            ask()
    blobs.failure = None
    pins.load()
    assert pins.chunks().chunk_ids == {"d"}


def harm(blobs: DictBlobs, name: str) -> None:
    data = bytearray(blobs.data[name])
    data[-5] ^= 1
    blobs.put(name, bytes(data))


@pytest.mark.parametrize("name", [BLOB, COPY])
def test_a_damaged_list_is_restored_from_its_copy(catalog: Catalog, name: str) -> None:
    blobs = DictBlobs()
    pins_in(blobs, catalog).change(Pin("t", "books"), unpin=False)
    good = blobs.data[name]
    harm(blobs, name)
    pins = pins_in(blobs, catalog)
    assert pins.of("t") == [Pin("t", "books")]
    assert not pins.damaged
    assert pins.verify() == [DamagedRecord(name, "it fails its checksum")]
    assert pins.verify(repair=True) == [DamagedRecord(name, "it fails its checksum", restored=True)]
    assert blobs.data[name] == good
    assert pins.verify() == []


def test_a_list_that_is_damaged_twice_is_forgotten_rather_than_believed_and_says_so(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    blobs = DictBlobs()
    pins_in(blobs, catalog).change(Pin("t", "books"), unpin=False)
    assert not caplog.records, "no list is no damage"
    harm(blobs, BLOB)
    harm(blobs, COPY)
    pins = pins_in(blobs, catalog)
    assert (pins.of("t"), pins.damaged) == ([], True)
    assert "the list of pins is damaged" in caplog.text
    assert [(d.name, d.restored) for d in pins.verify(repair=True)] == [(BLOB, False), (COPY, False)]
    pins.change(Pin("t", "books"), unpin=False)
    assert (pins.damaged, pins.verify()) == (False, [])
    assert pins_in(blobs, catalog).of("t") == [Pin("t", "books")]


def test_a_copy_that_cannot_be_written_is_none_rather_than_an_older_one(catalog: Catalog) -> None:
    blobs = Failing()
    pins = pins_in(blobs, catalog)
    pins.change(Pin("t", "books"), unpin=False)
    blobs.failing = {COPY}
    pins.change(Pin("t", "films"), unpin=False)
    assert COPY not in blobs.data
    assert pins_in(blobs, catalog).of("t") == [Pin("t", "books"), Pin("t", "films")]


def test_a_list_that_an_earlier_version_wrote_is_read_and_written_anew_with_the_next_change(
    catalog: Catalog,
) -> None:
    body = b'[["t","books",""]]'
    blobs = DictBlobs()
    blobs.put(BLOB, xxhash.xxh3_64_hexdigest(body).encode() + b"\n" + body + b"\n")
    pins = pins_in(blobs, catalog)
    assert pins.of("t") == [Pin("t", "books")]
    pins.change(Pin("t", "films"), unpin=False)
    assert pins_in(blobs, catalog).of("t") == [Pin("t", "books"), Pin("t", "films")]
    blobs = DictBlobs()
    blobs.put(BLOB, b"0" * 16 + b"\n" + body + b"\n")
    assert pins_in(blobs, catalog).of("t") == []


def test_the_smallest_node_must_keep_room_for_the_rest() -> None:
    check_room(10, {"a": 100, "b": 1000, "c": 0})
    check_room(90, {"a": 100, "b": 1000, "c": 0})
    check_room(10**15, {"a": 0})
    with pytest.raises(StorageFull, match="holds 100"):
        check_room(91, {"a": 100, "b": 1000, "c": 0})
