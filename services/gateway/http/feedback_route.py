"""``/v1/feedback``: what a user says of an answer, as ``Rag.Feedback`` keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from services.gateway.http.bodies import MAX_NUMBER, BodyText, Lenient, check_parameters
from services.gateway.http.door import HttpDoor
from services.gateway.http.errors import API_ERRORS
from services.gateway.http.messages import WireRequest, rating
from shared.feedback import Feedback, RatedAnswer, Rating
from shared.request import RequestContext

PATH = "/v1/feedback"

Rate = Callable[[str, Feedback], RatedAnswer]
"""Keeps what was said of an answer to the tenant. Blocks."""


class FeedbackRequest(Lenient):
    """``request_id``: of the answer, as its ``kvquilt`` tells it. ``question``: index of the one that is
    meant."""

    request_id: BodyText
    rating: Literal["good", "bad"] | None = None
    comment: BodyText | None = None
    question: int = Field(0, ge=0, le=MAX_NUMBER)

    def feedback(self) -> Feedback:
        """
        Raises:
            InvalidRequest: names a parameter that is not known.
        """
        check_parameters(self, {})
        return Feedback(
            self.request_id, Rating(self.rating or Rating.NONE), self.comment or "", self.question
        )


class KeptFeedback(BaseModel):
    """It is durable."""

    object: Literal["feedback"] = "feedback"
    request_id: str
    question: int
    rating: Rating


def add_feedback(app: FastAPI, door: HttpDoor, rate: Rate) -> None:
    @app.post(PATH, response_model=KeptFeedback, responses=API_ERRORS)
    async def feedback(body: FeedbackRequest, http: Request) -> Response:
        def asked() -> WireRequest:
            return rating(body.feedback())

        async def work(ctx: RequestContext) -> KeptFeedback:
            rated = await asyncio.to_thread(rate, ctx.tenant, body.feedback())
            return KeptFeedback(request_id=rated.request_id, question=rated.question, rating=rated.rating)

        return await door.through(http, "Feedback", asked, work)
