"""Edits a live forest from a program: branches grow, fork, merge and end while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Self

from shared.generation.forest import Edit
from shared.generation.told import ExploringEvent, GrownEvent, RefusedEvent, RestedEvent

Explore = Callable[[AsyncIterator[Edit]], AsyncGenerator[ExploringEvent, None]]


class AsyncForest:
    """``async with client.forest(…) as forest``: edits are sent by ``tell``, what becomes of them is what
    iterating yields. Leaving the block ends the forest, whatever still grows in it.

    Numbers of branches are the caller's choice; edits are numbered from 0 in the order in which they are
    sent."""

    def __init__(self, explore: Explore) -> None:
        self._edits: asyncio.Queue[Edit | None] = asyncio.Queue()
        self._events = explore(self._sent())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._events.aclose()

    async def tell(self, *edits: Edit) -> None:
        for edit in edits:
            self._edits.put_nowait(edit)

    async def close(self) -> None:
        """Sends no more edits: the forest ends, and iterating with it, once every branch rests."""
        self._edits.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[ExploringEvent]:
        return self._events

    async def grown(self, branch: int) -> str:
        """The text that the branch grows from here on until it rests. Events of others are passed over.

        Raises:
            KvquiltError: an edit was refused, or the forest failed.
        """
        text = ""
        async for event in self._events:
            match event:
                case GrownEvent(branch=grown) if grown == branch:
                    text += event.text
                case RestedEvent(branch=rested) if rested == branch:
                    return text + event.text
                case RefusedEvent():
                    raise event.error
        return text

    async def _sent(self) -> AsyncIterator[Edit]:
        while (edit := await self._edits.get()) is not None:
            yield edit
