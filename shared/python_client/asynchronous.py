"""The asyncio client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Self, Unpack

from shared.answer import AnswerEvent, Inquiry
from shared.clients import generation, ingest, rag, retrieval
from shared.clients.channels import channel_to, is_address
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.health import ServiceHealth
from shared.documents import DeletedDocuments, DocumentInfo, SourceDocument, UpsertProgress
from shared.errors import InvalidRequest
from shared.feedback import Feedback, Rating
from shared.generation.forest import Edit
from shared.generation.orders import ForestOrder
from shared.generation.pieces import Piece
from shared.generation.told import ExploringEvent
from shared.patience import patient_call, patient_stream
from shared.principals.credentials import Credentials, bearer, no_credentials
from shared.python_client.answers import RagAnswer, collected
from shared.python_client.asking import (
    AskOptions,
    ConnectionOptions,
    SearchOptions,
    check_names,
    inquiry_of,
    retrieval_of,
    reuse_of,
)
from shared.python_client.forests import AsyncForest
from shared.python_client.retries import OverloadPauses
from shared.request import READERS_STREAM_INTERVAL_MS, RequestContext
from shared.search import SearchHit

KEY_VARIABLE, TARGET_VARIABLE = "KVQUILT_API_KEY", "KVQUILT_TARGET"
DEFAULT_DEADLINE_S, DEFAULT_RETRIES = 120.0, 2
_PATIENCE_S = 5.0
_BATCH_BYTES = 8 << 20


class AsyncClient:
    """A connection to a running system. Every method raises ``KvquiltError``, whose ``retryable`` says
    whether the same call may work later.

    Calls that change nothing are repeated by themselves: for a few seconds while a service is away, and
    ``retries`` times where it has no room now. Ingesting and deleting are never repeated; both may be called
    again, and go on where they were.
    """

    def __init__(self, target: str = "", **how: Unpack[ConnectionOptions]) -> None:
        """
        target: ``host:port``, or ``grpcs://host:port`` for TLS; empty: that of the variable
            ``KVQUILT_TARGET``, else ``127.0.0.1:9000``.
        api_key: or a token; left out: that of the variable ``KVQUILT_API_KEY``, if it is set.
        ca_file, server_name: see ``channel_to``.
        deadline_s: of every call that names none; 120 if left out.
        priority: of every call, among what waits of the same tenant; lower goes earlier, from -100 to 100.
        retries: of a call that is refused for want of room; 2 if left out.
        stream_interval_ms: tokens that come within so long after others are sent together, the first one of
            an answer and its end at once; 50 if left out, 0: each by itself.

        Raises:
            InvalidRequest: names the argument. ConfigError: the authorities cannot be read.
        """
        check_names(how, ConnectionOptions)
        deadline_s, retries = how.get("deadline_s", DEFAULT_DEADLINE_S), how.get("retries", DEFAULT_RETRIES)
        target = target or os.environ.get(TARGET_VARIABLE, "127.0.0.1:9000")
        if not is_address(target):
            raise InvalidRequest(f"target: {target!r} is not host:port or grpcs://host:port")
        if deadline_s <= 0:
            raise InvalidRequest(f"deadline_s: must be above 0, got {deadline_s}")
        if retries < 0:
            raise InvalidRequest(f"retries: must be at least 0, got {retries}")
        key = how.get("api_key", os.environ.get(KEY_VARIABLE, ""))
        self._credentials: Credentials = bearer(key) if key else no_credentials
        self._deadline_s, self._priority = deadline_s, how.get("priority", 0)
        self._stream_interval_ms = how.get("stream_interval_ms", READERS_STREAM_INTERVAL_MS)
        self._retries = retries
        self._channel = channel_to(target, how.get("ca_file", ""), how.get("server_name", ""))
        self._rag = rag.RagClient(
            self._transport(rag.SERVICE, rag.APPLICATION, _PATIENCE_S),
            self._transport(rag.ADMIN_SERVICE, rag.APPLICATION, _PATIENCE_S),
        )
        self._ingest = ingest.IngestClient(self._transport(ingest.SERVICE, ingest.APPLICATION))
        self._retrieval = retrieval.RetrievalClient(
            self._transport(retrieval.SERVICE, retrieval.APPLICATION, _PATIENCE_S)
        )
        self._forests = generation.ForestClient(self._transport(generation.SERVICE, generation.APPLICATION))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends every call that is still under way."""
        await self._channel.close()

    # ---- questions

    async def ask(self, question: str, collection: str = "", **how: Unpack[AskOptions]) -> RagAnswer:
        """Waits for the whole answer. Raises like ``stream``."""
        async with aclosing(self.stream(question, collection, **how)) as events:
            return await collected(events)

    def stream(
        self, question: str, collection: str = "", **how: Unpack[AskOptions]
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Events of the answer as they come; the last one of a whole answer is ``AnswerDone``.

        Raises:
            InvalidRequest: neither a collection nor documents, or both; no such mode.
        """
        check_names(how, AskOptions)
        return self.answer(inquiry_of(question, collection, how), how.get("deadline_s"))

    def answer(self, inquiry: Inquiry, deadline_s: float | None = None) -> AsyncGenerator[AnswerEvent, None]:
        """As ``stream``, with all that can be asked: several questions over one context, beams, margins."""
        ctx = self._context(deadline_s)
        return patient_stream(OverloadPauses(ctx, self._retries), lambda: self._rag.answer(ctx, inquiry))

    async def rate(self, answer: RagAnswer, rating: Rating, comment: str = "") -> None:
        """Returns once it is durable.

        Raises:
            NotFound: the gateway does not remember the answer any more.
        """
        await self._rag.rate(self._context(None), Feedback(answer.request_id, rating, comment))

    # ---- documents

    async def ingest(
        self, collection: str, documents: Iterable[SourceDocument], *, deadline_s: float | None = None
    ) -> AsyncGenerator[UpsertProgress, None]:
        """Stores documents, new or changed, and yields how each comes along; a document ends as ``STORED``,
        ``UNCHANGED`` or ``FAILED``. Many are sent in several calls, each with the whole deadline."""
        for batch in _batches(documents):
            async with aclosing(
                self._ingest.upsert(self._context(deadline_s), collection, batch)
            ) as progress:
                async for told in progress:
                    yield told

    def documents(self, collection: str = "") -> AsyncGenerator[DocumentInfo, None]:
        """All of the collection's, or, without one, all that the caller may read."""
        return self._ingest.list(self._context(None), collection)

    async def delete(self, collection: str, document_ids: Sequence[str]) -> DeletedDocuments:
        return await self._ingest.delete(self._context(None), collection, document_ids)

    async def delete_collection(self, collection: str) -> DeletedDocuments:
        return await self._ingest.delete(self._context(None), collection, everything=True)

    async def search(self, query: str, collection: str, **how: Unpack[SearchOptions]) -> Sequence[SearchHit]:
        """The chunks that a question would be answered from, best first."""
        check_names(how, SearchOptions)
        options, ctx = retrieval_of(how), self._context(how.get("deadline_s"))
        found = await patient_call(
            OverloadPauses(ctx, self._retries),
            lambda: self._retrieval.search(
                ctx, collection, [query], options.k, options.mode, options.filters
            ),
        )
        return found.rankings[0]

    # ---- the system

    async def status(self) -> list[ServiceHealth]:
        return await self._rag.status(self._context(None))

    @asynccontextmanager
    async def forest(
        self, context: Sequence[Piece], *, mode: str = "", deadline_s: float | None = None
    ) -> AsyncIterator[AsyncForest]:
        """A live forest over ``context``: texts, or the ``chunk.piece`` of what ``search`` found."""
        order = ForestOrder(tuple(context), reuse=reuse_of(mode))
        ctx = self._context(deadline_s)

        def explore(edits: AsyncIterator[Edit]) -> AsyncGenerator[ExploringEvent, None]:
            return self._forests.explore(ctx, order, edits)

        async with AsyncForest(explore) as forest:
            yield forest

    def _context(self, deadline_s: float | None) -> RequestContext:
        seconds = self._deadline_s if deadline_s is None else deadline_s
        return RequestContext.create(
            deadline_ms=max(1, int(seconds * 1000)),
            priority=self._priority,
            stream_interval_ms=self._stream_interval_ms,
        )

    def _transport(self, service: str, application: str, patience_s: float = 0.0) -> GrpcTransport:
        return GrpcTransport(self._channel, service, application, patience_s, self._credentials)


def _batches(documents: Iterable[SourceDocument]) -> Iterable[list[SourceDocument]]:
    """A few megabytes each, or one document."""
    batch: list[SourceDocument] = []
    num_bytes = 0
    for document in documents:
        if batch and num_bytes + len(document.content) > _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(document)
        num_bytes += len(document.content)
    if batch:
        yield batch
