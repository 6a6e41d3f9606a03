"""A gRPC channel as transport: from outside the cluster, to another one, between nodes, in integration
tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from shared import errors
from shared.clients.transport import ResponseT
from shared.patience import RetryPauses, patient_stream
from shared.principals.credentials import Credentials, no_credentials
from shared.status import DETAILS_KEY, from_status

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 2000),  # else, after a while, minutes without a look at who is back
)

# Ray Serve's proxy reports the death of a replica as internal, in Ray's words; gRPC's client a connection
# that broke in the middle of a call, in its own.
_COULD_NOT_SEND = "Internal error from Core"
_SAID_LATE_S = 1.0
_DIED = re.compile(rf"actor (died|is dead|is (temporarily )?unavailable)|^{_COULD_NOT_SEND}$", re.IGNORECASE)
_TOO_LARGE = re.compile(r"(Received|Sent) message larger than max \((\d+) vs\. (\d+)\)")
_NOT_DEPLOYED = re.compile(r"^(Application '[^']*') not found")


class GrpcTransport:
    """Calls ``/{service}/{method}``; ``application`` is the routing key that Ray Serve's proxy needs
    (harmless elsewhere).

    ``patience_s``: how long a call that fails as unavailable before anything came back is made again, if its
    time lets it; for services whose calls change nothing. Calls that send a stream are never repeated.
    ``credentials``: by which every call says who makes it.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        service: str,
        application: str,
        patience_s: float = 0.0,
        credentials: Credentials = no_credentials,
    ) -> None:
        self._channel = channel
        self._service = service
        self._metadata = (("application", application),)
        self._patience_s = patience_s
        self._credentials = credentials

    async def unary(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT:
        call = self._callable(self._channel.unary_unary, method, response_type)
        pauses = self._pauses(method, timeout_s)
        while True:
            try:
                response: ResponseT = await call(request, timeout=pauses.remaining_s)
                return response
            except grpc.aio.AioRpcError as failure:
                error = error_of(failure)
                if not isinstance(error, errors.Unavailable):
                    raise error from None
                await pauses.pause_or_raise(error)

    async def stream(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        pauses = self._pauses(method, timeout_s)

        def start() -> AsyncGenerator[ResponseT, None]:
            return self._stream(method, request, response_type, pauses.remaining_s)

        async with aclosing(patient_stream(pauses, start)) as responses:
            async for response in responses:
                yield response

    async def _stream(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        call = self._callable(self._channel.unary_stream, method, response_type)(request, timeout=timeout_s)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        finally:
            call.cancel()

    async def client_stream(
        self, method: str, requests: AsyncIterator[Message], response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT:
        start = self._callable(self._channel.stream_unary, method, response_type)
        async with _sending(requests, partial(start, timeout=timeout_s)) as call:
            response: ResponseT = await call
        return response

    async def both_streams(
        self, method: str, requests: AsyncIterator[Message], response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        start = self._callable(self._channel.stream_stream, method, response_type)
        async with _sending(requests, partial(start, timeout=timeout_s)) as stream:
            try:
                async for response in stream:
                    yield response
            finally:
                stream.cancel()

    def _pauses(self, method: str, timeout_s: float) -> RetryPauses:
        return RetryPauses(timeout_s, f"calling {method}", patience_s=self._patience_s)

    def _callable(self, kind: Callable[..., Any], method: str, response_type: type[Message]) -> Any:
        call = kind(
            f"/{self._service}/{method}",
            request_serializer=_serialize,
            response_deserializer=response_type.FromString,
        )
        return partial(call, metadata=(*self._metadata, *self._credentials()))


def error_of(error: grpc.aio.AioRpcError) -> errors.KvquiltError:
    """The error that the service raised, or that gRPC reports in its place."""
    details: Any = dict(error.trailing_metadata() or ()).get(DETAILS_KEY)
    text = error.details() or error.code().name
    if details is None and error.code() is grpc.StatusCode.INTERNAL and _DIED.search(text):
        return errors.Unavailable("the service died while it was answering; retry")
    if details is None and error.code() is grpc.StatusCode.NOT_FOUND and (found := _NOT_DEPLOYED.match(text)):
        return errors.Unavailable(f"{found[1]} is not deployed where it was called; retry, or call another")
    if details is None and (found := _TOO_LARGE.search(text)):
        return errors.InvalidRequest(
            f"the message has {found[2]} bytes, more than the {found[3]} that are taken (docs/limits.md); "
            "send less at once"
        )
    return from_status(error.code().name, text, details)


@asynccontextmanager
async def _sending(
    requests: AsyncIterator[Message], start: Callable[[AsyncIterator[Message]], Any]
) -> AsyncIterator[Any]:
    """The call that ``start`` makes with ``requests``. Its failure is that of ``requests`` if these raise,
    else what the service said, also if gRPC says in its place that it could not send the next request."""
    failures: list[Exception] = []
    said: list[grpc.aio.AioRpcError] = []

    async def sent() -> AsyncIterator[Message]:
        try:
            async for request in requests:
                yield request
        except Exception as error:
            failures.append(error)
            raise

    def note(call: Any) -> None:
        end = _end_of(call)
        if end.code() not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED) and not _could_not_send(end):
            said.append(end)

    call = start(sent())
    call.add_done_callback(note)
    try:
        yield call
    except grpc.aio.AioRpcError as error:
        if failures:
            raise failures[0] from None
        if _could_not_send(error):
            error = said[0] if said else await _said_late(call)
        raise error_of(error) from None
    except asyncio.CancelledError:
        # gRPC cancels the call by itself when ``requests`` raises or one of them can no longer be sent.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        broke = errors.Unavailable("the connection broke while sending; retry")
        raise failures[0] if failures else error_of(said[0]) if said else broke from None


async def _said_late(call: Any) -> grpc.aio.AioRpcError:
    """How a call ended that could not send: gRPC may read only afterwards what the service said."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_SAID_LATE_S):
            while _could_not_send(_end_of(call)):
                await asyncio.sleep(0.001)
    return _end_of(call)


def _could_not_send(error: grpc.aio.AioRpcError) -> bool:
    return error.details() == _COULD_NOT_SEND


def _end_of(call: Any) -> grpc.aio.AioRpcError:
    """Of a call that has ended."""
    code, details, trailing = map(_result, (call.code(), call.details(), call.trailing_metadata()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)


def _result(ended: Coroutine[Any, Any, Any]) -> Any:
    """Of a coroutine that has nothing left to wait for."""
    try:
        ended.send(None)
    except StopIteration as stopped:
        return stopped.value
    raise AssertionError("the call has not ended")


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
