"""The primary model's part: first tokens by the engine, with the chunks' KV resident or on its way."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from load_tests.engine.case import Case, Ids
from load_tests.engine.host_kv import HostKv
from shared.engine import Engine, EngineConfig
from shared.engine.model import LoadedModel
from shared.engine.source import StoredSegment
from shared.engine.types import (
    Chunk,
    DoneEvent,
    Event,
    FailedEvent,
    GenerateRequest,
    Recompute,
    ReuseMode,
    SamplingParams,
    TokenEvent,
)
from shared.engine_config import GIB

Tokens = tuple[int, ...]
_RESIDENT = "resident"
_PAUSE_S = 0.0005


class LateKv(HostKv):
    """Has every chunk, but opening them takes ``delay_s``, and of that no processor."""

    delay_s = 0.0

    def open(self, chunk_lens: Mapping[str, int], encoding: str = "") -> Mapping[str, StoredSegment]:
        time.sleep(self.delay_s)
        return super().open(chunk_lens, encoding)


class Primary:
    """One question on one context, asked over and over. Seconds run from the request's arrival to its first token."""

    def __init__(self, case: Case, model: LoadedModel, chunks: list[Ids], question: Ids) -> None:
        self._case, self._chunks, self._question = case, chunks, question
        self._source = LateKv(case.shape, case.chunk_len)
        config = EngineConfig(dtype="bfloat16", num_threads=case.threads, resident_bytes=64 * GIB)
        self._engine = Engine(model, config, self._source)
        self._numbers = itertools.count()
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="select")
        self.resident_s(ReuseMode.REORDERED)  # makes them so

    def resident_s(self, reuse: ReuseMode, tokens: Tokens = ()) -> float:
        """The chunks' KV is there. ``tokens``: what mode ``tokens`` computes anew."""
        return self._ttft_s(self._request(reuse, _RESIDENT, tokens))

    def loading_s(self, tokens: Tokens, delay_s: float) -> float:
        """Chunks that nobody has seen yet; ``tokens`` are known from the beginning."""
        self._source.delay_s = delay_s
        return self._ttft_s(self._request(ReuseMode.TOKENS, f"loading-{next(self._numbers)}", tokens))

    def selecting_s(self, select: Callable[[], Tokens], delay_s: float) -> float:
        """The same, and what to compute anew is found in another thread meanwhile."""
        self._source.delay_s = delay_s
        return self._ttft_s(self._request(ReuseMode.CACHECLIP, f"selecting-{next(self._numbers)}"), select)

    def close(self) -> None:
        self._beside.shutdown()
        self._engine.shut_down()

    def _request(self, reuse: ReuseMode, context: str, tokens: Tokens = ()) -> GenerateRequest:
        return GenerateRequest(
            f"recompute-{next(self._numbers)}",
            self._case.prefix_ids(),
            tuple(Chunk(f"{context}-{index}", ids) for index, ids in enumerate(self._chunks)),
            (self._question,),
            reuse,
            SamplingParams(max_tokens=1, ignore_eos=True),
            recompute=Recompute(tokens=tokens),
        )

    def _ttft_s(self, request: GenerateRequest, select: Callable[[], Tokens] | None = None) -> float:
        """
        Raises:
            KvquiltError: the request failed.
        """
        events: deque[Event] = deque()
        first_token_s, started = 0.0, time.perf_counter()
        self._engine.submit(request, events.append)
        selecting = self._beside.submit(self._decide, request.request_id, select) if select else None
        while True:
            if not self._engine.step():
                time.sleep(_PAUSE_S)
            if selecting is not None and selecting.done():
                selecting.result()  # what it raised, it raises here
            while events:
                match events.popleft():
                    case TokenEvent():
                        first_token_s = time.perf_counter() - started
                    case FailedEvent(error):
                        raise error
                    case DoneEvent():
                        return first_token_s

    def _decide(self, request_id: str, select: Callable[[], Tokens]) -> None:
        self._engine.decide(request_id, ReuseMode.TOKENS, Recompute(tokens=select()))
