"""Asks the engine, with the chunks' KV resident."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

from load_tests.engine.ceilings import Ceiling, ceiling_of
from shared.engine.model.int8 import int8_bytes
from shared.engine.model.packing import packed_bytes
from shared.engine_config import GIB, Weights
from shared.generation.asked import Chunk, GenerateRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import BranchDoneEvent, Timings, TokenEvent
from shared.identity import ids_hash
from shared.measuring.asking import AskedTogether, timings_of
from shared.measuring.case import ADAPTER, Case


class Ours:
    """The engine, asked about the same chunks in another order each time."""

    def __init__(
        self,
        case: Case,
        batch_invariant: bool = False,
        cuda_graphs: bool = True,
        weights: Weights = "exact",
        adapter_rank: int = 0,
    ) -> None:
        """``adapter_rank``: of the adapter that requests go with, if it is not 0."""
        self._case, self._adapter = case, ADAPTER if adapter_rank else ""
        self._engine = case.build_engine(
            adapter_rank=adapter_rank,
            batch_invariant=batch_invariant,
            compile=case.compile and not batch_invariant,
            cuda_graphs=cuda_graphs,
            weights=weights,
            resident_bytes=64 * GIB,
        )
        self._chunks = [Chunk(ids_hash(ids), ids) for ids in case.chunks()]
        self._names = itertools.count()
        self._ask(1, 1)  # computes the chunks' KV, once

    def stitched_s(self, reuse: ReuseMode = ReuseMode.REORDERED) -> float:
        """From "placements known" to the first token, chunks in random order."""
        return self._ask(1, 1, reuse=reuse).engine_ttft_s

    def decode_rate(
        self, num_questions: int, temperature: float = 0.0, reuse: ReuseMode = ReuseMode.REORDERED
    ) -> float:
        """Tokens per second while all questions decode, over one context: their first tokens may need several
        passes, and those are no decoding."""
        request = self._request(num_questions, 1 + self._case.decode, temperature, reuse=reuse)
        asked = AskedTogether(self._engine, [request])
        (events,) = asked.events

        def tokens() -> list[int]:
            return [event.question for event in events if isinstance(event, TokenEvent)]

        asked.run(lambda: len(set(tokens())) == num_questions)
        started, before = time.perf_counter(), len(tokens())
        asked.run(lambda: any(isinstance(event, BranchDoneEvent) for event in events))
        rate = (len(tokens()) - before) / (time.perf_counter() - started)
        asked.run()
        return rate

    def recomputed_s(self, ratio: float) -> float:
        """From the request's arrival to the first token, that share of the context computed anew."""
        recompute = Recompute(ratio=ratio)
        return self._ask(1, 1, reuse=ReuseMode.RANDOM, recompute=recompute).first_token_s

    def stitched_ceiling(self) -> Ceiling:
        """Of the kernels of ``stitched_s``, each alone at its best."""
        return ceiling_of(self.stitched_s)

    def kv_bytes(self) -> int:
        """Resident, of all chunks."""
        return self._engine.stats().resident_bytes

    def packed_bytes(self) -> int:
        """Of weights arranged for the CPU's matrix units, or for the kernels of int8 ones."""
        return packed_bytes(self._engine.model.hf_model) + int8_bytes(self._engine.model.hf_model)

    def _ask(self, num_questions: int, num_tokens: int, **more: Any) -> Timings:
        return timings_of(self._engine, self._request(num_questions, num_tokens, **more))

    def _request(
        self, num_questions: int, num_tokens: int, temperature: float = 0.0, **more: Any
    ) -> GenerateRequest:
        number = next(self._names)
        return self._case.request(
            f"benchmark-{number}",
            random.Random(number).sample(self._chunks, len(self._chunks)),
            self._case.questions(num_questions),
            num_tokens=num_tokens,
            temperature=temperature,
            adapter=self._adapter,
            **more,
        )
