"""Many requests over mostly the same chunks, each in an order of its own: one resident copy per chunk,
against a copy per request.

The same engine does both. Where nothing is shared, every request's chunks have identities of their own, so
that the engine cannot know that they are the same. The chunks' KV is random and comes from a source: only
decoding is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from load_tests.engine.host_kv import HostKv
from shared.engine import Engine, EngineConfig
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.told import DoneEvent, Event, FailedEvent, TokenEvent
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

    def requests(self, shared: bool) -> list[GenerateRequest]:
        return [self._request(number, shared) for number in range(self.num_requests)]

    def _request(self, number: int, shared: bool) -> GenerateRequest:
        def chunk(name: str) -> Chunk:
            noise = random.Random(name)
            ids = tuple(noise.randrange(self.shape.vocab) for _ in range(self.chunk_len))
            return Chunk(name if shared else f"{number}-{name}", ids)

        own = [f"own-{number}-{i}" for i in range(self.num_chunks - self.num_shared)]
        chunks = [chunk(name) for name in [*own, *(f"shared-{i}" for i in range(self.num_shared))]]
        random.Random(number).shuffle(chunks)
        question = tuple(
            random.Random(f"question-{number}").randrange(self.shape.vocab) for _ in range(self.question)
        )
        sampling = SamplingParams(max_tokens=1 + self.decode, ignore_eos=True)
        return GenerateRequest(
            f"{'shared' if shared else 'alone'}-{number}", (), tuple(chunks), (question,), sampling=sampling
        )


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """``tokens_per_s`` while all decode; bytes of KV at that time."""

    tokens_per_s: float
    resident_bytes: int
    private_bytes: int


class CrowdEngine:
    """In a process of its own: what one variant holds must not weigh on the other."""

    def __init__(self, crowd: Crowd, shared: bool) -> None:
        self._crowd, self._requests = crowd, crowd.requests(shared)
        copies = crowd.num_unique if shared else crowd.num_requests * crowd.num_chunks
        config = EngineConfig(
            dtype="bfloat16",
            device=crowd.device,
            num_threads=crowd.threads,
            resident_bytes=2 * crowd.bytes_of(copies),
            max_running_branches=max(64, crowd.num_requests),
        )
        self._engine = Engine(
            build_model(crowd.shape, crowd.device), config, HostKv(crowd.shape, crowd.chunk_len)
        )

    def run(self) -> CrowdResult:
        """
        Raises:
            KvquiltError: a request failed.
        """
        sinks: list[list[Event]] = [[] for _ in self._requests]
        for request, sink in zip(self._requests, sinks, strict=True):
            self._engine.submit(request, sink.append)
        while not all(any(isinstance(event, TokenEvent) for event in sink) for sink in sinks):
            self._step()
        begin, before = time.perf_counter(), _num_tokens(sinks)
        stats = self._engine.stats()
        while not any(isinstance(event, DoneEvent) for sink in sinks for event in sink):
            self._step()
            for sink in sinks:
                if sink and isinstance(sink[-1], FailedEvent):
                    raise sink[-1].error
        rate = (_num_tokens(sinks) - before) / (time.perf_counter() - begin)
        while not all(isinstance(sink[-1], DoneEvent) for sink in sinks):
            self._step()
        return CrowdResult(rate, stats.resident_bytes, stats.private_bytes)

    def _step(self) -> None:
        if not self._engine.step():
            time.sleep(0.001)


def _num_tokens(sinks: Sequence[Sequence[Event]]) -> int:
    return sum(isinstance(event, TokenEvent) for sink in sinks for event in sink)
