"""The HTTP application: what is served where, and what becomes of errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from services.gateway.config import HttpConfig
from services.gateway.console.files import add_console
from services.gateway.http.bodies import QuestionBody
from services.gateway.http.body_limit import BodyLimit
from services.gateway.http.caller_check import CallerCheck, caller_of, refusal_on_record
from services.gateway.http.completions import ChatCompletion, ChatForm
from services.gateway.http.door import HttpDoor
from services.gateway.http.embeddings import add_embeddings
from services.gateway.http.errors import (
    API_ERRORS,
    ModelNotServed,
    on_error,
    on_http_error,
    on_invalid,
    response_to,
)
from services.gateway.http.feedback_route import Rate, add_feedback
from services.gateway.http.file_routes import PATH as UPLOADS
from services.gateway.http.file_routes import add_files
from services.gateway.http.forms import EndpointForm
from services.gateway.http.heard import AnswerHead
from services.gateway.http.mcp_route import McpRoute, ToolSources
from services.gateway.http.member_routes import add_batches, add_members
from services.gateway.http.questions import HttpQuestions
from services.gateway.http.requests import ChatRequest
from services.gateway.http.response_bodies import ResponseBody
from services.gateway.http.response_requests import ResponseRequest
from services.gateway.http.response_routes import PATH as RESPONSES
from services.gateway.http.response_routes import ResponseInTurn, add_responses
from services.gateway.http.status_route import SystemState, TiersHeld, add_status, add_tiers
from services.gateway.http.store_routes import add_stores
from services.gateway.http.streaming import ChunkStream
from services.gateway.http.text_completions import TextCompletion, TextForm
from services.gateway.http.text_requests import TextRequest
from services.gateway.kept.kept import KeptThings
from services.gateway.ports import Answering, TextEmbedder
from shared import log as logs
from shared.admission.entrance import Entrance
from shared.audited import Recorder
from shared.errors import KvquiltError
from shared.generation.modes import ReuseMode
from shared.generation.orders import MODES_BY_NAME, Auto
from shared.limits import DEFAULT_LIMITS, RequestLimits
from shared.metrics.node import CONTENT_TYPE as METRICS_TYPE
from shared.metrics.node import PATH as METRICS_PATH
from shared.metrics.recorder import Metrics
from shared.principals.callers import Callers
from shared.request import RequestContext

_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
FormOf = Callable[[AnswerHead], EndpointForm]
Begin = Callable[[RequestContext], Awaitable[None]]
_AROUND_FILE_BYTES = 64 << 10
"""What multipart/form-data puts around a file, and the fields beside it."""
_LISTED = (ReuseMode.FULL, Auto.AUTO)


_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


class Health(BaseModel):
    """The gateway answers. What it needs of others is in `kvquilt status`."""

    status: Literal["ok"] = "ok"


class ModelExtension(BaseModel):
    """``modes``: of reuse, that ``mode`` may name; none of the embedder."""

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
    counts: Metrics | None = None,
    embedder: TextEmbedder | None = None,
    kept: KeptThings | None = None,
    tools: ToolSources | None = None,
    state: SystemState | None = None,
    tiers: TiersHeld | None = None,
    rate: Rate | None = None,
) -> FastAPI:
    """``limits``, ``door``: as of the same question by gRPC. ``callers``: who may ask, None: everybody.
    ``clock``: seconds since 1970. ``metrics``: what Prometheus is told; blocks. ``recorder``: of those who
    are refused, and of changes, None: nobody is on record. ``counts``: of calls that are no questions.
    ``embedder``: None: there are no embeddings. ``kept``: None: there are neither files nor vector stores.
    ``tools``: of the tools at `/mcp`, None: there are none. ``state``: of the system, None: nobody
    tells it; ``tiers``: what those of the store hold. ``rate``: keeps what is said of answers, None: nobody
    does."""
    door = door or Entrance(limits.per_principal)
    asking = HttpQuestions(pipeline, limits, door)
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
    uploads = {UPLOADS: min(config.max_upload_bytes + _AROUND_FILE_BYTES, limits.upsert_bytes)}
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes, others=uploads)
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

    def listed(name: str) -> ServedModel:
        if embedder is not None and name == config.embedder:
            return ServedModel(id=name, kvquilt=ModelExtension(modes=[]))
        return served(name)

    @app.get("/health", responses=API_ERRORS)
    async def health() -> Health:
        return Health()

    @app.get("/v1/models", responses=API_ERRORS)
    async def models() -> ServedModels:
        names = (config.model, *(f"{config.model}:{mode}" for mode in _LISTED))
        embedders = () if embedder is None else (config.embedder,)
        return ServedModels(data=list(map(listed, (*names, *embedders))))

    @app.get("/v1/models/{model:path}", responses=API_ERRORS)
    async def model(model: str) -> ServedModel:
        return listed(model)

    @app.post(_CHAT, response_model=ChatCompletion, responses=API_ERRORS | _STREAMED)
    async def chat_completions(request: ChatRequest, http: Request) -> Response:
        return await answer_to(request, http, lambda head: ChatForm(head, request.with_usage))

    @app.post(_TEXT, response_model=TextCompletion, responses=API_ERRORS | _STREAMED)
    async def completions(request: TextRequest, http: Request) -> Response:
        return await answer_to(request, http, lambda head: TextForm(head, request.with_usage))

    @app.post(RESPONSES, response_model=ResponseBody, responses=API_ERRORS | _STREAMED)
    async def responses(request: ResponseRequest, http: Request) -> Response:
        turn = ResponseInTurn(None if kept is None else kept.responses, request)
        return await answer_to(request, http, turn.form, turn.begin)

    async def answer_to(
        request: QuestionBody, http: Request, form: FormOf, begin: Begin | None = None
    ) -> Response:
        ctx: RequestContext | None = None
        try:
            request.take_mode(served(request.model).kvquilt.modes)
            request.check()
            ctx = request.context(http.headers, caller_of(http.scope))
            if begin is not None:
                async with ctx.until_deadline("reading what was said before"):
                    await begin(ctx)
            return await answered(request, ctx, form, http.url.path)
        except Exception as error:  # Starlette would raise it again, for Serve to tell its trace
            await refusal_on_record(recorder, http.scope, error, ctx)
            return response_to(error, request.names)

    async def answered(request: QuestionBody, ctx: RequestContext, form: FormOf, path: str) -> Response:
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
            inquiry.sampling.response_format is not None,
            inquiry.pasted,
            inquiry.explain,
        )
        if request.stream:
            growing = form(head).growing(events)
            return ChunkStream(await anext(growing), growing)
        return JSONResponse((await form(head).complete(events)).model_dump())

    passing = HttpDoor(door, limits, recorder, counts)
    if embedder is not None:
        add_embeddings(app, passing, embedder, config.embedder)
    if kept is not None:
        add_files(app, passing, kept.files, uploads[UPLOADS])
        add_stores(app, passing, kept.stores, kept.members, kept.searching)
        add_members(app, passing, kept.members)
        add_batches(app, passing, kept.batches)
        add_responses(app, passing, kept.responses)
    if state is not None:
        add_status(app, passing, state)
    if tiers is not None:
        add_tiers(app, passing, tiers)
    if rate is not None:
        add_feedback(app, passing, rate)
    add_console(app)
    if mcp is not None:
        app.router.routes.append(mcp.route)
    if metrics is not None:

        @app.get(METRICS_PATH, include_in_schema=False)
        async def told() -> Response:
            return Response(await asyncio.to_thread(metrics), media_type=METRICS_TYPE)

    return app
