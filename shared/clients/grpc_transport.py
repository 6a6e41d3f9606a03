"""A gRPC channel as transport: from outside the cluster, between nodes, in integration tests."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import Message

from shared import errors
from shared.clients.transport import ResponseT
from shared.status import DETAILS_KEY, from_status

CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
RETRY_PAUSES_S = (0.2, 0.6, 1.8)
"""Long enough for a cluster to send callers to another node than the one that has just gone."""

# Ray Serve's proxy reports the death of a replica as internal, in Ray's words; gRPC's client a connection
# that broke in the middle of a call, in its own.
_DIED = re.compile(
    r"actor (died|is dead|is (temporarily )?unavailable)|^Internal error from Core$", re.IGNORECASE
)


class GrpcTransport:
    """Calls ``/{service}/{method}``; ``application`` is the routing key that Ray Serve's proxy needs
    (harmless elsewhere).

    ``retry_pauses_s``: a call that fails as unavailable before anything came back is made again after each of
    these, for services whose calls change nothing. Calls that send a stream are never repeated.
    """

    def __init__(
        self, channel: grpc.aio.Channel, service: str, application: str, retry_pauses_s: Sequence[float] = ()
    ) -> None:
        self._channel = channel
        self._service = service
        self._metadata = (("application", application),)
        self._retry_pauses_s = retry_pauses_s

    async def unary(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT:
        call = self._channel.unary_unary(
            self._path(method), request_serializer=_serialize, response_deserializer=response_type.FromString
        )
        deadline_s = time.monotonic() + timeout_s
        pauses_s = iter(self._retry_pauses_s)
        while True:
            try:
                response: ResponseT = await call(
                    request, metadata=self._metadata, timeout=deadline_s - time.monotonic()
                )
                return response
            except grpc.aio.AioRpcError as error:
                await _pause_or_raise(error_of(error), pauses_s, deadline_s)

    async def stream(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        deadline_s = time.monotonic() + timeout_s
        pauses_s = iter(self._retry_pauses_s)
        begun = False
        while True:
            try:
                async with aclosing(
                    self._stream(method, request, response_type, deadline_s - time.monotonic())
                ) as responses:
                    async for response in responses:
                        begun = True
                        yield response
                return
            except errors.Unavailable as error:
                if begun:
                    raise
                await _pause_or_raise(error, pauses_s, deadline_s)

    async def _stream(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        call = self._channel.unary_stream(
            self._path(method), request_serializer=_serialize, response_deserializer=response_type.FromString
        )(request, metadata=self._metadata, timeout=timeout_s)
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
        call = self._channel.stream_unary(
            self._path(method), request_serializer=_serialize, response_deserializer=response_type.FromString
        )
        failures: list[Exception] = []
        try:
            response: ResponseT = await call(
                _noting_failure(requests, failures), metadata=self._metadata, timeout=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            raise failures[0] if failures else error_of(error) from None
        except asyncio.CancelledError:
            # gRPC cancels the call by itself when ``requests`` raises or the connection breaks while one of
            # them is sent.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise (
                failures[0] if failures else errors.Unavailable("the connection broke while sending; retry")
            ) from None
        return response

    async def both_streams(
        self, method: str, requests: AsyncIterator[Message], response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        call = self._channel.stream_stream(
            self._path(method), request_serializer=_serialize, response_deserializer=response_type.FromString
        )
        failures: list[Exception] = []
        stream = call(_noting_failure(requests, failures), metadata=self._metadata, timeout=timeout_s)
        try:
            async for response in stream:
                yield response
        except grpc.aio.AioRpcError as error:
            raise failures[0] if failures else error_of(error) from None
        except asyncio.CancelledError:
            # gRPC cancels the call by itself when ``requests`` raises or the connection breaks while one of
            # them is sent.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise (
                failures[0] if failures else errors.Unavailable("the connection broke while sending; retry")
            ) from None
        finally:
            stream.cancel()

    def _path(self, method: str) -> str:
        return f"/{self._service}/{method}"


def error_of(error: grpc.aio.AioRpcError) -> errors.KvquiltError:
    """The error that the service raised, or that gRPC reports in its place."""
    details: Any = dict(error.trailing_metadata() or ()).get(DETAILS_KEY)
    text = error.details() or error.code().name
    if details is None and error.code() is grpc.StatusCode.INTERNAL and _DIED.search(text):
        return errors.Unavailable("the service died while it was answering; retry")
    return from_status(error.code().name, text, details)


async def _pause_or_raise(error: errors.KvquiltError, pauses_s: Iterator[float], deadline_s: float) -> None:
    """Returns when the call may be made again."""
    pause_s = next(pauses_s, None) if isinstance(error, errors.Unavailable) else None
    if pause_s is None or time.monotonic() + pause_s >= deadline_s:
        raise error from None
    await asyncio.sleep(pause_s)


async def _noting_failure(
    requests: AsyncIterator[Message], failures: list[Exception]
) -> AsyncIterator[Message]:
    try:
        async for request in requests:
            yield request
    except Exception as error:
        failures.append(error)
        raise


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
