"""Asks several requests at once, each over a context of its own: time until all have their first token
(TurboRAG, Table 4).

The chunks' KV is random and lies in host memory. It is resident when the requests come, or has to be brought
to the device first.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

from load_tests.engine.host_kv import HostKv
from shared.generation.asked import Chunk, GenerateRequest
from shared.measuring.asking import AskedTogether
from shared.measuring.case import Case
from shared.measuring.rates import now_s


class BatchEngine:
    """Counts in ``loaded_tokens`` those whose KV had to be brought, over all requests."""

    def __init__(self, case: Case, max_batch: int) -> None:
        self._case = case
        self.loaded_tokens = 0
        self._numbers = itertools.count()
        self._engine = case.build_engine(
            HostKv(case.shape, case.chunk_len, case.device),
            resident_bytes=3 * max_batch * case.prompt_len * case.shape.kv_bytes_per_token,
            max_step_tokens=max(2048, max_batch * case.question),
            loader_threads=1,  # nothing is read: all that a thread does is to order copies
        )
        for transfer in (True, True, False, False):  # the pool is full then: its memory is used again
            self.ttft_s(max_batch, transfer)
        self.loaded_tokens = 0

    def ttft_s(self, batch: int, transfer: bool, context: int | None = None) -> float:
        """From the requests' arrival until all have their first token. ``context``: other than the case's.

        Raises:
            KvquiltError: a request failed.
        """
        case = self._case if context is None else replace(self._case, context=context)
        number = next(self._numbers)
        requests = [
            _request(case, f"batch-{number}-{i}", i, f"{number}-{i}" if transfer else f"resident-{i}")
            for i in range(batch)
        ]
        started = now_s(self._case.device)
        asked = AskedTogether(self._engine, requests)
        asked.run()
        elapsed = time.perf_counter() - started
        self.loaded_tokens += sum(done.usage.loaded_tokens for done in asked.done)
        return elapsed


def _request(case: Case, name: str, index: int, context: str) -> GenerateRequest:
    """Chunks go by their number and length: the engine takes an identity for what it is."""
    chunks = [Chunk(f"{context}-{c}-{len(ids)}", ids) for c, ids in enumerate(case.chunks())]
    return case.request(name, chunks, case.questions(index + 1)[index:])
