"""Defines how lists are asked for page by page, and answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel

from services.gateway.kept.paging import MAX_LIMIT, PageAsked
from shared.errors import InvalidRequest

ItemT = TypeVar("ItemT", bound=BaseModel)


class ListBody(BaseModel, Generic[ItemT]):
    """``has_more``: ask again with ``after`` set to ``last_id``."""

    object: Literal["list"] = "list"
    data: list[ItemT]
    first_id: str | None
    last_id: str | None
    has_more: bool


def listed(data: Sequence[Any], has_more: bool) -> dict[str, Any]:
    """The members of a ``ListBody``. ``data``: each with an id."""
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return {"data": list(data), "first_id": ends[0], "last_id": ends[1], "has_more": has_more}


def _asked(
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 20,
    after: str = "",
    order: Literal["asc", "desc"] = "desc",
    before: Annotated[str, Query(include_in_schema=False)] = "",
) -> PageAsked:
    """
    Raises:
        InvalidRequest: names what is not supported.
    """
    if before:
        raise InvalidRequest("before: is not supported; turn pages by after, in the other order")
    return PageAsked(limit, after, order == "desc")


AskedPage = Annotated[PageAsked, Depends(_asked)]
