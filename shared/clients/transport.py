"""The seam between clients and the wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol, TypeVar, runtime_checkable

from google.protobuf.message import Message

ResponseT = TypeVar("ResponseT", bound=Message)


class Transport(Protocol):
    """Carries the messages of one application. Raises nothing but ``shared.errors`` (and
    ``asyncio.CancelledError``)."""

    async def unary(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT: ...

    def stream(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        """A server stream. Closing the generator (``aclose``) cancels the call at the service."""
        ...


@runtime_checkable
class ClientStreaming(Protocol):
    """Transport that can do more if it can stream requests: a gRPC channel, not a Serve handle."""

    async def client_stream(
        self, method: str, requests: AsyncIterator[Message], response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT: ...

    def both_streams(
        self, method: str, requests: AsyncIterator[Message], response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        """Closing the generator (``aclose``) cancels the call at the service."""
        ...
