"""Makes streams of streams. Closing one closes what it is made of."""

from __future__ import annotations

import asyncio
import contextlib
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


async def gathered(
    values: AsyncGenerator[ValueT, None], interval_s: float, kind_of: Callable[[ValueT], object]
) -> AsyncGenerator[list[ValueT], None]:
    """``values`` in lists, in their order. A list goes ``interval_s`` after the one before it at the
    earliest, but at once where it holds the first value of a kind, and when the values end. An error comes
    after what came before it."""
    waiting: list[ValueT] = []
    kinds: set[object] = set()
    some, pressing = asyncio.Event(), asyncio.Event()

    async def take() -> None:
        try:
            async with aclosing(values):
                async for value in values:
                    waiting.append(value)
                    some.set()
                    if (kind := kind_of(value)) not in kinds:
                        kinds.add(kind)
                        pressing.set()
        finally:
            some.set()
            pressing.set()

    taking = asyncio.create_task(take())
    try:
        while not taking.done() or waiting:
            await some.wait()
            if not taking.done():
                some.clear()
                pressing.clear()
            if together := waiting.copy():
                waiting.clear()
                yield together
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await pressing.wait()
        await taking
    finally:
        await cancelled([taking])


async def cancelled(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancels them, and returns once they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
