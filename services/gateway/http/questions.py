"""Lets questions that came over HTTP in, within the limits of those by gRPC, counted and traced."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from opentelemetry.trace import SpanKind

from services.gateway.ports import Answering
from shared import log as logs
from shared.admission.entrance import Entrance
from shared.answer import AnswerDone, AnswerEvent, Inquiry
from shared.limits import RequestLimits, check_request
from shared.request import RequestContext
from shared.streams import until, within
from shared.tracing.names import HTTP_METHOD, HTTP_ROUTE
from shared.tracing.spans import StageSpan, traced_stream
from shared.wire.answer import INQUIRY


@dataclass(frozen=True, slots=True)
class HttpQuestions:
    pipeline: Answering
    limits: RequestLimits
    door: Entrance

    def answer(self, ctx: RequestContext, inquiry: Inquiry, path: str) -> AsyncGenerator[AnswerEvent, None]:
        """``path``: by which it came.

        Raises:
            InvalidRequest: at once: it is larger than requests may be.
        """
        asked = INQUIRY.to_pb(inquiry)
        check_request(asked, self.limits)

        def stream(stage: StageSpan) -> AsyncGenerator[AnswerEvent, None]:
            logs.bind(stage.ctx)
            entered = self.door.entered(stage.ctx.principal, asked.ByteSize())
            return within(entered, self.pipeline.answer(stage.ctx, inquiry))

        route = {HTTP_METHOD: "POST", HTTP_ROUTE: path}
        answers = traced_stream(ctx, f"POST {path}", route, SpanKind.SERVER, True, stream=stream)
        return until(AnswerDone, answers, "the answer broke off; retry")
