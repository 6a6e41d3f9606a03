"""The arguments that both clients take, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from shared.answer import HandedDocument, Inquiry, RetrievalOptions
from shared.errors import InvalidRequest
from shared.generation.asked import SamplingParams
from shared.generation.orders import Reuse, mode_named
from shared.search import Filter, SearchMode


class ConnectionOptions(TypedDict, total=False):
    """See ``AsyncClient``."""

    api_key: str
    ca_file: str
    server_name: str
    deadline_s: float
    priority: int
    retries: int
    stream_interval_ms: int


class SearchOptions(TypedDict, total=False):
    """``k``: chunks to find; 0: the service's default."""

    k: int
    search: SearchMode
    filters: Sequence[Filter]
    deadline_s: float


class AskOptions(SearchOptions, total=False):
    """``documents``: the context itself, instead of a collection. ``mode``: of reuse, such as ``reordered``,
    ``full`` or ``auto``; empty: the service's own."""

    documents: Sequence[HandedDocument]
    mode: str
    sampling: SamplingParams


def inquiry_of(question: str, collection: str, how: AskOptions) -> Inquiry:
    """
    Raises:
        InvalidRequest: neither a collection nor documents, or both; no such mode.
    """
    documents = tuple(how.get("documents", ()))
    if bool(collection) == bool(documents):
        raise InvalidRequest("collection: name one, or hand over documents; not both")
    return Inquiry(
        collection,
        (question,),
        reuse_of(how.get("mode", "")),
        how.get("sampling", SamplingParams()),
        retrieval_of(how),
        documents=documents,
    )


def retrieval_of(how: SearchOptions) -> RetrievalOptions:
    return RetrievalOptions(
        how.get("k", 0), how.get("search", SearchMode.AUTO), tuple(how.get("filters", ()))
    )


def reuse_of(mode: str) -> Reuse:
    return Reuse(mode_named(mode, "mode") if mode else None)


def check_names(given: Mapping[str, object], known: type) -> None:
    """
    Raises:
        TypeError: an argument has a name that is none.
    """
    if unknown := given.keys() - known.__annotations__.keys():
        names = ", ".join(sorted(known.__annotations__))
        raise TypeError(f"unexpected argument {min(unknown)!r}; there are {names}")
