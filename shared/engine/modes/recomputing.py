"""Selective recompute: which tokens of a request's context are computed for it alone."""

from __future__ import annotations

from shared.engine.jobs import Blending, GenerateJob, Scoring, emit
from shared.engine.modes.selecting import at_random, best, first_of_chunks, num_selected
from shared.generation.modes import ReuseMode
from shared.generation.told import SelectedEvent


def select(job: GenerateJob, num_layers: int) -> None:
    """Says which, once, if the mode knows without looking at anything."""
    request = job.request
    if job.selected is not None or not request.reuse.recomputes:
        return
    lens = [len(chunk.token_ids) for chunk in request.chunks]
    count = num_selected(request.recompute.ratio, sum(lens))
    match request.reuse:
        case ReuseMode.TOKENS:
            job.selected = tuple(sorted(request.recompute.tokens))
        case ReuseMode.EPIC:
            job.selected = first_of_chunks(lens, count)
        case ReuseMode.RANDOM:
            job.selected = at_random(sum(lens), count, request.recompute.seed)
        case ReuseMode.QUERY_ATTENTION | ReuseMode.CACHEBLEND if count in (0, sum(lens)):
            job.selected = tuple(range(count))
        case ReuseMode.CACHEBLEND if num_layers <= 2:  # which it computes for all
            job.selected = tuple(range(sum(lens)))
    if job.selected is not None:
        emit(job, SelectedEvent(job.selected))


def select_scored(job: GenerateJob, scoring: Scoring) -> tuple[int, ...]:
    """The tokens that this question attended to most."""
    num_tokens = sum(len(chunk.token_ids) for chunk in job.request.chunks)
    scores = scoring.probe.weights(num_tokens)
    tokens = best(scores, num_selected(job.request.recompute.ratio, num_tokens))
    job.selected = tuple(sorted({*tokens, *(job.selected or ())}))
    emit(job, SelectedEvent(tokens, scoring.index, tuple(scores)))
    return tokens


def tell_blend(job: GenerateJob, blending: Blending) -> None:
    assert blending.blend is not None
    job.blend, job.selected = blending.blend, blending.blend.tokens
    emit(job, SelectedEvent(job.selected, scores=job.blend.deviations, layers=job.blend.layers))
