"""Asks for chunks whose KV comes late: always loaded, always computed, or as the engine chooses.

All three have the same model. The KV is random and lies in host memory; whoever opens it waits first.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from enum import StrEnum

from load_tests.engine.host_kv import HostKv
from shared.engine.kv.late_chunks import LateCounts
from shared.engine.kv.source import StoredSegment
from shared.generation.asked import Chunk
from shared.measuring.asking import timings_of
from shared.measuring.case import Case
from shared.measuring.shapes import Shape, build_model

LATE_ROWS = 512
"""Of a step, that late chunks may have."""


class WhichFirst(StrEnum):
    LOAD = "load"
    COMPUTE = "compute"
    EITHER = "either"


class DelayedKv(HostKv):
    """Has every chunk, ``delay_s`` later."""

    def __init__(self, shape: Shape, chunk_len: int, device: str) -> None:
        super().__init__(shape, chunk_len, device)
        self.delay_s = 0.0

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        time.sleep(self.delay_s)
        return super().open(chunk_lens, encoding, traceparent, tenant)


class LateLoads:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._kv = DelayedKv(case.shape, case.chunk_len, case.device)
        self._names = itertools.count()
        model = build_model(case.shape, case.device)
        room = 3 * case.prompt_len * case.shape.kv_bytes_per_token
        late_rows = {WhichFirst.LOAD: 0, WhichFirst.COMPUTE: 0, WhichFirst.EITHER: LATE_ROWS}
        self._engines = {
            way: case.build_engine(
                None if way is WhichFirst.COMPUTE else self._kv,
                model,
                resident_bytes=room,
                late_rows=late_rows[way],
            )
            for way in WhichFirst
        }
        for way in WhichFirst:
            self.ttft_s(way, 0.0)

    @property
    def counts(self) -> LateCounts:
        """Of ``EITHER``."""
        return self._engines[WhichFirst.EITHER].stats().late

    def ttft_s(self, way: WhichFirst, delay_s: float) -> float:
        """From the request's arrival to the first token, over chunks that nobody asked for before.

        Raises:
            KvquiltError: the request failed.
        """
        self._kv.delay_s = delay_s
        number = next(self._names)
        chunks = [Chunk(f"late-{number}-{c}", ids) for c, ids in enumerate(self._case.chunks())]
        request = self._case.request(f"late-{number}", chunks, self._case.questions(1))
        return timings_of(self._engines[way], request).first_token_s
