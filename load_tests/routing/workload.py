"""Makes the questions of a day: when each comes, and which chunks it wants.

Chunks belong to subjects. A question is about one: most of its chunks are of it, some of them more likely
than others, so that two questions about a subject share chunks and are hardly ever equal.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from load_tests.routing.plan import (
    BLOCK_CHUNKS,
    CHUNK_TOKENS,
    DECODE_MS,
    FLASH,
    RATES,
    SUBJECT_CHUNKS,
    DayPlan,
)
from shared.routing.costs import ChunkKey, ReplicaRates, RoutedQuestion, WantedChunk

_BATCH = 2_000
_WITHIN = 0.7  # exponent of how likely a subject's chunks are


@dataclass(frozen=True, slots=True)
class TimedQuestion:
    number: int
    at_ms: float
    question: RoutedQuestion


@dataclass(frozen=True, slots=True)
class Scenario:
    """``arrivals``: questions in order of time; ``before``: chunks of those that were asked before, which
    disks hold as far as they can. ``rates``: of the machines; ``decode_ms``: how long an answer decodes, its
    mean."""

    arrivals: Iterable[TimedQuestion]
    before: Iterable[Sequence[WantedChunk]]
    rates: ReplicaRates = RATES
    decode_ms: float = DECODE_MS


def scenario_of(plan: DayPlan) -> Scenario:
    return Scenario(arrivals(plan), chunks_before(plan))


def arrivals(plan: DayPlan) -> Iterator[TimedQuestion]:
    """The same ones for the same plan, whoever answers them."""
    draw = np.random.Generator(np.random.PCG64(plan.seed))
    at_ms = _instants(plan, draw)
    asked = _popularity(plan)
    for begin in range(0, plan.num_questions, _BATCH):
        times = at_ms[begin : begin + _BATCH]
        chunks = _chunks(plan, draw, asked, times)
        tokens = draw.poisson(plan.question_tokens, len(times))
        for i, at in enumerate(times):
            wanted = tuple(wanted_chunk(chunk) for chunk in dict.fromkeys(chunks[i].tolist()))
            yield TimedQuestion(begin + i, float(at), RoutedQuestion(wanted, int(tokens[i])))


def chunks_before(plan: DayPlan) -> Iterator[list[WantedChunk]]:
    """Of question after question of the day before, without end."""
    draw = np.random.Generator(np.random.PCG64(plan.seed + 1))
    asked = _popularity(plan)
    while True:
        for row in _chunks(plan, draw, asked, np.zeros(_BATCH)).tolist():
            yield [wanted_chunk(chunk) for chunk in row]


@functools.lru_cache(maxsize=200_000)
def wanted_chunk(number: int) -> WantedChunk:
    first = number - number % SUBJECT_CHUNKS % BLOCK_CHUNKS
    chain = tuple((_key(one), _num_tokens(one)) for one in range(first, number))
    return WantedChunk(_key(number), _num_tokens(number), chain)


def _popularity(plan: DayPlan) -> NDArray[np.float64]:
    """[subjects]: cumulated."""
    return np.cumsum(np.arange(1, plan.num_subjects + 1, dtype=np.float64) ** -plan.zipf)


def _instants(plan: DayPlan, draw: np.random.Generator) -> NDArray[np.float64]:
    """Milliseconds: few at both ends of the day, half as many again as the mean in its middle."""
    share = np.linspace(0, 1, 4_097)
    so_far = share - 0.5 / (2 * np.pi) * np.sin(2 * np.pi * share)
    return np.interp(np.sort(draw.random(plan.num_questions)), so_far, share) * plan.day_ms


def _chunks(
    plan: DayPlan, draw: np.random.Generator, asked: NDArray[np.float64], at_ms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """[questions, chunks_per_question]: numbers of chunks."""
    count, own = len(at_ms), plan.chunks_per_question - plan.stray_chunks
    last = plan.num_subjects - 1
    subjects = np.searchsorted(asked, draw.random((count, 1 + plan.stray_chunks)) * asked[-1])
    novel = draw.random(count) < plan.novel_share
    subjects[novel, 0] = draw.integers(0, last, int(novel.sum()))  # the last one is nobody's until the crowd
    share = at_ms / plan.day_ms
    crowd = (share >= FLASH.begin) & (share < FLASH.end) & (draw.random(count) < plan.flash_share)
    subjects = np.minimum(subjects, last - 1)
    subjects[crowd, 0] = last
    likely = -_WITHIN * np.log(np.arange(1, SUBJECT_CHUNKS + 1))
    of_own = np.argsort(-(likely + draw.gumbel(size=(count, SUBJECT_CHUNKS))), axis=1)[:, :own]
    of_strays = np.argmax(likely + draw.gumbel(size=(count, plan.stray_chunks, SUBJECT_CHUNKS)), axis=2)
    places = np.concatenate([of_own, of_strays], axis=1)
    of_subjects = np.concatenate([np.repeat(subjects[:, :1], own, axis=1), subjects[:, 1:]], axis=1)
    chunks: NDArray[np.int64] = of_subjects * SUBJECT_CHUNKS + places
    return chunks


def _key(number: int) -> ChunkKey:
    mixed = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


def _num_tokens(number: int) -> int:
    """A subject's last chunk is shorter, as a document's is."""
    return CHUNK_TOKENS if number % SUBJECT_CHUNKS % BLOCK_CHUNKS < BLOCK_CHUNKS - 1 else CHUNK_TOKENS // 2
