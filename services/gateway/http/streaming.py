"""Server-sent events: a chunk per event, ``[DONE]`` behind the last one of a whole answer.

An answer that fails in its middle ends with an error and without ``[DONE]``. A caller that goes away ends the
answer: whatever it was waiting for is closed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from services.gateway.http.errors import body_of, told

DONE = "data: [DONE]\n\n"


class ChunkStream(StreamingResponse):
    """``first`` is awaited by the caller, so that what fails before it has a status of its own."""

    def __init__(self, first: BaseModel, others: AsyncGenerator[BaseModel, None]) -> None:
        self._others = others
        self._frames = frames(first, others)
        super().__init__(self._frames, media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as closed:  # the frames first; of those that never began nothing is
            await closed.enter_async_context(aclosing(self._others))
            await closed.enter_async_context(aclosing(self._frames))
            await super().__call__(scope, receive, send)


async def frames(first: BaseModel, others: AsyncGenerator[BaseModel, None]) -> AsyncGenerator[str, None]:
    """The text of each event."""
    try:
        yield _frame(first)
        async for chunk in others:
            yield _frame(chunk)
    except Exception as error:
        yield f"data: {body_of(told(error)).model_dump_json()}\n\n"
    else:
        yield DONE


def _frame(chunk: BaseModel) -> str:
    named = f"event: {name}\n" if (name := getattr(chunk, "event_name", "")) else ""
    return f"{named}data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
