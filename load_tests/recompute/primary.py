"""Does the primary model's part: first tokens by the engine, with the chunks' KV resident or on its way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from load_tests.engine.host_kv import HostKv
from shared.engine.kv.source import StoredSegment
from shared.engine_config import GIB
from shared.generation.asked import Chunk, GenerateRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.measuring.asking import AskedTogether
from shared.measuring.case import Case, Ids

Tokens = tuple[int, ...]
_RESIDENT = "resident"


class LateKv(HostKv):
    """Has every chunk, but opening them takes ``delay_s``, and of that no processor."""

    delay_s = 0.0

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        time.sleep(self.delay_s)
        return super().open(chunk_lens, encoding)


@dataclass(frozen=True, slots=True)
class First:
    """Seconds from the request's arrival: until the engine could begin to compute, and until the first
    token. ``hidden``: the share of the selection's time in which the request waited for something else;
    without a selection 1."""

    placed_s: float
    token_s: float
    hidden: float = 1.0


class Primary:
    """One question on one context, asked over and over."""

    def __init__(self, case: Case, chunks: list[Ids], question: Ids) -> None:
        self._case, self._chunks, self._question = case, chunks, question
        self._source = LateKv(case.shape, case.chunk_len)
        self._engine = case.build_engine(self._source, resident_bytes=64 * GIB)
        self._numbers = itertools.count()
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="select")
        self.resident_s(ReuseMode.REORDERED)  # makes them so

    def resident_s(self, reuse: ReuseMode, tokens: Tokens = ()) -> float:
        """To the first token, with the chunks' KV there. ``tokens``: what mode ``tokens`` computes anew."""
        return self._first(self._request(reuse, _RESIDENT, tokens)).token_s

    def loading(self, tokens: Tokens, delay_s: float) -> First:
        """Chunks that nobody has seen yet; ``tokens`` are known from the beginning."""
        self._source.delay_s = delay_s
        return self._first(self._request(ReuseMode.TOKENS, f"loading-{next(self._numbers)}", tokens))

    def selecting(self, select: Callable[[], Tokens], delay_s: float) -> First:
        """The same, and what to compute anew is found in another thread meanwhile."""
        self._source.delay_s = delay_s
        return self._first(self._request(ReuseMode.CACHECLIP, f"selecting-{next(self._numbers)}"), select)

    def close(self) -> None:
        self._beside.shutdown()
        self._engine.shut_down()

    def _request(self, reuse: ReuseMode, context: str, tokens: Tokens = ()) -> GenerateRequest:
        return self._case.request(
            f"recompute-{next(self._numbers)}",
            [Chunk(f"{context}-{index}", ids) for index, ids in enumerate(self._chunks)],
            [self._question],
            reuse,
            recompute=Recompute(tokens=tokens),
        )

    def _first(self, request: GenerateRequest, select: Callable[[], Tokens] | None = None) -> First:
        """
        Raises:
            KvquiltError: the request failed.
        """
        asked = AskedTogether(self._engine, [request])
        selecting = self._beside.submit(self._decide, request.request_id, select) if select else None
        asked.run(lambda: bool(asked.done or (selecting and selecting.done() and selecting.exception())))
        select_s = selecting.result() if selecting else 0.0  # what it raised, it raises here
        timings = asked.done[0].timings
        wait_s = timings.select_wait_s
        hidden = max(0.0, 1.0 - wait_s / select_s) if select_s else 1.0
        return First(timings.queue_s + timings.load_s + wait_s, timings.first_token_s, hidden)

    def _decide(self, request_id: str, select: Callable[[], Tokens]) -> float:
        """Returns how many seconds it took."""
        started = time.perf_counter()
        self._engine.decide(request_id, ReuseMode.TOKENS, Recompute(tokens=select()))
        return time.perf_counter() - started
