"""Says what a request spent its time on in the engine, stage by stage, once it has ended: traces are made of
it elsewhere, and never on the engine's thread."""

from __future__ import annotations

from collections.abc import Iterator

from shared.engine.jobs.answers import GenerateJob
from shared.engine.jobs.context import ContextJob
from shared.engine.jobs.job import Job
from shared.engine.jobs.prefill import PrefillJob
from shared.generation.asked import total_len
from shared.generation.told import StageTime


def stages_of(job: Job, now_s: float) -> tuple[StageTime, ...]:
    """In the order in which they began; nothing of a request that is not traced. What had begun when the
    request failed ends with it."""
    if not job.request.traceparent:
        return ()
    stages = [StageTime("queue", job.clock.arrived, job.clock.admitted or now_s)]
    if not job.clock.admitted:
        return tuple(stages)
    match job:
        case PrefillJob():
            stages += _prefilling(job, now_s)
        case ContextJob():
            stages += _answering(job, now_s)
    return tuple(stages)


def _answering(job: ContextJob, now_s: float) -> Iterator[StageTime]:
    clock = job.clock
    if job.entries:
        yield _load(job, now_s)
    if clock.resident:
        yield StageTime("select wait", clock.resident, clock.decided or now_s)
    if not clock.placed:
        return
    yield _prefill(job, now_s)
    if not isinstance(job, GenerateJob):
        yield StageTime("explore", clock.placed, now_s, (("tokens", job.generated),))
        return
    for index, times in sorted(clock.questions.items()):
        counts = (("question", index), ("tokens", times.num_tokens))
        yield StageTime("decode", times.first_token, times.ended or now_s, counts)


def _load(job: ContextJob, now_s: float) -> StageTime:
    """Until all KV was there, or its first layers, by tiers; what is lost, or late, is computed within it."""
    clock, num_loaded = job.clock, len(job.fetched - job.lost - job.late)
    counts = (
        ("chunks", len(job.entries)),
        ("chunks.resident", len(job.entries) - len(job.fetched)),
        ("chunks.loaded", num_loaded),
        ("chunks.lost", len(job.lost)),
        ("chunks.late", len(job.late)),
    )
    tiers = tuple(
        StageTime(
            f"load {tier}".strip(),
            times.began,
            times.ended,
            (("chunks", times.num_chunks), ("bytes", times.num_bytes)),
        )
        for tier, times in clock.tiers.items()
    )
    ended_s = clock.resident or clock.placed or now_s
    return StageTime("load", clock.admitted, ended_s, counts, tiers)


def _prefill(job: ContextJob, now_s: float) -> StageTime:
    """From placed KV to the first token of the last question. Tokens computed anew for one question are
    computed in one pass with it: what recomputing takes then contains the question."""
    clock, request, usage = job.clock, job.request, job.usage()
    ended_s = clock.last_first_token or now_s
    inner: tuple[StageTime, ...] = ()
    if usage.selected_tokens:
        recomputed_s = clock.recomputed or clock.first_token or now_s
        inner = (StageTime("recompute", clock.placed, recomputed_s, (("tokens", usage.selected_tokens),)),)
    stored = request.reuse.row.stored
    counts = (
        ("chunks", len(request.chunks)),
        ("chunks.stitched", len(request.chunks) if stored else 0),
        ("tokens", usage.recomputed_tokens),
        ("questions", len(request.questions)),
    )
    return StageTime("stitch and prefill" if stored else "prefill", clock.placed, ended_s, counts, inner)


def _prefilling(job: PrefillJob, now_s: float) -> Iterator[StageTime]:
    times = job.times
    chunks = ("chunks", len(job.works_by_id))
    yield StageTime("look up", job.clock.admitted, times.checked or now_s, (chunks,))
    if times.first_started:
        counts = (("chunks", times.num_computed), ("tokens", times.num_tokens))
        yield StageTime("prefill", times.first_started, times.last_computed or now_s, counts)
    if times.first_computed:
        counts = (("chunks", times.num_computed), ("tokens", total_len(job.request.chunks)))
        yield StageTime("store", times.first_computed, times.last_stored or now_s, counts)
