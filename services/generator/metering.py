"""Measures what becomes of requests, in vLLM's terms and in ours, beside the engine: of events that its
callers are told anyway, and of snapshots that it makes anyway. The engine's thread does nothing for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from shared.engine.stats import EngineStats
from shared.errors import Cancelled, DeadlineExceeded
from shared.generation.asked import Chunk, total_len
from shared.generation.modes import ReuseMode
from shared.generation.told import BranchDoneEvent, DoneEvent, Event, GrownEvent, Timings, TokenEvent, Usage
from shared.metrics import table
from shared.metrics.recorder import MetricReading, Metrics

ABORTED, FAILED = "abort", "error"
_BLOCK_TOKENS = 16
_GONE = (Cancelled, DeadlineExceeded)
VERDICT_STATES = ("in_force", "suspended", "expired", "none")


class Followed:
    """One request, as it is told of. ``grows``: by commands, so that it has no answers."""

    def __init__(
        self, metrics: Metrics, chunks: Sequence[Chunk], clock: Callable[[], float], grows: bool = False
    ) -> None:
        self._metrics, self._clock, self._grows = metrics, clock, grows
        self._context = total_len(chunks)
        self._arrived_s = clock()
        self._last_s: dict[tuple[int, int], float] = {}
        self._lens: dict[tuple[int, int], int] = {}
        self._branches: set[int] = set()
        self.ended = False

    def on(self, event: Event) -> None:
        """Called with every event, as it is."""
        match event:
            case TokenEvent():
                self._on_token((event.question, event.sample))
            case BranchDoneEvent():
                self._metrics.add(table.REQUEST_SUCCESS, finished_reason=event.finish_reason.value)
            case GrownEvent():
                self._branches.add(event.branch)
            case DoneEvent():
                self._on_done(event)

    def failed(self, reason: str) -> None:
        """It ended without completing."""
        if not self.ended:
            self.ended = True
            self._metrics.add(table.REQUEST_SUCCESS, finished_reason=reason)

    def _on_token(self, branch: tuple[int, int]) -> None:
        now = self._clock()
        if not self._last_s:
            self._metrics.observe(table.TIME_TO_FIRST_TOKEN, now - self._arrived_s)
        elif branch in self._last_s:
            self._metrics.observe(table.INTER_TOKEN_LATENCY, now - self._last_s[branch])
        self._last_s[branch] = now
        self._lens[branch] = self._lens.get(branch, 0) + 1

    def _on_done(self, done: DoneEvent) -> None:
        self.ended = True
        usage, metrics = done.usage, self._metrics
        self._count_tokens(usage)
        mode = str(usage.reuse or ReuseMode.FULL)
        metrics.add(table.REQUESTS_BY_MODE, mode=mode)
        width = len(self._branches) if self._grows else len(self._last_s)
        metrics.observe(table.FOREST_WIDTH, width)
        if usage.selected_tokens and self._context:
            metrics.add(table.RECOMPUTED_TOKENS, usage.selected_tokens, mode=mode)
            metrics.observe(table.RECOMPUTE_SHARE, usage.selected_tokens / self._context, mode=mode)
        if usage.isolated_tokens:
            metrics.add(table.ISOLATED_TOKENS, usage.isolated_tokens)
        for load in done.loads:
            metrics.observe(table.TIER_LOAD_SECONDS, load.load_s, tier=load.tier)
            metrics.add(table.LOADED_CHUNKS, load.num_chunks, tier=load.tier)
            metrics.add(table.LOADED_BYTES, load.num_bytes, tier=load.tier)
        if not self._grows:
            self._time(usage, done.timings)

    def _count_tokens(self, usage: Usage) -> None:
        """Each token of the prompt once: one that was loaded and then computed anew was computed."""
        metrics = self._metrics
        loaded = min(usage.loaded_tokens, usage.reused_tokens)
        resident = usage.reused_tokens - loaded
        sources = {
            "local_compute": usage.recomputed_tokens,
            "local_cache_hit": resident,
            "external_kv_transfer": loaded,
        }
        for source, num in sources.items():
            metrics.add(table.PROMPT_TOKENS_BY_SOURCE, num, source=source)
        metrics.add(table.PROMPT_TOKENS, usage.prompt_tokens)
        metrics.add(table.PROMPT_TOKENS_CACHED, usage.reused_tokens)
        metrics.add(table.PREFIX_QUERIES, usage.prompt_tokens)
        metrics.add(table.PREFIX_HITS, resident)
        metrics.add(table.EXTERNAL_QUERIES, usage.prompt_tokens - resident)
        metrics.add(table.EXTERNAL_HITS, loaded)
        metrics.add(table.GENERATION_TOKENS, usage.generated_tokens)
        metrics.observe(table.REQUEST_PROMPT_TOKENS, usage.prompt_tokens)
        metrics.observe(table.REQUEST_GENERATION_TOKENS, usage.generated_tokens)
        metrics.observe(table.PREFILL_COMPUTED, usage.recomputed_tokens)

    def _time(self, usage: Usage, timings: Timings) -> None:
        metrics = self._metrics
        metrics.observe(table.E2E_LATENCY, self._clock() - self._arrived_s)
        metrics.observe(table.QUEUE_TIME, timings.queue_s)
        metrics.observe(table.INFERENCE_TIME, timings.total_s - timings.queue_s)
        if timings.first_token_s <= 0:  # it never came to one
            return
        metrics.observe(table.PREFILL_TIME, timings.first_token_s - timings.queue_s)
        metrics.observe(table.DECODE_TIME, timings.decode_s)
        longest = max(self._lens.values(), default=0)
        if longest > 1:
            metrics.observe(table.TIME_PER_OUTPUT_TOKEN, timings.decode_s / (longest - 1))
        if usage.loaded_tokens:
            metrics.observe(table.LOAD_SECONDS, timings.load_s)
        if timings.select_s:
            metrics.observe(table.SELECT_SECONDS, timings.select_s)
            metrics.observe(table.SELECT_WAIT_SECONDS, timings.select_wait_s)


@contextmanager
def following(
    metrics: Metrics,
    chunks: Sequence[Chunk],
    grows: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Followed]:
    """Follows a request from here on. What leaves without its last event was aborted, or failed."""
    followed = Followed(metrics, chunks, clock, grows)
    try:
        yield followed
    except Exception as error:
        followed.failed(ABORTED if isinstance(error, _GONE) else FAILED)
        raise
    finally:
        followed.failed(ABORTED)


def count_routed(metrics: Metrics, chunks: Sequence[Chunk], resident: Collection[str], expected: int) -> None:
    """Of a question that has come. ``expected``: how many of its chunks the router took to be resident."""
    there = set(resident)
    held = sum(chunk.chunk_id in there for chunk in chunks)
    metrics.add(table.ROUTED_CHUNKS, held, outcome="hit")
    metrics.add(table.ROUTED_CHUNKS, len(chunks) - held, outcome="miss")
    metrics.add(table.ROUTE_STALE, max(0, min(expected, len(chunks)) - held))


def readings(stats: EngineStats, private_capacity: int, bytes_per_token: int) -> Iterator[MetricReading]:
    """The engine as of its last step. ``private_capacity``: bytes that questions and answers may take."""
    capacity = stats.capacity_bytes + private_capacity
    yield MetricReading(table.REQUESTS_RUNNING, stats.running)
    yield MetricReading(table.REQUESTS_WAITING, stats.waiting + stats.paused)
    yield MetricReading(table.WAITING_BY_REASON, stats.waiting, {"reason": "capacity"})
    yield MetricReading(table.WAITING_BY_REASON, stats.paused, {"reason": "deferred"})
    yield MetricReading(table.KV_CACHE_USAGE, (stats.used_bytes + stats.private_bytes) / capacity)
    blocks = str(capacity // (bytes_per_token * _BLOCK_TOKENS))
    yield MetricReading(table.CACHE_CONFIG, 1, {"block_size": str(_BLOCK_TOKENS), "num_gpu_blocks": blocks})
    yield MetricReading(table.PREEMPTIONS, stats.num_pauses)
    yield MetricReading(table.DRAFTS, stats.drafts.num_drafts)
    yield MetricReading(table.DRAFT_TOKENS, stats.drafts.drafted_tokens)
    yield MetricReading(table.ACCEPTED_TOKENS, stats.drafts.accepted_tokens)
    yield MetricReading(table.LATE_CHUNKS, stats.late.num_chunks)
    yield MetricReading(table.LATE_TOKENS, stats.late.num_tokens)
    yield MetricReading(table.LATE_TOKENS_IN_VAIN, stats.late.num_in_vain)
    yield MetricReading(table.ENGINE_STEPS, stats.num_steps)
    yield MetricReading(table.RESIDENT_CHUNKS, len(stats.resident_chunk_ids))
    yield MetricReading(table.RESIDENT_BYTES, stats.resident_bytes)
    yield MetricReading(table.RESIDENT_CAPACITY_BYTES, stats.capacity_bytes)
    yield MetricReading(table.PRIVATE_BYTES, stats.private_bytes)
    kept = stats.conversations
    yield MetricReading(table.CONVERSATION_TURNS, kept.num_hits, {"outcome": "hit"})
    yield MetricReading(table.CONVERSATION_TURNS, kept.num_misses, {"outcome": "miss"})
    yield MetricReading(table.CONVERSATION_TOKENS, kept.num_tokens)
    yield MetricReading(table.CONVERSATION_BYTES, stats.conversation_bytes)


def verdict_readings(state: str) -> Iterator[MetricReading]:
    """``state``: one of ``VERDICT_STATES``."""
    for one in VERDICT_STATES:
        yield MetricReading(table.VERDICT, float(one == state), {"state": one})
