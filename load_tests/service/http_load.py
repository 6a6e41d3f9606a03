"""Asks over HTTP, as OpenAI's clients do, what ``QuestionLoad`` asks over gRPC."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai

from load_tests.service.driver import OnToken
from load_tests.service.loads import QuestionLoad
from load_tests.service.sample import MS, Reply
from shared.errors import FailedPrecondition, Unavailable
from shared.generation.orders import AskedMode
from shared.generation.told import Timings, Usage

_DATA, _DONE = "data: ", "[DONE]"


def http_client(address: str, key: str = "") -> openai.AsyncOpenAI:
    """``address``: as `kvquilt status` prints it, ``http://HOST:PORT``. ``key``: where callers have keys."""
    return openai.AsyncOpenAI(base_url=f"{address.rstrip('/')}/v1", api_key=key or "none", max_retries=0)


class HttpLoad:
    """``/v1/chat/completions``, streamed: the questions of ``load``, one per request. What comes back is read
    as lines, so that the client's own work is little."""

    def __init__(self, client: openai.AsyncOpenAI, load: QuestionLoad) -> None:
        self._client = client
        self._load = load
        self._model = ""

    async def ask(self, number: int, reuse: AskedMode, on_token: OnToken) -> Reply:
        """As of a ``Load``. The first token is the first chunk; where the text of several tokens comes in one
        chunk, they count as one."""
        try:
            self._model = self._model or (await self._client.models.list()).data[0].id
            streaming = self._client.chat.completions.with_streaming_response
            async with streaming.create(**self._request(number, reuse)) as response:
                return await _reply(response.iter_lines(), on_token)
        except openai.APIConnectionError as error:
            raise Unavailable(f"cannot ask over HTTP at {self._client.base_url}: {error}") from error
        except openai.APIStatusError as error:
            raise FailedPrecondition(f"over HTTP: status {error.status_code}: {error.message}") from error

    def _request(self, number: int, reuse: AskedMode) -> dict[str, Any]:
        plan, context = self._load.plan, self._load.new_context()
        (question,) = self._load.questions(number)
        ours = {
            "collection": plan.collection,
            "mode": str(reuse),
            "tenant": context.tenant,
            "deadline_ms": int(context.remaining_s * MS),
            "top_k": plan.k or None,
            "ignore_eos": plan.ignore_eos,
        }
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": plan.num_generated or None,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_body": ours,
        }


async def _reply(lines: AsyncIterator[str], on_token: OnToken) -> Reply:
    cost: dict[str, Any] = {}
    timings_ms: dict[str, float] = {}
    async for line in lines:
        if line == _DATA + _DONE:
            cached = cost["prompt_tokens_details"]["cached_tokens"]
            prompt, generated = cost["prompt_tokens"], cost["completion_tokens"]
            usage = Usage(prompt, cached, prompt - cached, generated)
            return Reply(usage, Timings(**{f"{name}_s": ms / MS for name, ms in timings_ms.items()}))
        if not line.startswith(_DATA):
            continue
        chunk = json.loads(line.removeprefix(_DATA))
        if "error" in chunk:
            raise Unavailable(f"over HTTP: {chunk['error']['message']}")
        for choice in chunk["choices"]:
            if choice["finish_reason"] is None:
                on_token((0, choice["index"]))
        timings_ms = chunk.get("kvquilt", {}).get("timings_ms", timings_ms)
        cost = chunk.get("usage") or cost
    raise Unavailable("the stream ended before the answer was whole; retry")
