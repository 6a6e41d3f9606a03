"""Gathers the events of a stream into fewer messages, and takes such messages apart.

A message costs service, proxy and client far more than the token in it; vLLM and SGLang have
``--stream-interval`` for the same reason.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from shared.request import RequestContext
from shared.streams import gathered

MessageT = TypeVar("MessageT", bound=Message)
ValueT = TypeVar("ValueT")


async def in_messages(
    ctx: RequestContext, events: AsyncGenerator[MessageT, None]
) -> AsyncGenerator[MessageT, None]:
    """``events`` as ``ctx`` asks for them: each a message of its own, or the first of those in it, which has
    the others as ``more``."""
    if not ctx.stream_interval_ms:
        async with aclosing(events):
            async for event in events:
                yield event
        return
    lists = gathered(events, ctx.stream_interval_ms / 1000, _kind_of)
    async with aclosing(lists):
        async for first, *others in lists:
            cast(Any, first).more.extend(others)
            yield first


async def taken_apart(
    messages: AsyncGenerator[MessageT, None], convert: Callable[[MessageT], ValueT]
) -> AsyncGenerator[ValueT, None]:
    """``convert`` of each event, as they come."""
    async with aclosing(messages):
        async for message in messages:
            yield convert(message)
            for event in getattr(message, "more", ()):
                yield convert(event)


def _kind_of(event: Message) -> str | None:
    kind: str | None = event.WhichOneof("event")
    return kind
