"""How documents are read before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import pytest
from rich.console import Console

from cluster.cli.ingest_command import ingest_files
from cluster.cli.read_ahead import AHEAD_BYTES, NUM_READERS, ReadAhead
from cluster.cli.readers_file import UNSAID, Access
from shared.documents import SourceDocument, Stage, UpsertProgress
from shared.errors import Unavailable, UnreadableDocument

LONGEST_S = 60.0  # a test that waits for ever fails


@dataclass(frozen=True)
class Source:
    """``reading`` is called by ``read``, on its thread."""

    document_id: str
    num_bytes: int = 1
    reading: Callable[[], object] = lambda: None
    source: str = "folder"
    access: Access = UNSAID

    def read(self) -> bytes:
        self.reading()
        return self.document_id.encode()


def test_as_many_as_there_are_readers_are_read_at_once_and_handed_over_in_order() -> None:
    all_are_reading = threading.Barrier(NUM_READERS, timeout=LONGEST_S)
    sources = [Source(f"{i}", reading=all_are_reading.wait) for i in range(2 * NUM_READERS)]
    with ReadAhead(sources) as documents:
        assert [(s.document_id, read.result()) for s, read in documents] == [
            (s.document_id, s.document_id.encode()) for s in sources
        ]


def test_the_last_may_be_read_first_and_is_handed_over_last() -> None:
    last_is_read = threading.Event()
    first = Source("first", reading=lambda: last_is_read.wait(LONGEST_S))
    with ReadAhead([first, Source("last", reading=last_is_read.set)]) as documents:
        assert [source.document_id for source, _ in documents] == ["first", "last"]


@pytest.mark.parametrize(
    ("num_bytes", "most_ahead"),
    [(1, NUM_READERS), (AHEAD_BYTES // 4, 4), (AHEAD_BYTES // 2 + 1, 1), (2 * AHEAD_BYTES, 1)],
)
def test_what_is_read_and_not_taken_yet_is_little(num_bytes: int, most_ahead: int) -> None:
    begun: list[str] = []
    sources = [
        Source(f"{i}", num_bytes, reading=lambda i=i: begun.append(f"{i}"))  # type: ignore[misc]
        for i in range(4 * NUM_READERS)
    ]
    with ReadAhead(sources) as documents:
        for taken, (source, read) in enumerate(documents, 1):
            assert read.result() == source.document_id.encode()
            assert len(begun) <= taken + most_ahead
    assert sorted(begun, key=int) == [source.document_id for source in sources]


def test_whoever_leaves_ends_the_reading() -> None:
    others_may_end, begun = threading.Event(), threading.Semaphore(0)

    def reading() -> None:
        begun.release()
        others_may_end.wait(LONGEST_S)

    unread: list[str] = []
    sources = [
        Source("first", AHEAD_BYTES),
        Source("second", AHEAD_BYTES, reading=reading),
        Source("third", reading=lambda: unread.append("third")),
    ]
    with ReadAhead(sources) as documents:
        next(iter(documents))
        assert begun.acquire(timeout=LONGEST_S)
    others_may_end.set()
    assert not unread


async def test_a_document_that_cannot_be_read_is_reported_in_its_place_and_the_others_go_on() -> None:
    def fails() -> None:
        raise UnreadableDocument("cannot be read: it was removed meanwhile")

    stored: list[str] = []

    async def upsert(group: Sequence[SourceDocument]) -> AsyncGenerator[UpsertProgress, None]:
        for document in group:
            stored.append(document.document_id)
            yield UpsertProgress(document.document_id, Stage.STORED)

    sources = [Source("a"), Source("b", reading=fails), Source("c")]
    summary = await ingest_files(Console(quiet=True), upsert, sources)
    assert stored == ["a", "c"]
    assert summary.failed == {"b": "cannot be read: it was removed meanwhile"}


async def test_a_store_that_goes_away_ends_the_run() -> None:
    def fails() -> None:
        raise Unavailable("the object store cannot be reached")

    async def upsert(group: Sequence[SourceDocument]) -> AsyncGenerator[UpsertProgress, None]:
        for document in group:
            yield UpsertProgress(document.document_id, Stage.STORED)

    sources = [Source("a"), Source("gone", reading=fails), Source("z")]
    with pytest.raises(Unavailable, match="the object store cannot be reached"):
        await ingest_files(Console(quiet=True), upsert, sources)
