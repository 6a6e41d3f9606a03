"""Counts of tokens, as who may not know of some chunks is told them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.generator.readable import ReadableParents
from shared.errors import Unavailable
from shared.generation.counted import ContextCounts
from shared.generation.told import DoneEvent, Timings, Usage
from shared.request import RequestContext
from tests.unit.generator.test_readable import HIDDEN, SEEN, Store, by

NOTHING: frozenset[str] = frozenset()
COUNTS = ContextCounts(
    ((SEEN, 10), (HIDDEN, 20)), 3, NOTHING, NOTHING, frozenset([HIDDEN]), selected=(0, 1, 10, 29)
)
PROMPT = 2 + 30 + 3


def done(counts: ContextCounts) -> DoneEvent:
    usage = replace(Usage(PROMPT, 0, 0, 5), **counts.of(PROMPT))
    return DoneEvent(usage, Timings(), counts=counts)


async def told(counts: ContextCounts, *groups: str, store: Store | None = None) -> Usage:
    return (await ReadableParents(store or Store()).counted(by(*groups), done(counts))).usage


async def test_what_one_may_not_read_counts_as_if_it_had_been_computed_and_kept() -> None:
    usage = await told(COUNTS)
    assert (usage.reused_tokens, usage.recomputed_tokens) == (2 + 8, 3 + 2 + 20)
    assert (usage.loaded_tokens, usage.written_tokens, usage.generated_tokens) == (0, 20, 5)
    assert usage.chunk_origins == ("resident", "computed")


@pytest.mark.parametrize(
    "there",
    [
        replace(COUNTS, lost=frozenset([HIDDEN])),
        replace(COUNTS, late=frozenset([HIDDEN])),
        replace(COUNTS, fetched=NOTHING),
        replace(COUNTS, tiers={HIDDEN: "disk"}),
    ],
)
async def test_it_is_told_alike_whatever_became_of_it(there: ContextCounts) -> None:
    assert await told(there) == await told(COUNTS)


async def test_who_reads_everything_is_told_everything_and_nobody_is_asked() -> None:
    store = Store()
    usage = await told(COUNTS, "*", store=store)
    assert (usage.reused_tokens, usage.loaded_tokens, usage.written_tokens) == (2 + 26, 20, 0)
    assert usage.chunk_origins == ("resident", "loaded")
    operator = RequestContext.create()
    assert await ReadableParents(store).counted(operator, done(COUNTS)) == done(COUNTS)
    assert not store.asked


async def test_of_tokens_that_are_blended_there_are_no_more_than_the_context_has() -> None:
    usage = await told(replace(COUNTS, selected=(), num_blended=15))
    assert (usage.reused_tokens, usage.recomputed_tokens) == (2, 3 + 30)


async def test_a_store_that_does_not_answer_tells_of_nothing() -> None:
    class Away(Store):
        async def readable(self, ctx: object, chunk_ids: object) -> list[str]:
            raise Unavailable("the store does not answer")

    assert (await told(COUNTS, store=Away())).reused_tokens == 2
