"""The HTTP application: what is served where, and what becomes of errors."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from services.gateway.config import HttpConfig
from services.gateway.http.body_limit import BodyLimit
from services.gateway.http.completions import ChatCompletion, CompletionHead, chunks, completion
from services.gateway.http.errors import (
    ApiErrorBody,
    ModelNotServed,
    on_error,
    on_http_error,
    on_invalid,
    response_to,
)
from services.gateway.http.requests import MODES, ChatRequest
from services.gateway.http.streaming import ChunkStream
from shared import log as logs
from shared.answer import AnswerDone, AnswerEvent, Inquiry
from shared.errors import KvquiltError
from shared.limits import DEFAULT_LIMITS, RequestLimits, check_request
from shared.request import RequestContext
from shared.streams import until
from shared.wire.answer import INQUIRY

_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ApiErrorBody}, "5XX": {"model": ApiErrorBody}}


class Answering(Protocol):
    def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]: ...


class ModelExtension(BaseModel):
    """``modes``: of reuse, that ``mode`` may name."""

    modes: list[str]


class ServedModel(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "kvquilt"
    kvquilt: ModelExtension


class ServedModels(BaseModel):
    object: Literal["list"] = "list"
    data: list[ServedModel]


def http_app(
    pipeline: Answering,
    config: HttpConfig,
    limits: RequestLimits = DEFAULT_LIMITS,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """``limits``: as of the same question by gRPC. ``clock``: seconds since 1970."""
    app = FastAPI(
        title="kvquilt",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        exception_handlers={
            KvquiltError: on_error,
            RequestValidationError: on_invalid,
            HTTPException: on_http_error,
        },
    )
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    served = ServedModel(id=config.model, kvquilt=ModelExtension(modes=list(map(str, MODES))))

    def check_model(model: str) -> None:
        if model != served.id:
            raise ModelNotServed(f"model: {model!r} is not served here; {served.id!r} is")

    @app.get("/v1/models", responses=_ERRORS)
    async def models() -> ServedModels:
        return ServedModels(data=[served])

    @app.get("/v1/models/{model:path}", responses=_ERRORS)
    async def model(model: str) -> ServedModel:
        check_model(model)
        return served

    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=_ERRORS)
    async def chat_completions(request: ChatRequest, http: Request) -> Response:
        try:
            return await answered(request, http)
        except Exception as error:  # Starlette would raise it again, for Serve to tell its trace
            return response_to(error)

    async def answered(request: ChatRequest, http: Request) -> Response:
        check_model(request.model)
        request.check()
        ctx = request.context(http.headers)
        logs.bind(ctx)
        inquiry = request.inquiry()
        check_request(INQUIRY.to_pb(inquiry), limits)
        head = CompletionHead(ctx.request_id, int(clock()), served.id, inquiry.collection, request.ratio)
        events = until(AnswerDone, pipeline.answer(ctx, inquiry), "the answer broke off; retry")
        if request.stream:
            growing = chunks(head, events, request.with_usage)
            return ChunkStream(await anext(growing), growing)
        return JSONResponse((await completion(head, events)).model_dump())

    return app
