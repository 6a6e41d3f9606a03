"""Pages of lists, as OpenAI's clients turn them: a limit, and what the last one ended with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.errors import InvalidRequest
from shared.kv_items import Item
from shared.kv_stores import ItemStore
from shared.request import RequestContext

ValueT = TypeVar("ValueT")
MAX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class PageAsked:
    """``after``: an id; empty: from the beginning. ``descending``: the newest first."""

    limit: int = 20
    after: str = ""
    descending: bool = True


@dataclass(frozen=True, slots=True)
class ListedPage(Generic[ValueT]):
    values: tuple[ValueT, ...]
    has_more: bool


def page_of(values: Iterable[tuple[str, ValueT]], asked: PageAsked) -> ListedPage[ValueT]:
    """``values``: with their ids, in the order asked for.

    Raises:
        InvalidRequest: there is none with the id ``after``.
    """
    found = list(values)
    ids = [value_id for value_id, _ in found]
    if asked.after and asked.after not in ids:
        raise InvalidRequest(f"after: {asked.after[:80]!r} is not in the list")
    start = ids.index(asked.after) + 1 if asked.after else 0
    rest = [value for _, value in found[start : start + asked.limit + 1]]
    return ListedPage(tuple(rest[: asked.limit]), len(rest) > asked.limit)


async def all_items(items: ItemStore, ctx: RequestContext, kind: str, prefix: str = "") -> list[Item]:
    """That the caller may read, by id."""
    found: list[Item] = []
    while True:
        page = await items.item_page(ctx, kind, prefix, found[-1].id if found else "", 1000)
        found += page.items
        if not page.truncated:
            return found
