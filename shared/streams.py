"""Makes streams of streams. Closing one closes what it is made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from shared.errors import Unavailable

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")


async def mapped(
    values: AsyncGenerator[ValueT, None], convert: Callable[[ValueT], ResultT]
) -> AsyncGenerator[ResultT, None]:
    """``convert`` of each, as they come."""
    async with aclosing(values):
        async for value in values:
            yield convert(value)


async def until(
    last: type, events: AsyncGenerator[ValueT, None], broken_off: str
) -> AsyncGenerator[ValueT, None]:
    """``events`` up to the one of type ``last``.

    Raises:
        Unavailable: they ended without it; says what ``broken_off`` says.
    """
    async with aclosing(events):
        async for event in events:
            yield event
            if isinstance(event, last):
                return
    raise Unavailable(broken_off)
