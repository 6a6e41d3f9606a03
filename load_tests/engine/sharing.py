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
from shared.engine import Engine, EngineConfig
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.told import TokenEvent
from shared.measuring.asking import AskedTogether, random_ids
from shared.measuring.shapes import Shape, build_model


@dataclass(frozen=True, slots=True)
class Crowd:
    """``num_requests`` of ``num_chunks`` each, ``num_shared`` of which all have; every request decodes
    ``decode`` tokens."""

    shape: Shape
    num_requests: int = 32
    num_chunks: int = 16
    num_shared: int = 14
    chunk_len: int = 512
    question: int = 16
    decode: int = 16
    threads: int = 0
    device: str = "cpu"

    @property
    def num_unique(self) -> int:
        return self.num_shared + self.num_requests * (self.num_chunks - self.num_shared)

    def bytes_of(self, num_chunks: int) -> int:
        """Of resident chunks."""
        return num_chunks * self.chunk_len * self.shape.kv_bytes_per_token

    def private_bytes(self, num_generated: float) -> float:
        """Of all requests' own KV, when each has generated so many tokens."""
        return self.num_requests * (self.question + num_generated) * self.shape.kv_bytes_per_token

    def requests(self, shared: bool) -> list[GenerateRequest]:
        return [self._request(number, shared) for number in range(self.num_requests)]

    def _request(self, number: int, shared: bool) -> GenerateRequest:
        names = [f"own-{number}-{i}" for i in range(self.num_chunks - self.num_shared)]
        names += [f"shared-{i}" for i in range(self.num_shared)]
        random.Random(number).shuffle(names)
        chunks = tuple(
            Chunk(name if shared else f"{number}-{name}", random_ids(name, self.chunk_len, self.shape.vocab))
            for name in names
        )
        question = random_ids(f"question-{number}", self.question, self.shape.vocab)
        sampling = SamplingParams(max_tokens=1 + self.decode, ignore_eos=True)
        return GenerateRequest(f"crowd-{number}", (), chunks, (question,), sampling=sampling)


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """``tokens_per_s`` while all decode; bytes of KV at that time."""

    tokens_per_s: float
    held_bytes: int


class CrowdEngine:
    """Serves one variant, in a process of its own: what it holds must not weigh on the other."""

    def __init__(self, crowd: Crowd, shared: bool) -> None:
        self._requests = crowd.requests(shared)
        copies = crowd.num_unique if shared else crowd.num_requests * crowd.num_chunks
        config = EngineConfig(
            dtype="bfloat16",
            device=crowd.device,
            num_threads=crowd.threads,
            resident_bytes=2 * crowd.bytes_of(copies),
            max_running_branches=max(64, crowd.num_requests),
        )
        source = HostKv(crowd.shape, crowd.chunk_len)
        self._engine = Engine(build_model(crowd.shape, crowd.device), config, source)

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
