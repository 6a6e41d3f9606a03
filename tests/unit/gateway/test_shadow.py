"""Some answers by a verdict are compared with the reference's in idle time; drift suspends the verdict."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from services.gateway.agreement import AgreementMonitor
from services.gateway.config import FeedbackConfig, GatewayConfig, ShadowConfig
from services.gateway.feedback import FeedbackKeeper
from services.gateway.handlers import GatewayHandlers
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.gateway.reference import Reference
from services.gateway.shadow import Shadow, is_sampled
from shared.answer import Inquiry
from shared.config import load
from shared.errors import ConfigError, NotFound, Overloaded
from shared.generation.asked import Beams, Decoding, SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import Auto, GenerationOrder, Reuse
from shared.generation.response_format import ResponseFormat
from shared.generation.told import ObeyedVerdict
from shared.kv_types import Manifest, ManifestChunk
from shared.request import RequestContext
from shared.search import SearchHit
from tests.unit.gateway.fakes import FakeGenerator, FakeManifests, FakeRetriever, hit
from tests.virtual_time import run_virtually

VERDICT = ObeyedVerdict("v" * 32, 0.98)
QUESTIONS = [f"Who built bridge {i}?" for i in range(40)]
RIGHT = {question: f"Orla Venn number {i}" for i, question in enumerate(QUESTIONS)}
WRONG = dict.fromkeys(QUESTIONS, "somebody else")
AUTO = Reuse(Auto.AUTO)


def manifest(name: str, num_chunks: int, *starts: int) -> Manifest:
    """``starts``: chunks that begin a block, besides the first."""
    chunks = tuple(
        ManifestChunk(
            f"{name}{i}",
            (i, i),
            parent_id=f"in front of {name}{i}",
            header_ids=(9,) if i in (0, *starts) else (),
        )
        for i in range(num_chunks)
    )
    return Manifest("default", "handbook", f"{name}.txt", chunks=chunks)


DOCUMENTS = {"a.txt": manifest("a", 6, 3), "b.txt": manifest("b", 2)}
HITS = [hit("b1", "It is old", "b.txt"), hit("a4", "Orla Venn built it", "a.txt")]


class World:
    """A gateway whose shadow sees every answer by the verdict."""

    def __init__(self, generator: FakeGenerator, hits: list[SearchHit] = HITS, **settings: Any) -> None:
        config = GatewayConfig(reuse=Auto.AUTO, shadow=ShadowConfig(**({"share": 1.0} | settings)))
        self.generator = generator
        self.now_s = 0.0
        self.shadow = Shadow(
            config.shadow,
            generator,
            Reference(generator, FakeManifests(DOCUMENTS)),
            lambda: self.now_s,
        )
        self.pipeline = Pipeline(
            FakeRetriever(dict.fromkeys(QUESTIONS, hits)),
            generator,
            config,
            Prefetching(None),
            shadow=self.shadow,
        )

    async def ask(self, *questions: str, request_id: str = "", **changes: Any) -> None:
        inquiry = Inquiry("handbook", questions or (QUESTIONS[0],), **changes)
        async with aclosing(self.pipeline.answer(RequestContext.create(request_id), inquiry)) as events:
            _ = [event async for event in events]
        self.shadow.check_invariants()

    async def until(self, done: Callable[[], bool]) -> None:
        for _ in range(1000):
            if done():
                return
            self.shadow.check_invariants()
            await asyncio.sleep(0)
        raise AssertionError(self.fact("shadow"))

    def fact(self, name: str) -> str:
        return self.shadow.facts()[name]

    async def judged(self, num: int) -> None:
        await self.until(lambda: self.fact("shadow_judged") == str(num))

    @property
    def references(self) -> list[GenerationOrder]:
        return [order for order in self.generator.asked if order.idle]


def agreeing(**changes: Any) -> FakeGenerator:
    return FakeGenerator(RIGHT, verdict=VERDICT, **changes)


async def test_the_reference_is_full_over_whole_blocks_in_idle_time() -> None:
    world = World(agreeing())
    await world.ask(sampling=SamplingParams(max_tokens=9), explain=True, preface="")
    await world.judged(1)
    live, reference = world.generator.asked
    assert (live.reuse, live.idle) == (AUTO, False)
    assert reference == GenerationOrder(
        ((0, 0), (1, 1), (3, 3), (4, 4), (5, 5)),  # of b, then the second block of a
        (QUESTIONS[0],),
        reuse=Reuse(ReuseMode.FULL),
        sampling=SamplingParams(max_tokens=9),
        idle=True,
    )
    assert world.fact("shadow").startswith("agreement 100.0 % (")
    assert world.fact("shadow").endswith(" to 100.0) of 1 questions, 98.0 at the gate")
    assert world.generator.suspended == []


async def test_of_blocks_longer_than_the_model_reads_the_nearest_chunks_are_read() -> None:
    world = World(agreeing(max_positions=100 + 9 + 4))  # prompt, answer, two chunks
    await world.ask(sampling=SamplingParams(max_tokens=9))
    await world.judged(1)
    assert world.references[0].chunks == ((1, 1), (3, 3), (4, 4), (5, 5))


def test_a_request_is_sampled_by_its_id_wherever_it_is_asked() -> None:
    ids = [f"request {i}" for i in range(10_000)]
    tenth, fifth = ({name for name in ids if is_sampled(name, share)} for share in (0.1, 0.2))
    assert 900 < len(tenth) < 1100
    assert tenth < fifth
    assert all(is_sampled(name, 1.0) and not is_sampled(name, 0.0) for name in ids)


async def test_only_the_share_is_asked_again() -> None:
    world = World(agreeing(), share=0.5)
    names = [f"r{i}" for i in range(20)]
    for name, question in zip(names, QUESTIONS, strict=False):
        await world.ask(question, request_id=name)
    wanted = [q for name, q in zip(names, QUESTIONS, strict=False) if is_sampled(name, 0.5)]
    await world.judged(len(wanted))
    assert [order.questions for order in world.references] == [(question,) for question in wanted]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"no_shadow": True}, VERDICT),
        ({"sampling": SamplingParams(temperature=0.7)}, VERDICT),
        ({"sampling": SamplingParams(response_format=ResponseFormat())}, VERDICT),
        ({"sampling": SamplingParams(n=2)}, VERDICT),
        ({"decoding": Decoding(beams=Beams(2))}, VERDICT),
        ({"reuse": Reuse(ReuseMode.REORDERED)}, VERDICT),
        ({}, None),
    ],
)
async def test_who_forbids_it_samples_or_did_not_go_by_the_verdict_is_never_asked_again(
    changes: dict[str, Any], verdict: ObeyedVerdict | None
) -> None:
    world = World(replace(agreeing(), verdict=verdict))
    await world.ask(**changes)
    await world.ask(*QUESTIONS[:2], **changes)
    assert world.fact("shadow_waiting") == "0"
    assert world.fact("shadow_judged") == "0"
    assert world.references == []


async def test_a_question_that_is_asked_again_and_again_is_one() -> None:
    world = World(agreeing())
    for _ in range(3):
        await world.ask()
        await world.judged(1)
    assert len(world.references) == 1
    await world.ask(QUESTIONS[1])
    await world.judged(2)


async def test_drift_suspends_the_verdict_and_a_replica_that_still_obeys_it_is_told_again() -> None:
    world = World(agreeing(reference=WRONG))
    for question in QUESTIONS[:20]:
        await world.ask(question)
    await world.until(lambda: bool(world.generator.suspended))
    ((verdict, reason),) = world.generator.suspended
    assert verdict == VERDICT.id
    assert reason.startswith("agreement 0.0 % (0.0 to ")
    assert reason.endswith(" questions, 98.0 at the gate")
    assert f"; the verdict was suspended: {reason}" in world.fact("shadow")
    num = len(world.references)
    assert 5 < num < 20
    await world.ask(QUESTIONS[30])
    assert len(world.generator.suspended) == 1
    world.generator.suspended.clear()
    await world.ask(QUESTIONS[30])
    await world.until(lambda: world.generator.suspended == [(VERDICT.id, reason)])
    assert len(world.references) == num  # nothing is judged any more


async def test_another_verdict_is_judged_by_itself() -> None:
    world = World(agreeing(reference=WRONG))
    for question in QUESTIONS[:20]:
        await world.ask(question)
    await world.until(lambda: bool(world.generator.suspended))
    world.generator.verdict, world.generator.reference = ObeyedVerdict("w" * 32, 0.98), RIGHT
    before = int(world.fact("shadow_judged"))
    await world.ask(QUESTIONS[0])
    await world.judged(before + 1)
    assert world.fact("shadow").startswith("agreement 100.0 %")
    assert "suspended" not in world.fact("shadow")


async def test_what_waits_is_bounded_and_the_oldest_goes_first() -> None:
    world = World(agreeing(), most_waiting=3)
    busy = asyncio.Event()
    generate = world.generator.generate

    async def when_idle(ctx: RequestContext, order: GenerationOrder) -> Any:
        if order.idle:
            await busy.wait()
        async for event in generate(ctx, order):
            yield event

    world.generator.generate = when_idle  # type: ignore[method-assign]
    for question in QUESTIONS[:8]:
        await world.ask(question)
        await asyncio.sleep(0)
    busy.set()
    await world.judged(4)
    assert world.fact("shadow_dropped") == "4"
    assert [order.questions[0] for order in world.references] == [QUESTIONS[i] for i in (0, 5, 6, 7)]


def test_what_is_given_up_for_others_is_asked_again_until_it_has_waited_too_long() -> None:
    busy = (0, Overloaded("idle: something else was asked meanwhile; ask again"))

    async def run() -> None:
        world = World(agreeing(failures=[None, busy, busy]), most_wait_s=60.0)
        await world.ask()
        while world.fact("shadow_judged") != "1":
            await asyncio.sleep(0.5)
        assert len(world.references) == 3
        world.generator.failures += [None, busy]
        await world.ask(QUESTIONS[1])
        while len(world.references) < 4:
            await asyncio.sleep(0)
        world.now_s = 61.0
        while world.fact("shadow_dropped") != "1":
            await asyncio.sleep(0.5)
        assert len(world.references) == 4
        assert world.fact("shadow_waiting") == "0"

    run_virtually(run())


async def test_a_document_that_has_changed_since_is_counted_and_nothing_else() -> None:
    world = World(agreeing(), hits=[hit("b7", "It is old", "b.txt")])
    await world.ask()
    await world.until(lambda: world.fact("shadow_failed") == "1")
    world = World(agreeing(failures=[None, (0, NotFound("gone"))]))
    await world.ask()
    await world.until(lambda: world.fact("shadow_failed") == "1")
    await world.ask(QUESTIONS[1])
    await world.judged(1)


async def test_status_tells_it_where_it_is_on() -> None:
    world = World(agreeing())
    told = (world.pipeline, {}, 1.0, {}, FeedbackKeeper(FeedbackConfig()))
    ctx = RequestContext.create()
    assert (await GatewayHandlers(*told).healthy(ctx)).facts == {}
    assert (await GatewayHandlers(*told, world.shadow).healthy(ctx)).facts == world.shadow.facts()


def judged(agreement: AgreementMonitor, key: int, rng: random.Random, mean: float) -> bool:
    """Of two answers that agree by a half or wholly, so on average."""
    return agreement.judge(key, "What?", "one two", "one two" if rng.random() < 2 * mean - 1 else "one three")


def test_agreement_as_it_should_be_is_no_drift_but_for_the_chance_that_is_allowed() -> None:
    alarms, runs, config = 0, 60, ShadowConfig(share=1.0, window=100)
    for run in range(runs):
        rng, agreement = random.Random(run), AgreementMonitor(config, expected=0.9)
        alarms += any(judged(agreement, i, rng, 0.8) for i in range(100))
    assert alarms <= 0.05 * runs


def test_what_was_not_known_at_the_gate_is_reported_and_suspends_nothing() -> None:
    agreement = AgreementMonitor(ShadowConfig(share=1.0), expected=None)
    assert str(agreement) == "no agreement judged yet (not known at the gate)"
    assert not any(agreement.judge(i, "What?", "one", "two") for i in range(100))
    assert str(agreement).startswith("agreement 0.0 % (0.0 to ")
    assert str(agreement).endswith(" of 100 questions, not known at the gate")


@pytest.mark.parametrize("good", [0, 100, 450])
def test_drift_is_seen_however_long_it_went_well(good: int) -> None:
    rng, agreement = random.Random(1), AgreementMonitor(ShadowConfig(share=1.0, window=100), expected=0.95)
    assert not any(judged(agreement, i, rng, 0.95) for i in range(good))
    seen = next(i for i in range(1000) if judged(agreement, i, rng, 0.6))
    assert seen < 200
    assert agreement.num_judged == good + seen + 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"share": 1.5}, "gateway.shadow.share: must be 0 to 1, got 1.5"),
        ({"tolerance": 0}, "gateway.shadow.tolerance: must be above 0 and below 1, got 0"),
        ({"alpha": 1.0}, "gateway.shadow.alpha: must be above 0 and below 1, got 1.0"),
        ({"window": 0}, "gateway.shadow.window"),
        ({"most_waiting": 0}, "gateway.shadow.most_waiting"),
        ({"most_wait_s": 0}, "gateway.shadow.most_wait_s"),
    ],
)
def test_settings_that_are_none_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(GatewayConfig, {"shadow": settings}, "gateway.")
    assert error.value.detail.startswith(says)


def test_without_a_kv_store_nobody_knows_the_blocks() -> None:
    with pytest.raises(ConfigError, match=r"shadow\.share: .*name its application in kv_store"):
        load(GatewayConfig, {"kv_store": "", "shadow": {"share": 0.1}})
