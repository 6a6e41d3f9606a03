"""Clients of ``/v1/chat/completions`` that hand a streamed answer over as lines: OpenAI's own, and a bare one
whose work is as little as that of gRPC's client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

import aiohttp
import openai

from shared.errors import FailedPrecondition, Unavailable


class HttpClient(Protocol):
    """Raises ``Unavailable`` where nobody answers, ``FailedPrecondition`` of what is refused."""

    async def first_model(self) -> str:
        """Returns the id of the first model that is listed."""
        ...

    def lines(
        self, body: dict[str, Any], extension: dict[str, Any]
    ) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """Asks and yields the lines of the answer as they come. ``extension``: parameters of the body that
        OpenAI has not."""
        ...


class OpenAiClient:
    """Asks as those do who use OpenAI's package."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client

    async def first_model(self) -> str:
        with self._typed_errors():
            return (await self._client.models.list()).data[0].id

    @asynccontextmanager
    async def lines(
        self, body: dict[str, Any], extension: dict[str, Any]
    ) -> AsyncIterator[AsyncIterator[str]]:
        create = self._client.chat.completions.with_streaming_response.create
        with self._typed_errors():
            async with create(**body, extra_body=extension) as response:
                yield response.iter_lines()

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except openai.APIConnectionError as error:
            raise _unavailable(self._client.base_url, error) from error
        except openai.APIStatusError as error:
            raise _refused(error.status_code, error.message) from error


class BareClient:
    """Sends the body and splits what comes back into lines, nothing else."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session, self._base_url = session, base_url

    async def first_model(self) -> str:
        async with self._sent("GET", "/models") as response:
            listed = await response.json()
            return str(listed["data"][0]["id"])

    @asynccontextmanager
    async def lines(
        self, body: dict[str, Any], extension: dict[str, Any]
    ) -> AsyncIterator[AsyncIterator[str]]:
        async with self._sent("POST", "/chat/completions", body | extension) as response:
            yield (line.decode().rstrip("\r\n") async for line in response.content)

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(method, self._base_url + path, json=body) as response:
                if not response.ok:
                    raise _refused(response.status, await response.text())
                yield response
        except aiohttp.ClientError as error:
            raise _unavailable(self._base_url, error) from error


def openai_client(address: str, key: str = "") -> openai.AsyncOpenAI:
    """``address``: as `kvquilt status` prints it, ``http://HOST:PORT``. ``key``: where callers have keys."""
    return openai.AsyncOpenAI(base_url=_base_url(address), api_key=key or "none", max_retries=0)


@asynccontextmanager
async def bare_client(address: str, key: str = "") -> AsyncIterator[BareClient]:
    """As ``openai_client``."""
    headers = {"authorization": f"Bearer {key}"} if key else None
    endless = aiohttp.ClientTimeout(total=None)  # the deadline goes with the request
    async with aiohttp.ClientSession(headers=headers, timeout=endless) as session:
        yield BareClient(session, _base_url(address))


def _base_url(address: str) -> str:
    return f"{address.rstrip('/')}/v1"


def _unavailable(base_url: object, error: Exception) -> Unavailable:
    return Unavailable(f"cannot ask over HTTP at {base_url}: {error}")


def _refused(status: int, message: str) -> FailedPrecondition:
    return FailedPrecondition(f"over HTTP: status {status}: {message}")
