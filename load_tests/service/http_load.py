"""Asks over HTTP what ``QuestionLoad`` asks over gRPC."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from load_tests.service.driver import OnToken
from load_tests.service.http_clients import HttpClient
from load_tests.service.loads import QuestionLoad
from load_tests.service.sample import MS, Reply
from shared.errors import Unavailable
from shared.generation.orders import AskedMode
from shared.generation.told import Timings, Usage

_DATA, _DONE = "data: ", "[DONE]"


class HttpLoad:
    """``/v1/chat/completions``, streamed: the questions of ``load``, one per request. What comes back is read
    as lines, so that the client's own work is little."""

    def __init__(self, client: HttpClient, load: QuestionLoad) -> None:
        self._client = client
        self._load = load
        self._model = ""

    async def ask(self, number: int, reuse: AskedMode, on_token: OnToken) -> Reply:
        """As of a ``Load``. The first token is the first chunk behind that of the role; where the text of
        several tokens comes in one chunk, they count as one."""
        self._model = self._model or await self._client.first_model()
        async with self._client.lines(*self._request(number, reuse)) as lines:
            return await _reply(lines, on_token)

    def _request(self, number: int, reuse: AskedMode) -> tuple[dict[str, Any], dict[str, Any]]:
        plan, context = self._load.plan, self._load.new_context()
        (question,) = self._load.questions(number)
        extension = {
            "collection": plan.collection,
            "mode": str(reuse),
            "tenant": context.tenant,
            "deadline_ms": int(context.remaining_s * MS),
            "top_k": plan.k or None,
            "ignore_eos": plan.ignore_eos,
            "stream_interval_ms": context.stream_interval_ms,
        }
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": plan.num_generated or None,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body, extension


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
            if choice["finish_reason"] is None and "role" not in choice["delta"]:
                on_token((0, choice["index"]))
        timings_ms = chunk.get("kvquilt", {}).get("timings_ms", timings_ms)
        cost = chunk.get("usage") or cost
    raise Unavailable("the stream ended before the answer was whole; retry")
