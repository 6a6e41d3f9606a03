"""Makes the server of a library: its tools, what they take, and how errors are told."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, Protocol, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from shared.answer import AnswerEvent, Inquiry, RetrievalOptions
from shared.documents import DocumentPage
from shared.errors import InternalError, KvquiltError
from shared.generation.asked import SamplingParams
from shared.generation.modes import Recompute
from shared.generation.orders import MODES_BY_NAME, Reuse, mode_named
from shared.log import unquoted
from shared.mcp_server.told import ToldAnswer, ToldDocuments, ToldPassages, answered, documents, found
from shared.request import RequestContext
from shared.search import Filter, SearchMode, SearchResult

log = logging.getLogger(__name__)

NAME = "kvquilt"
_INSTRUCTIONS = (
    "Collections of documents. `ask` answers a question from one of them, with citations; `search` finds "
    "passages to read yourself; `list_documents` says which collections and documents there are."
)
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_MOST_PASSAGES, _MOST_DOCUMENTS = 100, 1000
_LARGEST = 2**32 - 1
_UNEXPECTED = InternalError("failed unexpectedly; the service's log has the reason")
ResultT = TypeVar("ResultT")
Collection = Annotated[str, Field(description="The collection of documents.")]


class CollectionSearch(Protocol):
    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int,
        mode: SearchMode,
        filters: Sequence[Filter],
    ) -> SearchResult: ...


class Listing(Protocol):
    async def list_page(
        self, ctx: RequestContext, collection: str, start_after: str, limit: int
    ) -> DocumentPage: ...


@dataclass(frozen=True, slots=True)
class Library:
    """Services that the tools call. ``context``: who asks, by the HTTP request that he came by (None: there
    is none). ``on_error``: is told of every error, with that request."""

    context: Callable[[Any], RequestContext]
    answer: Callable[[RequestContext, Inquiry], AsyncGenerator[AnswerEvent, None]]
    searching: CollectionSearch
    listing: Listing
    on_error: Callable[[Any, Exception], Awaitable[None]] | None = None


def mcp_server(library: Library) -> MCPServer:
    server = MCPServer(NAME, instructions=_INSTRUCTIONS, version=version(NAME), subscriptions=False)

    async def search(
        call: Context,
        query: Annotated[str, Field(description="A question or keywords.")],
        collection: Collection,
        top_k: Annotated[int, Field(ge=1, le=_MOST_PASSAGES, description="So many passages.")] = 8,
    ) -> ToldPassages:
        """Find the passages of a collection that a query is about, best first."""
        ctx = _context(library, call)
        return found(
            collection, await library.searching.search(ctx, collection, [query], top_k, SearchMode.AUTO, ())
        )

    async def ask(
        call: Context,
        question: Annotated[str, Field(description="A whole question: what was said before is not known.")],
        collection: Collection,
        mode: Annotated[
            str | None,
            Field(
                description=f"How stored KV is reused: {', '.join(MODES_BY_NAME)}. Left out: as configured."
            ),
        ] = None,
        ratio: Annotated[
            float | None, Field(ge=0, le=1, description="Of the context's tokens, to be computed anew.")
        ] = None,
        top_k: Annotated[
            int | None,
            Field(ge=1, le=_LARGEST, description="Passages in the context; as configured if left out."),
        ] = None,
        max_tokens: Annotated[
            int | None, Field(ge=1, le=_LARGEST, description="Of the answer. Left out: as configured.")
        ] = None,
    ) -> ToldAnswer:
        """Answer a question from the documents of a collection, with citations."""
        ctx = _context(library, call)
        inquiry = Inquiry(
            collection,
            (question,),
            Reuse(mode_named(mode, "mode") if mode else None, Recompute(ratio)),
            SamplingParams(max_tokens=max_tokens),
            RetrievalOptions(top_k or 0),
        )
        return await answered(ctx.request_id, library.answer(ctx, inquiry))

    async def list_documents(
        call: Context,
        collection: Annotated[str, Field(description="Only this one. Left out: all.")] = "",
        start_after: Annotated[str, Field(description="`next` of the page before.")] = "",
        limit: Annotated[int, Field(ge=1, le=_MOST_DOCUMENTS, description="Most of one page.")] = 100,
    ) -> ToldDocuments:
        """List the documents that may be asked about, a page at a time."""
        ctx = _context(library, call)
        return documents(collection, await library.listing.list_page(ctx, collection, start_after, limit))

    tools: tuple[Callable[..., Awaitable[Any]], ...] = (search, ask, list_documents)
    for tool in tools:
        server.add_tool(_telling(library, tool), annotations=_READS)
    return server


def _context(library: Library, call: Context) -> RequestContext:
    return library.context(call.request_context.request)


def _telling(library: Library, tool: Callable[..., Awaitable[ResultT]]) -> Callable[..., Awaitable[ResultT]]:
    """Errors are for the model that calls: their code and what to do."""

    @functools.wraps(tool)
    async def told(call: Context, **given: Any) -> ResultT:
        try:
            return await tool(call, **given)
        except Exception as error:
            if library.on_error is not None:
                await library.on_error(call.request_context.request, error)
            known = error if isinstance(error, KvquiltError) else _UNEXPECTED
            if known is error:
                log.info("failed: %s: %s", known.code, unquoted(known.detail))
            else:
                log.error("unexpected error", exc_info=error)
            raise ToolError(f"{known.code}: {known.detail}") from None

    return told
