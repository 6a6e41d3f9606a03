"""A service of known capacity in virtual time, and samples made by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from load_tests.service.driver import OnToken, Progress
from load_tests.service.result import RateResult
from load_tests.service.sample import OK, Reply, Sample
from shared.errors import KvquiltError
from shared.generation.orders import AskedMode
from shared.generation.told import Timings, Usage


@dataclass
class SimulatedService:
    """One request at a time, ``service_s[mode]`` until its first token and ``token_s`` per further one. It is
    right about its own times, and a wire that costs ``wire_s`` lies in front of it."""

    service_s: dict[str, float]
    token_s: float = 0.0
    num_tokens: int = 3
    wire_s: float = 0.0
    fail: Callable[[int], KvquiltError | None] = lambda number: None
    asked: list[tuple[int, str]] = field(default_factory=list)
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, number: int, reuse: AskedMode, on_token: OnToken) -> Reply:
        self.asked.append((number, reuse))
        await asyncio.sleep(self.wire_s)
        if (error := self.fail(number)) is not None:
            raise error
        async with self._busy:
            await asyncio.sleep(self.service_s[reuse])
            on_token((0, 0))
            for _ in range(self.num_tokens - 1):
                await asyncio.sleep(self.token_s)
                on_token((0, 0))
        first_s = self.service_s[reuse]
        decode_s = self.token_s * (self.num_tokens - 1)
        timings = Timings(
            prefill_s=first_s, decode_s=decode_s, total_s=first_s + decode_s, engine_ttft_s=first_s
        )
        reused = 0 if reuse == "full" else 80
        return Reply(
            Usage(100, reused, 100 - reused, self.num_tokens, 20 if reused else 0),
            timings,
            ((number % 7,) * self.num_tokens,),
        )


class Witness:
    """A ``Watcher`` that remembers."""

    def __init__(self) -> None:
        self.results: list[RateResult] = []
        self.said: list[str] = []

    def doing(self, what: str) -> None:
        self.said.append(what)

    def under_way(self, reuse: str, rate: float, progress: Progress) -> None:
        pass

    def measured(self, result: RateResult) -> None:
        self.results.append(result)


def sample(
    index: int = 0,
    ttft_ms: float = 100.0,
    tpot_ms: float = 10.0,
    status: str = OK,
    num_tokens: int = 3,
    intended_s: float = 0.0,
) -> Sample:
    """Sent in time, answered as said."""
    if status != OK:
        return Sample(index, intended_s, intended_s).end(intended_s + 0.01, status, f"why it was {status}")
    first_s = intended_s + ttft_ms / 1000
    last_s = first_s + tpot_ms / 1000 * (num_tokens - 1)
    reply = Reply(
        Usage(100, 80, 20, num_tokens, 30),
        Timings(engine_ttft_s=(ttft_ms - 5) / 1000, queue_s=0.001),
        ((1,) * num_tokens,),
    )
    branch_lens = Counter({(0, 0): num_tokens})
    return Sample(index, intended_s, intended_s, first_s, last_s, branch_lens).end(last_s, OK, reply=reply)
