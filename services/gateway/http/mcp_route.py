"""Serves the tools of ``shared.mcp_server`` at `/mcp` (streamable HTTP, without sessions: any replica answers
any request), to whoever may ask over HTTP at all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.routing import Route

from services.gateway.http.caller_check import caller_of, refusal_on_record
from services.gateway.http.headers import context_of
from services.gateway.http.questions import HttpQuestions
from shared import log as logs
from shared.answer import AnswerEvent, Inquiry
from shared.audited import Recorder
from shared.documents import DocumentPage
from shared.mcp_server.server import CollectionSearch, Library, Listing, mcp_server
from shared.request import RequestContext
from shared.search import Filter, SearchMode, SearchResult

PATH = "/mcp"
_CONTEXT = "kvquilt.mcp.context"
_BY_CALLER_CHECK = TransportSecuritySettings(enable_dns_rebinding_protection=False)
"""It looks at hosts and origins wherever no key is asked for."""


@dataclass(frozen=True, slots=True)
class ToolSources:
    """Services behind the tools, besides answers."""

    searching: CollectionSearch
    listing: Listing


class McpRoute:
    """``max_bytes``: of a request's body. ``route`` answers while ``lifespan`` is open, which is once."""

    def __init__(
        self, asking: HttpQuestions, tool_sources: ToolSources, max_bytes: int, recorder: Recorder | None
    ) -> None:
        self._asking, self._sources, self._recorder = asking, tool_sources, recorder
        library = Library(_context, self._answer, self, self, self._on_error)
        self._server = mcp_server(library)
        self._server.streamable_http_app(
            json_response=True,
            stateless_http=True,
            max_request_body_size=max_bytes,
            transport_security=_BY_CALLER_CHECK,
        )
        self.route = Route(
            PATH, endpoint=StreamableHTTPASGIApp(self._server.session_manager), methods=["POST"]
        )

    @asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        async with self._server.session_manager.run():
            yield

    def _answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        return self._asking.answer(ctx, inquiry, PATH)

    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int,
        mode: SearchMode,
        filters: Sequence[Filter],
    ) -> SearchResult:
        with self._asking.door.entered(ctx.principal, sum(map(len, queries))):
            return await self._sources.searching.search(ctx, collection, queries, k, mode, filters)

    async def list_page(
        self, ctx: RequestContext, collection: str, start_after: str, limit: int
    ) -> DocumentPage:
        with self._asking.door.entered(ctx.principal, len(start_after)):
            return await self._sources.listing.list_page(ctx, collection, start_after, limit)

    async def _on_error(self, request: Request, error: Exception) -> None:
        await refusal_on_record(self._recorder, request.scope, error, request.scope.get(_CONTEXT))


def _context(request: Request) -> RequestContext:
    ctx = context_of(request.headers, caller_of(request.scope))
    request.scope[_CONTEXT] = ctx
    logs.bind(ctx)
    return ctx
