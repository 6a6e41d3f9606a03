"""Lets calls in that are no questions: counted, measured, traced, limited and on record as the RPCs are
that do the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from opentelemetry.trace import SpanKind
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from services.gateway.http.caller_check import caller_of, refusal_on_record
from services.gateway.http.errors import NO_NAMES, response_to, told
from services.gateway.http.headers import context_of
from services.gateway.http.messages import WireRequest
from shared import log as logs
from shared.admission.entrance import Entrance
from shared.audit import OK
from shared.audited import ACTIONS, Recorder, on_record
from shared.limits import RequestLimits, check_request
from shared.metrics.calls import counted
from shared.metrics.recorder import Metrics
from shared.request import RequestContext
from shared.tracing.names import HTTP_METHOD, HTTP_ROUTE
from shared.tracing.spans import span

Work = Callable[[RequestContext], Awaitable[BaseModel | Response]]


class HttpDoor:
    """``metrics`` None: nothing is counted."""

    def __init__(
        self,
        entrance: Entrance,
        limits: RequestLimits,
        recorder: Recorder | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.entrance, self.limits, self.metrics = entrance, limits, metrics
        self._recorder = recorder

    async def through(
        self,
        http: Request,
        method: str,
        asked: Callable[[], WireRequest],
        work: Work,
        names: Mapping[str, str] = NO_NAMES,
        num_bytes: int = 0,
    ) -> Response:
        """Returns the answer of ``work``, or its error in OpenAI's form.

        method: the RPC that does the same; asked: makes its request, without bytes of files, for the limits
        and for the record. names: of the request's fields, as they are over HTTP. num_bytes: of files.
        """
        ctx: RequestContext | None = None
        request: WireRequest | None = None
        with counted(self, method) as outcome:
            try:
                ctx = context_of(http.headers, caller_of(http.scope))
                logs.bind(ctx)
                request = asked()
                check_request(request, self.limits)
                answer = await self._let_in(http, ctx, request.ByteSize() + num_bytes, work)
            except HTTPException as error:  # of a body that is too large
                outcome.code = HTTPStatus(error.status_code).name
                raise
            except Exception as error:  # Starlette would raise it again, for Serve to tell its trace
                outcome.failed(error)
                await self._failed(http, method, error, ctx, request)
                return response_to(error, names)
            await self._on_record(method, request, ctx, OK)
        return answer if isinstance(answer, Response) else JSONResponse(answer.model_dump())

    async def _let_in(
        self, http: Request, ctx: RequestContext, num_bytes: int, work: Work
    ) -> BaseModel | Response:
        route: Any = http.scope.get("route")
        path = str(getattr(route, "path", http.url.path))
        attributes = {HTTP_METHOD: http.method, HTTP_ROUTE: path}
        name = f"{http.method} {path}"
        with span(ctx, name, attributes, SpanKind.SERVER, may_begin=True) as stage:
            logs.bind(stage.ctx)
            with self.entrance.entered(stage.ctx.principal, num_bytes):
                async with stage.ctx.until_deadline("answering"):
                    return await work(stage.ctx)

    async def _failed(
        self,
        http: Request,
        method: str,
        error: Exception,
        ctx: RequestContext | None,
        request: WireRequest | None,
    ) -> None:
        if request is None or ctx is None or method not in ACTIONS:
            await refusal_on_record(self._recorder, http.scope, error, ctx)
        else:
            await self._on_record(method, request, ctx, told(error).code)

    async def _on_record(self, method: str, request: WireRequest, ctx: RequestContext, outcome: str) -> None:
        if self._recorder is not None and method in ACTIONS:
            await on_record(self._recorder.called(method, request, ctx, outcome))
