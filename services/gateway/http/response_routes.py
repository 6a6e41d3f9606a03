"""``/v1/responses/…``: those that are kept, and what goes on from them."""

from __future__ import annotations

from typing import Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from services.gateway.http.door import HttpDoor
from services.gateway.http.errors import API_ERRORS
from services.gateway.http.heard import AnswerHead
from services.gateway.http.messages import dropping, listing
from services.gateway.http.paging import AskedPage, ListBody, listed
from services.gateway.http.response_bodies import ResponseBody
from services.gateway.http.response_requests import ResponseRequest
from services.gateway.http.responses import ResponseForm
from services.gateway.kept.paging import page_of
from services.gateway.kept.responses import KIND, KeptResponse, Responses
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import InvalidRequest, NotFound
from shared.request import RequestContext

PATH = "/v1/responses"
_ONE = PATH + "/{response_id}"


class InputText(BaseModel):
    type: Literal["input_text"] = "input_text"
    text: str


class SaidText(BaseModel):
    """Of an earlier answer that was sent along."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[str] = []


class InputMessage(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: str
    status: Literal["completed"] = "completed"
    content: list[InputText | SaidText]


class ResponseDeletedBody(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


InputList = ListBody[InputMessage]


class ResponseInTurn:
    """One that is asked for: what it goes on from, and whether it is kept. ``responses`` None: none are."""

    def __init__(self, responses: Responses | None, request: ResponseRequest) -> None:
        self._responses, self._request = responses, request
        self._ctx: RequestContext | None = None

    async def begin(self, ctx: RequestContext) -> None:
        """
        Raises:
            InvalidRequest: none are kept here. NotFound: there is none to go on from.
        """
        request, responses = self._request, self._responses
        if request.previous_response_id is not None:
            try:
                if responses is None:
                    raise NotFound("this server keeps no responses")
                request.go_on_from((await responses.get(ctx, request.previous_response_id)).turns)
            except NotFound as error:
                raise NotFound(f"previous_response_id: {error.detail}") from None
        if responses is None and request.store:
            raise InvalidRequest("store: this server keeps no responses, as it has no KV store; leave it out")
        if responses is not None and responses.keeps(request.store):
            self._ctx = ctx

    def form(self, head: AnswerHead) -> ResponseForm:
        if self._ctx is None or self._responses is None:
            return ResponseForm(head, self._request)
        return ResponseForm(head, self._request, self._responses.new_id(), self._keep)

    async def _keep(self, body: ResponseBody) -> bool:
        assert self._responses is not None
        assert self._ctx is not None
        request = self._request
        answer = EarlierTurn(Speaker.ASSISTANT, body.text_of_answer)
        turns = (*request.turns, EarlierTurn(Speaker.USER, request.question), answer)
        kept = KeptResponse(body.id, body.model_dump(), tuple(request.said), turns)
        return await self._responses.keep(self._ctx, kept)


def add_responses(app: FastAPI, door: HttpDoor, responses: Responses) -> None:
    @app.get(_ONE, response_model=ResponseBody, responses=API_ERRORS)
    async def retrieve(http: Request, response_id: str) -> Response:
        async def work(ctx: RequestContext) -> Response:
            return JSONResponse((await responses.get(ctx, response_id)).body)

        return await door.through(http, "ListDocuments", listing, work)

    @app.delete(_ONE, response_model=ResponseDeletedBody, responses=API_ERRORS)
    async def delete(http: Request, response_id: str) -> Response:
        async def work(ctx: RequestContext) -> ResponseDeletedBody:
            await responses.delete(ctx, response_id)
            return ResponseDeletedBody(id=response_id)

        return await door.through(http, "DeleteItem", lambda: dropping(KIND, response_id), work)

    @app.get(_ONE + "/input_items", response_model=InputList, responses=API_ERRORS)
    async def input_items(http: Request, response_id: str, asked: AskedPage) -> Response:
        async def work(ctx: RequestContext) -> InputList:
            kept = await responses.get(ctx, response_id)
            messages = [_message(kept.id, i, *said) for i, said in enumerate(kept.said)]
            ordered = messages[::-1] if asked.descending else messages
            page = page_of([(message.id, message) for message in ordered], asked)
            return InputList(**listed(page.values, page.has_more))

        return await door.through(http, "ListDocuments", listing, work)


def _message(response_id: str, number: int, role: str, text: str) -> InputMessage:
    part = SaidText(text=text) if role == "assistant" else InputText(text=text)
    return InputMessage(id=f"msg_{response_id}_{number}", role=role, content=[part])
