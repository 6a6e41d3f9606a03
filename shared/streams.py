"""Makes streams of streams. Closing one closes what it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import AbstractContextManager, aclosing
from typing import Any, TypeVar

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


async def within(
    held: AbstractContextManager[None], values: AsyncGenerator[ValueT, None]
) -> AsyncGenerator[ValueT, None]:
    """``values`` while something is held, from the first one on."""
    with held:
        async with aclosing(values):
            async for value in values:
                yield value


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


async def merged(
    streams: Iterable[AsyncGenerator[ValueT, None]], patient: bool = False
) -> AsyncGenerator[ValueT, None]:
    """Values of all, as they come. The first error ends them all: at once, or (``patient``) when the others
    have ended."""
    values: asyncio.Queue[tuple[ValueT] | None] = asyncio.Queue()

    async def pump(stream: AsyncGenerator[ValueT, None]) -> None:
        try:
            async with aclosing(stream):
                async for value in stream:
                    values.put_nowait((value,))
        finally:
            values.put_nowait(None)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        for _ in tasks:
            while (value := await values.get()) is not None:
                yield value[0]
            for task in tasks:
                if task.done() and not patient:
                    task.result()
        await asyncio.gather(*tasks)
    finally:
        await cancelled(tasks)


async def cancelled(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancels them, and returns once they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
