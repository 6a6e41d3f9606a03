"""The RPCs of ``kvquilt.v1.Rag`` and ``kvquilt.v1.Admin``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from protos.kvquilt.v1 import rag_pb2
from services.gateway.feedback import FeedbackKeeper
from services.gateway.ports import Answering, HealthSource
from services.gateway.ratings import readable_ratings
from services.gateway.shadow import Shadow
from services.gateway.status import system_status
from shared.clients.health import HEALTH, ServiceHealth
from shared.kv_stores import ReadableChunks
from shared.request import RequestContext
from shared.rpc import HealthServicer, server_stream, unary
from shared.streams import mapped
from shared.wire.answer import ANSWERED, INQUIRY
from shared.wire.feedback import FEEDBACK, RATED
from shared.wire.gathering import in_messages


class GatewayHandlers(HealthServicer):
    """``others``: the health of every other application; their order is the status's. ``addresses``: of those
    that another cluster serves. ``documents`` None: nobody says which of them a caller may read.

    The gateway is ready when it answers: whether it can do its work depends on services that ``Status``
    reports."""

    application = "gateway"
    begins_traces = frozenset({"Answer"})

    def __init__(
        self,
        pipeline: Answering,
        others: Mapping[str, HealthSource],
        status_timeout_s: float,
        addresses: Mapping[str, str],
        feedback: FeedbackKeeper,
        shadow: Shadow | None = None,
        documents: ReadableChunks | None = None,
    ) -> None:
        self._documents = documents
        self._pipeline = pipeline
        self._feedback = feedback
        self._shadow = shadow
        self._others = others
        self._status_timeout_s = status_timeout_s
        self._addresses = addresses

    @server_stream
    def Answer(
        self, request: rag_pb2.AnswerRequest, ctx: RequestContext
    ) -> AsyncGenerator[rag_pb2.AnswerEvent, None]:
        return in_messages(ctx, mapped(self._pipeline.answer(ctx, INQUIRY.of(request)), ANSWERED.to_pb))

    @unary
    async def Feedback(
        self, request: rag_pb2.FeedbackRequest, ctx: RequestContext
    ) -> rag_pb2.FeedbackResponse:
        await asyncio.to_thread(self._feedback.rate, ctx.tenant, FEEDBACK.of(request))
        return rag_pb2.FeedbackResponse()

    @server_stream
    async def ListFeedback(
        self, request: rag_pb2.ListFeedbackRequest, ctx: RequestContext
    ) -> AsyncGenerator[rag_pb2.RatedAnswer, None]:
        ratings = await asyncio.to_thread(self._feedback.ratings, ctx.tenant, request.collection)
        for rated in await readable_ratings(ctx, ratings, self._documents):
            yield RATED.to_pb(rated)

    @unary
    async def Status(self, request: rag_pb2.StatusRequest, ctx: RequestContext) -> rag_pb2.StatusResponse:
        return rag_pb2.StatusResponse(services=map(HEALTH.to_pb, await self.state(ctx)))

    async def state(self, ctx: RequestContext) -> list[ServiceHealth]:
        """The gateway's, then that of every other application."""
        others = await system_status(self._others, ctx, self._status_timeout_s, self._addresses)
        return [await self.told(ctx), *others]

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        facts = self._shadow.facts() if self._shadow is not None else {}
        return ServiceHealth(self.application, ready=True, facts=facts)
