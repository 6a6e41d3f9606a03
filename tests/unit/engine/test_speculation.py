"""Speculation: with drafts an engine says what it says without, in fewer steps; on a model that quotes, so
that drafts are right and wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine import Engine, EngineConfig, LiveForest, wrap_model
from shared.engine.decoding.drafting import DraftCounts
from shared.generation.asked import Beams, GenerateRequest, SamplingParams
from shared.generation.forest import Append, Command, ForestRequest, Fork, Grow, Rewind, Start
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import FinishReason, ForestEvent, GrownEvent
from shared.packets import PacketIds
from tests.engine_runs import Prompts, Run, assert_alike, assert_equals_oracle, engine_of, run
from tests.lora_adapters import random_adapter
from tests.oracles import ORACLES, VOCAB, as_dtype
from tests.quoting_model import ascending, quoting_model
from tests.soft_packets import random_packets

pytestmark = pytest.mark.usefixtures("one_thread")

MODES = [mode for mode in ReuseMode if mode.value in ORACLES]


def letters(ids: Sequence[int]) -> str:
    """Of tokens in a row letters in a row, some of which end a sentence."""
    return "".join(". " if i % 26 == 25 else chr(97 + i % 26) for i in ids)


def new_engine(speculation: int, **settings: Any) -> Engine:
    return engine_of(hf_model=quoting_model(), decode=letters, speculation=speculation, **settings)


engine = lru_cache(new_engine)


def quoting(
    prompts: Prompts,
    nth: int = 0,
    chunks: Sequence[int] = (40, 1, 70),
    questions: Sequence[int] = (6,),
    **pieces: Any,
) -> GenerateRequest:
    """The ``nth`` one: chunks and questions of ascending runs."""
    draw = random.Random(nth)
    return prompts.request(
        5,
        [ascending(draw, length) for length in chunks],
        [ascending(draw, length) for length in questions],
        **pieces,
    )


def assert_same(ours: Run, other: Run) -> None:
    """All that is told of every branch, whatever the steps in which it was."""
    assert isinstance(ours.request, GenerateRequest)
    for path in ours.branches():
        assert_alike(ours.branch(*path), other.branch(*path))
        assert [e.text for e in ours.tokens(*path)] == [e.text for e in other.tokens(*path)]
        tops = [e.top_logprobs for e in ours.tokens(*path)], [e.top_logprobs for e in other.tokens(*path)]
        for top, other_top in zip(*tops, strict=True):  # within rounding two may change places
            assert [p for _, p in top] == pytest.approx([p for _, p in other_top], abs=1e-4)
        ends = ours.finish(*path), other.finish(*path)
        assert replace(ends[0], score=0.0) == replace(ends[1], score=0.0)
        assert ends[0].score == pytest.approx(ends[1].score, abs=1e-4)
    without_drafts = replace(ours.done.usage, drafted_tokens=0, accepted_tokens=0)
    assert without_drafts == other.done.usage


def drafted(engine: Engine, before: DraftCounts | None = None) -> tuple[int, int]:
    """Tokens that were right, and that were wrong, since then."""
    now, before = engine.stats().drafts, before or DraftCounts()
    accepted = now.accepted_tokens - before.accepted_tokens
    return accepted, now.drafted_tokens - before.drafted_tokens - accepted


class TestAnswersStayWhatTheyAre:
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(
        mode=st.sampled_from(MODES),
        chunks=st.lists(st.integers(1, 90), max_size=4),
        questions=st.lists(st.integers(1, 20), min_size=1, max_size=3),
        samples=st.integers(1, 3),
        temperature=st.sampled_from([0.0, 0.5, 0.9]),
        top_k=st.sampled_from([0, 20]),
        max_tokens=st.integers(1, 40),
        stop=st.sampled_from([(), ("klm",), (". a", "xyz")]),
        stop_repeated=st.booleans(),
        rows=st.sampled_from([2, 5, 8, 32]),
        seed=st.integers(0, 1000),
    )
    def test_whatever_is_asked(
        self,
        mode: ReuseMode,
        chunks: list[int],
        questions: list[int],
        samples: int,
        temperature: float,
        top_k: int,
        max_tokens: int,
        stop: tuple[str, ...],
        stop_repeated: bool,
        rows: int,
        seed: int,
    ) -> None:
        request = quoting(
            Prompts(engine(0)),
            seed,
            chunks,
            questions,
            reuse=mode,
            n=samples,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
            max_tokens=max_tokens,
            stop=stop,
            stop_repeated=stop_repeated,
            ignore_eos=False,
        )
        ours, other = (run(new_engine(n), request)[0] for n in (rows, 0))  # nothing is resident in either
        assert_same(ours, other)

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_they_are_the_oracles(self, mode: ReuseMode, temperature: float) -> None:
        ours, oracle_model = engine(16), quoting_model()
        before = ours.stats().drafts
        prompts = Prompts(ours)
        for seed in range(4):
            request = quoting(
                prompts, seed, questions=(6, 9), reuse=mode, temperature=temperature, max_tokens=24
            )
            assert_equals_oracle(run(ours, request)[0], oracle_model)
        accepted, rejected = drafted(ours, before)
        assert accepted > 10
        assert rejected > 10

    def test_recomputed_tokens_and_company_in_little_room(self) -> None:
        """Requests that come together, are cut and paused, and draft as rows are left."""
        settings = {"max_step_tokens": 24, "private_bytes": 80 * 512}
        tight, truth = engine(16, **settings), engine(0)
        prompts = Prompts(truth)
        requests = [
            quoting(prompts, seed, reuse=mode, recompute=recompute, temperature=temperature, max_tokens=30)
            for seed, (mode, recompute, temperature) in enumerate(
                (
                    (ReuseMode.REORDERED, None, 0.0),
                    (ReuseMode.EPIC, Recompute(0.4), 0.7),
                    (ReuseMode.TOKENS, Recompute(tokens=(1, 5, 6, 40, 41)), 0.0),
                    (ReuseMode.FULL, None, 0.9),
                    (ReuseMode.QUERY_ATTENTION, Recompute(0.3), 0.0),
                    (ReuseMode.CACHEBLEND, Recompute(0.3), 0.0),
                )
            )
        ]
        together = run(tight, *requests)
        assert tight.stats().num_pauses > 0
        for one in together:
            alone = next(r for r in requests if r.request_id == one.request.request_id)
            assert_same(one, run(truth, alone)[0])
        assert min(drafted(tight)) > 10

    def test_rows_of_a_draft_go_with_their_branchs_adapter(self) -> None:
        runs = []
        for speculation in (16, 0):
            model = wrap_model(quoting_model())
            adapter = random_adapter(model.hf_model, model.base_fingerprint)
            ours = Engine(model, EngineConfig(speculation=speculation), adapters=[adapter])
            prompts = Prompts(ours)
            requests = [
                replace(quoting(prompts, seed, max_tokens=30), adapter=name)
                for seed, name in enumerate((adapter.name, "", adapter.name))
            ]
            runs.append(run(ours, *requests))
            assert (min(drafted(ours)) > 0) == (speculation > 0)
        for one, other in zip(*runs, strict=True):
            assert_same(one, other)

    def test_the_bits_of_batch_invariance_come_without_drafts(self) -> None:
        runs = []
        for speculation in (16, 0):
            model = as_dtype(quoting_model(), torch.bfloat16)
            ours = engine_of(hf_model=model, batch_invariant=True, speculation=speculation)
            runs.append(run(ours, quoting(Prompts(ours), max_tokens=30))[0])
            assert ours.stats().drafts == DraftCounts()
        assert runs[0].branches() == runs[1].branches()

    def test_beams_wait_for_each_other_and_draft_nothing(self) -> None:
        ours, truth = engine_of(hf_model=quoting_model()), engine(0)
        request = replace(quoting(Prompts(truth), max_tokens=12), beams=Beams(2))
        assert run(ours, request)[0].branches() == run(truth, request)[0].branches()
        assert ours.stats().drafts == DraftCounts()

    def test_packets_are_in_nobodys_answer(self) -> None:
        runs, ids = [], PacketIds(VOCAB, 3, 2)
        for speculation in (8, 0):
            model = wrap_model(quoting_model())
            model.place_packets(random_packets(model))
            ours = Engine(model, EngineConfig(speculation=speculation))
            request = quoting(Prompts(ours), max_tokens=40)
            packed = (replace(c, token_ids=ids.around(c.token_ids)) for c in request.chunks)
            request = replace(request, chunks=tuple(packed))
            runs.append(run(ours, request)[0])
        assert runs[0].done.usage.accepted_tokens > 0
        assert_same(*runs)


class TestEnds:
    """A draft that is right beyond the end of an answer is forgotten beyond it."""

    def test_at_the_end_mark(self) -> None:
        whole = run(engine(0), quoting(Prompts(engine(0)), max_tokens=20))[0].branch().token_ids
        for eos in whole[2:8]:
            model = quoting_model(eos_token_id=eos)
            ours = engine_of(hf_model=model, decode=letters, speculation=16)
            request = quoting(Prompts(ours), max_tokens=20, ignore_eos=False)
            (one,) = run(ours, request)
            ended = whole[: whole.index(eos) + 1]
            assert one.branch().token_ids == ended
            assert one.finish().finish_reason is FinishReason.STOP
            assert one.done.usage.generated_tokens == len(ended)

    @pytest.mark.parametrize("max_tokens", range(1, 12))
    def test_at_the_last_token_that_the_model_has_a_position_for(self, max_tokens: int) -> None:
        prompt_len = 5 + 111 + 6
        model = quoting_model(max_position_embeddings=prompt_len + max_tokens - 1)
        ours = engine_of(hf_model=model, speculation=16)
        (one,) = run(ours, quoting(Prompts(ours), max_tokens=max_tokens))
        assert_equals_oracle(one, quoting_model())
        assert one.finish().finish_reason is FinishReason.LENGTH


class TestForests:
    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(st.data(), st.sampled_from(MODES), st.integers(0, 100))
    def test_every_branch_grows_and_goes_on_as_without(
        self, data: st.DataObject, mode: ReuseMode, seed: int
    ) -> None:
        draw, script = random.Random(seed), list[tuple[Command, ...]]()
        script.append((Start(0, ascending(draw, 6)), Fork(1, 0)))
        lengths = {0: 6, 1: 6}
        for _ in range(data.draw(st.integers(2, 5))):
            params = SamplingParams(
                max_tokens=data.draw(st.integers(1, 20)),
                temperature=data.draw(st.sampled_from([0.0, 0.7])),
                stop=data.draw(st.sampled_from([(), ("klm",), ("z. ",)])),
                top_logprobs=3,
                seed=seed,
            )
            script.append(tuple(Grow(branch, params) for branch in lengths))
            script.append(
                data.draw(
                    st.sampled_from(
                        [(Append(0, ascending(draw, 4)),), (Rewind(1, 3), Append(1, ascending(draw, 2))), ()]
                    )
                )
            )
        told = [self.followed(engine(rows), mode, seed, script) for rows in (16, 0)]
        for ours, other in zip(*told, strict=True):
            assert _branchwise(ours) == _branchwise(other)

    def test_drafts_are_right_and_wrong(self) -> None:
        ours = engine(16)
        before = ours.stats().drafts
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        for seed in range(4):
            draw = random.Random(seed)
            script: list[tuple[Command, ...]] = [(Start(0, ascending(draw, 6)), Grow(0, params))]
            self.followed(ours, ReuseMode.REORDERED, seed, script)
        assert min(drafted(ours, before)) > 10

    def followed(
        self, ours: Engine, mode: ReuseMode, seed: int, script: Sequence[Sequence[Command]]
    ) -> list[list[ForestEvent]]:
        like = quoting(Prompts(engine(0)), seed, reuse=mode)
        request = ForestRequest(f"forest-{seed}", like.prefix_ids, like.chunks, mode)
        with LiveForest(ours, request) as forest:
            told = []
            for commands in script:
                told.append(forest.do(*commands))
                ours.check_invariants()
            return told


def _branchwise(events: Sequence[ForestEvent]) -> dict[int | None, list[object]]:
    """Without the rounding of log-probabilities, and without the order between branches."""
    told: dict[int | None, list[object]] = {}
    for event in events:
        one: object = event
        if isinstance(event, GrownEvent):
            tops = tuple(token for token, _ in event.top_logprobs)
            one = (event.token_id, event.text, pytest.approx(event.logprob, abs=1e-4), tops)
        told.setdefault(getattr(event, "branch", None), []).append(one)
    return told


class TestSteps:
    def test_a_text_that_is_quoted_takes_fewer(self) -> None:
        """A model that is certain, asked to go on in the middle of a chunk."""
        steps = []
        for speculation in (8, 0):
            ours = engine_of(hf_model=quoting_model(certainty=1.0), speculation=speculation)
            request = Prompts(ours).request(5, [tuple(range(50, 150))], [(60, 61, 62)], max_tokens=41)
            (one,) = run(ours, request)
            assert one.branch().token_ids == tuple(range(63, 104))
            steps.append(ours.stats().num_steps)
        usage = one.done.usage
        assert (usage.drafted_tokens, usage.accepted_tokens) == (0, 0)
        assert steps[1] - steps[0] > 30

    def test_usage_and_stats_count_what_was_drafted(self) -> None:
        ours = engine_of(hf_model=quoting_model(), speculation=8)
        prompts = Prompts(ours)
        usages = [run(ours, quoting(prompts, seed, max_tokens=40))[0].done.usage for seed in range(3)]
        counts = ours.stats().drafts
        assert sum(u.drafted_tokens for u in usages) == counts.drafted_tokens > counts.accepted_tokens
        assert sum(u.accepted_tokens for u in usages) == counts.accepted_tokens > 0

    def test_a_step_that_has_its_rows_drafts_nothing(self) -> None:
        ours = engine_of(hf_model=quoting_model(), speculation=8)
        run(ours, quoting(Prompts(ours), n=8, temperature=0.5, max_tokens=30))
        assert ours.stats().drafts == DraftCounts()
