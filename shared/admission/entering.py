"""A call on its way into a service: what it holds is checked, then whether there is room for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from google.protobuf.message import DecodeError

from shared import log as logs
from shared.admission.entrance import Entrance
from shared.errors import InvalidRequest
from shared.limits import DEFAULT_LIMITS, RequestLimits, check_request
from shared.principals.callers import Meta
from shared.request import RequestContext
from shared.tracing.spans import StageSpan

_HEALTH = "Health"


@dataclass(frozen=True, slots=True)
class Entering:
    """``outside``: no service makes it; ``held``: what is given back when it ends."""

    method: str
    outside: bool
    held: contextlib.ExitStack

    def let_in(self, service: object, request: Any, stage: StageSpan) -> RequestContext:
        """
        Raises:
            InvalidRequest, Overloaded: it is not.
        """
        logs.bind(stage.ctx)
        check_request(request, _limits(service))
        self._enter(service, stage.ctx, request)
        return replace(stage.ctx, outside=self.outside)

    async def checked(
        self, service: object, requests: AsyncIterator[Any], context_of: Callable[[Meta], RequestContext]
    ) -> AsyncGenerator[Any, None]:
        """The first of them names the caller. Raises as ``let_in``, and where bytes are no message."""
        first = True
        async for request in _whole(requests):
            check_request(request, _limits(service))
            if first and (meta := _meta_within(request)) is not None:
                self._enter(service, context_of(meta), request)
            first = False
            yield request

    def _enter(self, service: object, ctx: RequestContext, request: Any) -> None:
        """Health is told whoever asks, and however often."""
        door: Entrance | None = getattr(service, "door", None)
        if door is not None and self.method != _HEALTH:
            self.held.enter_context(door.entered(ctx.principal, request.ByteSize(), self.outside))


async def _whole(requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
    try:
        async for request in requests:
            yield request
    except DecodeError as error:
        raise InvalidRequest("a message of the stream cannot be read; check what encodes it") from error


def _limits(service: object) -> RequestLimits:
    return getattr(service, "limits", DEFAULT_LIMITS)


def _meta_within(request: Any) -> Meta | None:
    """Of a message of a stream: its own, or that of the one that it carries."""
    for _, value in (("", request), *request.ListFields()):
        if "meta" in getattr(getattr(value, "DESCRIPTOR", None), "fields_by_name", ()):
            return cast(Meta, value.meta)
    return None
