"""Client of the gateway: answers, and the state of the system."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from protos.kvquilt.v1 import rag_pb2
from shared.answer import AnswerDone, AnswerEvent, Inquiry
from shared.clients.health import ServiceHealth, health, health_from_pb, meta_of
from shared.clients.transport import Transport
from shared.errors import Unavailable
from shared.request import RequestContext
from shared.wire.answer import answer_of, inquiry_to_pb

SERVICE = "kvquilt.v1.Rag"
ADMIN_SERVICE = "kvquilt.v1.Admin"
APPLICATION = "gateway"


class RagClient:
    """Every method raises ``shared.errors``; closing a stream early stops the work behind it."""

    def __init__(self, rag: Transport, admin: Transport) -> None:
        self._rag = rag
        self._admin = admin

    async def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        """Events as they come; the last one of a whole answer is ``AnswerDone``. Several questions are
        answered over one context and decoded together.

        Raises:
            Unavailable: the stream ended without it.
        """
        request = inquiry_to_pb(inquiry, meta_of(ctx))
        stream = self._rag.stream("Answer", request, rag_pb2.AnswerEvent, ctx.remaining_s)
        async with aclosing(stream):
            async for pb in stream:
                event = answer_of(pb)
                yield event
                if isinstance(event, AnswerDone):
                    return
        raise Unavailable("the answer broke off; what came is not the whole; retry")

    async def status(self, ctx: RequestContext) -> list[ServiceHealth]:
        request = rag_pb2.StatusRequest(meta=meta_of(ctx))
        response = await self._admin.unary("Status", request, rag_pb2.StatusResponse, ctx.remaining_s)
        return [health_from_pb(service) for service in response.services]

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health(self._rag, ctx)
