"""The HTTP application: what is served where, and what becomes of errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from services.gateway.config import HttpConfig
from services.gateway.http.bodies import QuestionBody
from services.gateway.http.body_limit import BodyLimit
from services.gateway.http.caller_check import CallerCheck, caller_of, refusal_on_record
from services.gateway.http.completions import ChatCompletion, ChatForm
from services.gateway.http.errors import (
    ApiErrorBody,
    ModelNotServed,
    on_error,
    on_http_error,
    on_invalid,
    response_to,
)
from services.gateway.http.forms import AnswerForm, chunks, whole_answer
from services.gateway.http.heard import AnswerHead
from services.gateway.http.mcp_route import McpRoute, ToolSources
from services.gateway.http.questions import HttpQuestions
from services.gateway.http.requests import ChatRequest
from services.gateway.http.streaming import ChunkStream
from services.gateway.http.text_completions import TextCompletion, TextForm
from services.gateway.http.text_requests import TextRequest
from services.gateway.ports import Answering
from shared import log as logs
from shared.admission.entrance import Entrance
from shared.audited import Recorder
from shared.errors import KvquiltError
from shared.generation.modes import ReuseMode
from shared.generation.orders import MODES_BY_NAME, Auto
from shared.limits import DEFAULT_LIMITS, RequestLimits
from shared.metrics.node import CONTENT_TYPE as METRICS_TYPE
from shared.metrics.node import PATH as METRICS_PATH
from shared.principals.callers import Callers
from shared.request import RequestContext

_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_LISTED = (ReuseMode.FULL, Auto.AUTO)
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ApiErrorBody}, "5XX": {"model": ApiErrorBody}}


_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


class Health(BaseModel):
    """The gateway answers. What it needs of others is in `kvquilt status`."""

    status: Literal["ok"] = "ok"


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
    callers: Callers | None = None,
    clock: Callable[[], float] = time.time,
    door: Entrance | None = None,
    metrics: Callable[[], str] | None = None,
    recorder: Recorder | None = None,
    tools: ToolSources | None = None,
) -> FastAPI:
    """``limits``, ``door``: as of the same question by gRPC. ``callers``: who may ask, None: everybody.
    ``clock``: seconds since 1970. ``metrics``: what Prometheus is told; blocks. ``recorder``: of those who
    are refused, None: nobody is on record. ``tools``: of the tools at `/mcp`, None: there are none."""
    asking = HttpQuestions(pipeline, limits, door or Entrance(limits.per_principal))
    mcp = McpRoute(asking, tools, config.max_body_bytes, recorder) if tools is not None else None
    app = FastAPI(
        title="kvquilt",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        lifespan=mcp.lifespan if mcp is not None else None,
        exception_handlers={
            KvquiltError: on_error,
            RequestValidationError: on_invalid,
            HTTPException: on_http_error,
        },
    )
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    app.add_middleware(CallerCheck, callers=callers, recorder=recorder)  # the last one is asked first

    def served(name: str) -> ServedModel:
        mode = name.removeprefix(f"{config.model}:") if name != config.model else ""
        if name != config.model and (mode == name or mode not in MODES_BY_NAME):
            raise ModelNotServed(
                f"model: {name!r} is not served here; {config.model!r} is, and '{config.model}:MODE'"
            )
        return ServedModel(
            id=name, kvquilt=ModelExtension(modes=[mode] if mode else list(map(str, MODES_BY_NAME)))
        )

    @app.get("/health", responses=_ERRORS)
    async def health() -> Health:
        return Health()

    @app.get("/v1/models", responses=_ERRORS)
    async def models() -> ServedModels:
        names = (config.model, *(f"{config.model}:{mode}" for mode in _LISTED))
        return ServedModels(data=list(map(served, names)))

    @app.get("/v1/models/{model:path}", responses=_ERRORS)
    async def model(model: str) -> ServedModel:
        return served(model)

    @app.post(_CHAT, response_model=ChatCompletion, responses=_ERRORS | _STREAMED)
    async def chat_completions(request: ChatRequest, http: Request) -> Response:
        return await answer_to(request, http, ChatForm)

    @app.post(_TEXT, response_model=TextCompletion, responses=_ERRORS | _STREAMED)
    async def completions(request: TextRequest, http: Request) -> Response:
        return await answer_to(request, http, TextForm)

    async def answer_to(request: QuestionBody, http: Request, form: type[AnswerForm]) -> Response:
        ctx: RequestContext | None = None
        try:
            request.take_mode(served(request.model).kvquilt.modes)
            request.check()
            ctx = request.context(http.headers, caller_of(http.scope))
            return await answered(request, ctx, form, http.url.path)
        except Exception as error:  # Starlette would raise it again, for Serve to tell its trace
            await refusal_on_record(recorder, http.scope, error, ctx)
            return response_to(error, request.names)

    async def answered(
        request: QuestionBody, ctx: RequestContext, form: type[AnswerForm], path: str
    ) -> Response:
        logs.bind(ctx)
        inquiry = request.inquiry()
        events = asking.answer(ctx, inquiry, path)
        head = AnswerHead(
            ctx.request_id,
            int(clock()),
            request.model,
            inquiry.collection,
            request.ratio,
            inquiry.sampling.n,
            request.asked_logprobs,
        )
        if request.stream:
            growing = chunks(form(head, request.with_usage), events)
            return ChunkStream(await anext(growing), growing)
        return JSONResponse((await whole_answer(form(head), events)).model_dump())

    if mcp is not None:
        app.router.routes.append(mcp.route)
    if metrics is not None:

        @app.get(METRICS_PATH, include_in_schema=False)
        async def told() -> Response:
            return Response(await asyncio.to_thread(metrics), media_type=METRICS_TYPE)

    return app
