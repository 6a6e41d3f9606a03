"""Client of the gateway: answers, and the state of the system."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from protos.kvquilt.v1 import rag_pb2
from shared.answer import AnswerDone, AnswerEvent, Inquiry
from shared.clients.health import HEALTH, ServiceHealth
from shared.clients.service import ServiceClient
from shared.clients.transport import Transport
from shared.feedback import Feedback, RatedAnswer
from shared.request import RequestContext
from shared.streams import until
from shared.wire.answer import ANSWERED, INQUIRY
from shared.wire.feedback import FEEDBACK, RATED

SERVICE = "kvquilt.v1.Rag"
ADMIN_SERVICE = "kvquilt.v1.Admin"
APPLICATION = "gateway"


class RagClient(ServiceClient):
    def __init__(self, rag: Transport, admin: Transport) -> None:
        super().__init__(rag)
        self._admin = ServiceClient(admin)

    def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        """Events as they come; the last one of a whole answer is ``AnswerDone``. Several questions are
        answered over one context and decoded together.

        Raises:
            Unavailable: the stream ended without it.
        """
        events = self.follow(ctx, "Answer", INQUIRY.to_pb(inquiry), rag_pb2.AnswerEvent, ANSWERED.of)
        return until(AnswerDone, events, "the answer broke off; what came is not the whole; retry")

    async def rate(self, ctx: RequestContext, feedback: Feedback) -> None:
        """Returns once it is durable; the tenant is the answer's.

        Raises:
            NotFound: the gateway does not remember such an answer.
        """
        await self.ask(ctx, "Feedback", FEEDBACK.to_pb(feedback), rag_pb2.FeedbackResponse)

    def ratings(self, ctx: RequestContext, collection: str = "") -> AsyncGenerator[RatedAnswer, None]:
        """The tenant's, the oldest first; ``collection`` empty: of all."""
        request = rag_pb2.ListFeedbackRequest(collection=collection)
        return self.follow(ctx, "ListFeedback", request, rag_pb2.RatedAnswer, RATED.of)

    async def status(self, ctx: RequestContext) -> list[ServiceHealth]:
        response = await self._admin.ask(ctx, "Status", rag_pb2.StatusRequest(), rag_pb2.StatusResponse)
        return [HEALTH.of(service) for service in response.services]
