"""The blocking client: the asyncio client on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from shared.answer import AnswerEvent, Inquiry
from shared.clients.health import ServiceHealth
from shared.documents import DeletedDocuments, DocumentInfo, SourceDocument, UpsertProgress
from shared.feedback import Rating
from shared.generation.forest import Edit
from shared.generation.pieces import Piece
from shared.generation.told import ExploringEvent
from shared.python_client.answers import RagAnswer
from shared.python_client.asking import AskOptions, ConnectionOptions, SearchOptions
from shared.python_client.asynchronous import AsyncClient
from shared.python_client.forests import AsyncForest
from shared.search import SearchHit

ValueT = TypeVar("ValueT")


class Client:
    """``AsyncClient`` for programs without an event loop; the arguments are the same. Any thread may use it.
    Closing an iterator early, or leaving it to garbage collection, ends the work behind it."""

    def __init__(self, target: str = "", **how: Unpack[ConnectionOptions]) -> None:
        """Raises like ``AsyncClient``."""
        self._runner = _Runner()
        try:
            self._client = self._runner.run(_made(target, how))
        except BaseException:
            self._runner.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every call that is still under way. May be called twice."""
        if self._runner.open:
            self._runner.run(self._client.close())
            self._runner.close()

    def ask(self, question: str, collection: str = "", **how: Unpack[AskOptions]) -> RagAnswer:
        """See ``AsyncClient.stream``."""
        return self._runner.run(self._client.ask(question, collection, **how))

    def stream(self, question: str, collection: str = "", **how: Unpack[AskOptions]) -> Iterator[AnswerEvent]:
        return self._runner.iterate(lambda: self._client.stream(question, collection, **how))

    def answer(self, inquiry: Inquiry, deadline_s: float | None = None) -> Iterator[AnswerEvent]:
        return self._runner.iterate(lambda: self._client.answer(inquiry, deadline_s))

    def rate(self, answer: RagAnswer, rating: Rating, comment: str = "") -> None:
        self._runner.run(self._client.rate(answer, rating, comment))

    def ingest(
        self, collection: str, documents: Iterable[SourceDocument], *, deadline_s: float | None = None
    ) -> Iterator[UpsertProgress]:
        return self._runner.iterate(lambda: self._client.ingest(collection, documents, deadline_s=deadline_s))

    def documents(self, collection: str = "") -> Iterator[DocumentInfo]:
        return self._runner.iterate(lambda: self._client.documents(collection))

    def delete(self, collection: str, document_ids: Sequence[str]) -> DeletedDocuments:
        return self._runner.run(self._client.delete(collection, document_ids))

    def delete_collection(self, collection: str) -> DeletedDocuments:
        return self._runner.run(self._client.delete_collection(collection))

    def search(self, query: str, collection: str, **how: Unpack[SearchOptions]) -> Sequence[SearchHit]:
        return self._runner.run(self._client.search(query, collection, **how))

    def status(self) -> list[ServiceHealth]:
        return self._runner.run(self._client.status())

    @contextmanager
    def forest(
        self, context: Sequence[Piece], *, mode: str = "", deadline_s: float | None = None
    ) -> Iterator[Forest]:
        """See ``AsyncClient.forest``."""
        held = self._client.forest(context, mode=mode, deadline_s=deadline_s)
        forest = self._runner.run(held.__aenter__())
        try:
            yield Forest(self._runner, forest)
        finally:
            self._runner.run(held.__aexit__(None, None, None))


class Forest:
    """``AsyncForest`` for programs without an event loop."""

    def __init__(self, runner: _Runner, forest: AsyncForest) -> None:
        self._runner, self._forest = runner, forest

    def tell(self, *edits: Edit) -> None:
        self._runner.run(self._forest.tell(*edits))

    def close(self) -> None:
        self._runner.run(self._forest.close())

    def grown(self, branch: int) -> str:
        return self._runner.run(self._forest.grown(branch))

    def __iter__(self) -> Iterator[ExploringEvent]:
        events = aiter(self._forest)
        with suppress(StopAsyncIteration):
            while True:
                yield self._runner.run(_next(events))


class _Runner:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvquilt-client", daemon=True)
        self._thread.start()

    @property
    def open(self) -> bool:
        return not self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, ValueT]) -> ValueT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while it waits
            future.cancel()
            raise

    def iterate(self, start: Callable[[], AsyncGenerator[ValueT, None]]) -> Iterator[ValueT]:
        values = start()
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield self.run(_next(values))
        finally:
            if self.open:
                self.run(values.aclose())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _made(target: str, how: ConnectionOptions) -> AsyncClient:
    """On the loop that its channel lives on."""
    return AsyncClient(target, **how)


async def _next(values: AsyncIterator[ValueT]) -> ValueT:
    return await anext(values)
