"""Serves many requests over mostly the same chunks, each in an order of its own: one resident copy per chunk,
against a copy per request.

The same engine does both. Where nothing is shared, every request's chunks have identities of their own, so
that the engine cannot know that they are the same. The chunks' KV is random and comes from a source: only
decoding is measured.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from load_tests.engine.host_kv import HostKv
from shared.generation.asked import Chunk, GenerateRequest
from shared.generation.told import TokenEvent
from shared.measuring.asking import AskedTogether, random_ids
from shared.measuring.case import Case
from shared.measuring.rates import Rates


@dataclass(frozen=True, slots=True)
class Crowd:
    """``num_requests`` of ``case``, all of whose chunks but ``num_own`` are the same for all."""

    case: Case
    num_requests: int = 32
    num_own: int = 2

    @property
    def num_chunks(self) -> int:
        return len(self.case.chunk_lens)

    def num_copies(self, shared: bool) -> int:
        """Of chunks, as many as must be resident."""
        if not shared:
            return self.num_requests * self.num_chunks
        return self.num_chunks + (self.num_requests - 1) * self.num_own

    def bytes_of(self, num_chunks: int) -> int:
        """Of resident chunks."""
        return num_chunks * self.case.chunk_len * self.case.shape.kv_bytes_per_token

    def private_bytes(self, num_generated: float) -> float:
        """Of all requests' own KV, when each has generated so many tokens."""
        return self.num_requests * (self.case.question + num_generated) * self.case.shape.kv_bytes_per_token

    def step_limit_s(self, shared: bool, rates: Rates) -> float:
        """Of a step in which all decode, on average half decoded."""
        shape = self.case.shape
        stored, private = self.bytes_of(self.num_copies(shared)), self.private_bytes(self.case.decode / 2)
        flops = self.num_requests * shape.flops(1, self.case.context)
        return rates.limit_s(flops, shape.bytes_read(0) + stored + private)

    def requests(self, shared: bool) -> list[GenerateRequest]:
        return [self._request(number, shared) for number in range(self.num_requests)]

    def _request(self, number: int, shared: bool) -> GenerateRequest:
        case = self.case
        names = [f"own-{number}-{i}" for i in range(self.num_own)]
        names += [f"shared-{i}" for i in range(self.num_chunks - self.num_own)]
        random.Random(number).shuffle(names)
        chunks = [
            Chunk(name if shared else f"{number}-{name}", random_ids(name, case.chunk_len, case.shape.vocab))
            for name in names
        ]
        question = case.questions(number + 1)[number:]
        return case.request(f"crowd-{number}", chunks, question, num_tokens=1 + case.decode)


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """``tokens_per_s`` while all decode; bytes of KV at that time."""

    tokens_per_s: float
    held_bytes: int


class CrowdEngine:
    """Serves one variant, in a process of its own: what it holds must not weigh on the other."""

    def __init__(self, crowd: Crowd, shared: bool) -> None:
        self._requests = crowd.requests(shared)
        self._engine = crowd.case.build_engine(
            HostKv(crowd.case.shape, crowd.case.chunk_len, crowd.case.device),
            resident_bytes=2 * crowd.bytes_of(crowd.num_copies(shared)),
            max_running_branches=max(64, crowd.num_requests),
        )

    def run(self) -> CrowdResult:
        """
        Raises:
            KvquiltError: a request failed.
        """
        asked = AskedTogether(self._engine, self._requests)

        def num_tokens() -> list[int]:
            return [sum(isinstance(event, TokenEvent) for event in events) for events in asked.events]

        asked.run(lambda: all(num_tokens()))
        begin, before = time.perf_counter(), sum(num_tokens())
        stats = self._engine.stats()
        asked.run(lambda: bool(asked.done))
        rate = (sum(num_tokens()) - before) / (time.perf_counter() - begin)
        asked.run()
        return CrowdResult(rate, stats.resident_bytes + stats.private_bytes)
