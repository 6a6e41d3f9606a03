"""Beam search: the beams and scores of a textbook implementation over whole forwards of the stock model, and
of transformers."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shared.engine import Engine
from shared.engine.decoding.beams import BeamSearch
from shared.engine.decoding.tree import compact, reachable
from shared.engine.jobs.answers import Answer
from shared.engine.kv.branch import Branch
from shared.engine.kv.segment import Segment
from shared.errors import Cancelled, InvalidRequest
from shared.generation.asked import Beams, EarlyStopping, GenerateRequest
from shared.generation.modes import ReuseMode
from shared.generation.told import BranchDoneEvent, DoneEvent, Event, FinishReason, TokenEvent
from tests.beam_oracle import Found, beam_search
from tests.engine_runs import Prompts, Run, assert_alike, collector_off, engine_of, jobs_of, run
from tests.oracles import ORACLES, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

MODES = [mode for mode in ReuseMode if mode.value in ORACLES]
STOPPINGS = list(EarlyStopping)
END_MARKS = tuple(range(60, 160))
NOISE = 3e-5  # of summed log-probabilities in float32: two that are closer may change places


@lru_cache
def oracle_model(family: str) -> Any:
    return tiny_model(family)


@lru_cache
def shared_engine(family: str) -> Engine:
    return engine_of(family)


def ending_model() -> Any:
    """With many end marks, so that hypotheses of many lengths compete."""
    model = tiny_model("qwen2", seed=1)
    model.generation_config.eos_token_id = list(END_MARKS)
    return model


def textbook(model: Any, request: GenerateRequest, question: int, eos_ids: Sequence[int]) -> Found:
    assert request.beams is not None
    chunks = [c.token_ids for c in request.chunks]

    def last_logits(tokens: Sequence[int]) -> torch.Tensor:
        oracle = ORACLES[request.reuse.value]
        return oracle(model, request.prefix_ids, chunks, request.questions[question], [*tokens, 0])[-1]

    return beam_search(last_logits, request.beams, request.sampling.max_tokens, eos_ids)


def assert_equals_textbook(one: Run, model: Any, eos_ids: Sequence[int] = ()) -> float:
    """Every question's answers, in order, with their scores. Returns how near a tie the textbook came."""
    request = one.request
    assert isinstance(request, GenerateRequest)
    closest = math.inf
    for question in range(len(request.questions)):
        found = textbook(model, request, question, eos_ids)
        closest = min(closest, found.closest)
        if found.closest < NOISE:
            continue
        for rank, (tokens, score) in enumerate(found.answers[: request.sampling.n]):
            assert one.branch(question, rank).token_ids == tokens, f"question {question}, rank {rank}"
            end = one.finish(question, rank)
            assert end.score == pytest.approx(score, abs=1e-4)
            assert end.generated_tokens == len(tokens)
            assert end.finish_reason is (FinishReason.STOP if tokens[-1] in eos_ids else FinishReason.LENGTH)
    return closest


class TestBeamsEqualTheTextbook:
    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("family", ["llama3", "qwen2", "phi3_partial"])
    def test_every_mode(self, family: str, mode: ReuseMode) -> None:
        request = Prompts(shared_engine(family), seed=1).request(
            questions=(9, 4), reuse=mode, max_tokens=7, n=4
        )
        (one,) = run(shared_engine(family), replace(request, beams=Beams(4)))
        assert assert_equals_textbook(one, oracle_model(family)) >= NOISE

    @pytest.mark.parametrize("stopping", STOPPINGS, ids=lambda s: s.value)
    @pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.5])
    def test_length_penalty_and_early_stopping(self, penalty: float, stopping: EarlyStopping) -> None:
        engine, model = engine_of(hf_model=ending_model()), ending_model()
        lengths, compared = set(), 0
        for seed in range(3):
            request = Prompts(engine, seed).request(max_tokens=9, n=3, ignore_eos=False)
            (one,) = run(engine, replace(request, beams=Beams(3, penalty, stopping)))
            compared += assert_equals_textbook(one, model, END_MARKS) >= NOISE
            lengths |= {len(one.tokens(0, rank)) for rank in range(3)}
        assert compared >= 2
        assert len(lengths) > 1 or penalty > 1, "all hypotheses have one length: nothing was compared"

    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        width=st.integers(1, 6),
        chunks=st.lists(st.integers(1, 40), max_size=3),
        penalty=st.sampled_from([0.0, 0.7, 1.0]),
        stopping=st.sampled_from(STOPPINGS),
        max_tokens=st.integers(1, 6),
        budget=st.sampled_from([1, 3, 2048]),
        seed=st.integers(0, 50),
    )
    def test_any_width_any_context_any_step_budget(
        self,
        width: int,
        chunks: list[int],
        penalty: float,
        stopping: EarlyStopping,
        max_tokens: int,
        budget: int,
        seed: int,
    ) -> None:
        engine = engine_of(hf_model=ending_model(), max_step_tokens=budget)
        request = Prompts(engine, seed).request(
            chunks=chunks, max_tokens=max_tokens, n=width, ignore_eos=False
        )
        (one,) = run(engine, replace(request, beams=Beams(width, penalty, stopping)))
        assume(assert_equals_textbook(one, ending_model(), END_MARKS) >= NOISE)

    @pytest.mark.parametrize("stopping", STOPPINGS, ids=lambda s: s.value)
    @pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
    def test_the_beams_of_transformers(self, penalty: float, stopping: EarlyStopping) -> None:
        """``full`` is stock prefill, so ``generate(num_beams=…)`` itself is the oracle."""
        engine, model = engine_of(hf_model=ending_model()), ending_model()
        request = Prompts(engine, 3).request(reuse=ReuseMode.FULL, max_tokens=10, n=4, ignore_eos=False)
        (one,) = run(engine, replace(request, beams=Beams(4, penalty, stopping)))
        ids = [*request.prefix_ids, *(t for c in request.chunks for t in c.token_ids), *request.questions[0]]
        theirs = {EarlyStopping.FIRST: True, EarlyStopping.ESTIMATE: False, EarlyStopping.NEVER: "never"}[
            stopping
        ]
        out = model.generate(
            torch.tensor([ids]),
            num_beams=4,
            num_return_sequences=4,
            length_penalty=penalty,
            early_stopping=theirs,
            max_new_tokens=10,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        for rank in range(4):
            tokens = one.branch(0, rank).token_ids
            padded = out.sequences[rank, len(ids) :].tolist()
            assert list(tokens) == padded[: len(tokens)]
            assert set(padded[len(tokens) :]) <= {0, END_MARKS[0]}, "padding"
            assert one.finish(0, rank).score == pytest.approx(float(out.sequences_scores[rank]), abs=1e-4)

    def test_width_one_is_greedy_decoding(self) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, 4).request(max_tokens=8)
        greedy, beam = run(engine, request, replace(request, request_id="beam", beams=Beams(1)))
        assert_alike(greedy.branch(), beam.branch())
        assert [[i for i, _ in top] for top in greedy.branch().top_logprobs] == [
            [i for i, _ in top] for top in beam.branch().top_logprobs
        ]
        assert greedy.finish().score == pytest.approx(beam.finish().score, abs=1e-4)

    def test_only_the_best_n_are_told_and_their_text_is_whole(self) -> None:
        engine = engine_of("qwen2", decode=lambda ids: "".join(chr(97 + i % 26) for i in ids))
        request = Prompts(engine, 5).request(max_tokens=5, n=2)
        (one,) = run(engine, replace(request, beams=Beams(4)))
        assert {(e.question, e.sample) for e in one.events if isinstance(e, TokenEvent)} == {(0, 0), (0, 1)}
        for rank in range(2):
            assert one.text(0, rank) == "".join(chr(97 + i % 26) for i in one.branch(0, rank).token_ids)
        assert one.finish(0, 0).score >= one.finish(0, 1).score


class TestCompanyChangesNoBeam:
    def test_bitwise_under_batch_invariance_with_neighbours_preemption_and_small_budgets(self) -> None:
        def requests(prompts: Prompts) -> list[GenerateRequest]:
            beams = prompts.request(questions=(9, 20), max_tokens=12, n=3)
            others = [prompts.request(questions=(5,), max_tokens=12, temperature=0.8, n=2) for _ in range(2)]
            return [
                others[0],
                replace(beams, beams=Beams(3)),
                others[1],
                replace(beams, request_id="again", beams=Beams(3)),
            ]

        alone = engine_of("qwen2", batch_invariant=True)
        truth = run(alone, requests(Prompts(alone, 6))[1])[0].branches()
        per_token = alone.model.spec.kv_bytes_per_token
        for changes in ({}, {"max_step_tokens": 7}, {"private_bytes": 250 * per_token}):
            engine = engine_of("qwen2", batch_invariant=True, **changes)
            paused = []
            runs = run(
                engine,
                *requests(Prompts(engine, 6)),
                on_event=lambda *_, e=engine, p=paused: p.append(e.stats().paused),
            )
            assert runs[1].branches() == truth
            assert runs[3].branches() == truth
            assert "private_bytes" not in changes or max(paused) > 0, "nothing was preempted"


class TestMemory:
    def test_dead_beams_free_their_kv_at_once_and_history_is_held_once(self) -> None:
        """What is held: the question, and of a forest of W leaves fewer than 2·W segments, each no more than
        its tokens and room to grow by half, whatever was forked and dropped."""
        engine = engine_of("qwen2")
        width, question_len, tokens = 8, 9, 90
        request = Prompts(engine, 7).request(questions=(question_len,), max_tokens=tokens, n=1)
        engine.submit(replace(request, beams=Beams(width)), (events := []).append)
        per_token = engine.model.spec.kv_bytes_per_token
        held, pieces = [], []
        while not any(type(e).__name__ == "DoneEvent" for e in events):
            engine.step()
            engine.check_invariants()
            held.append(engine.stats().private_bytes / per_token)
            (job,) = jobs_of(engine) or [None]
            if job is not None and job.growing:
                branches = job.branches()
                pieces.append(len(branches) - 1)
                distinct = sum(b.segment.length for b in branches)
                assert distinct <= question_len + tokens * width
                assert (
                    sum(b.segment.capacity for b in branches) <= question_len + 2 * distinct + 2 * width * 64
                )
        assert max(pieces) < 2 * width
        assert sum(pieces) / len(pieces) < 1.7 * width
        assert max(held) < question_len + 2 * width * 64 + 2 * tokens, "history is held more than once"
        assert engine.stats().private_bytes == 0

    def test_a_cancelled_search_leaves_nothing(self) -> None:
        engine = engine_of("qwen2")
        request = replace(Prompts(engine, 8).request(max_tokens=40, n=4), beams=Beams(4))
        engine.submit(request, (events := list[Event]()).append)
        with collector_off():
            for _ in range(12):
                engine.step()
            kv = [weakref.ref(branch.segment) for branch in jobs_of(engine)[0].branches()]
            assert len(kv) > 2
            engine.cancel(request.request_id)
            engine.step()
            assert isinstance(events[-1].error, Cancelled)  # type: ignore[union-attr]
            assert engine.stats().private_bytes == 0
            assert not any(ref() for ref in kv)

    def test_a_sample_that_ends_returns_its_kv_while_the_others_go_on(self) -> None:
        model = tiny_model("qwen2", seed=1)
        model.generation_config.eos_token_id = list(range(60, 80))
        engine = engine_of(hf_model=model)
        request = Prompts(engine, 9).request(max_tokens=60, n=8, temperature=1.0, seed=1, ignore_eos=False)
        kv: dict[tuple[int, int], weakref.ref[Segment]] = {}
        freed = 0
        events: list[Event] = []
        engine.submit(request, events.append)
        with collector_off():
            while not any(isinstance(e, DoneEvent) for e in events):
                engine.step()
                ended = {(e.question, e.sample) for e in events if isinstance(e, BranchDoneEvent)}
                assert not any(kv[one]() for one in ended if one in kv)
                answers = (
                    answer for job in jobs_of(engine) for answer in job.growing if isinstance(answer, Answer)
                )
                alive = {
                    (answer.question, answer.sample): weakref.ref(answer.branch.segment) for answer in answers
                }
                kv |= alive
                freed += bool(ended) and bool(alive)
                held = sum(branch.segment.num_bytes for job in jobs_of(engine) for branch in job.branches())
                assert engine.stats().private_bytes == held
        assert freed > 3, "all ended together"
        assert engine.stats().private_bytes == 0

    def test_what_no_leaf_sees_is_joined_or_cut(self) -> None:
        spec = engine_of("qwen2").model.spec
        generator = torch.Generator().manual_seed(0)

        def grow(branch: Branch, count: int) -> None:
            branch.segment.reserve(count)
            for kv in (*branch.segment.k_LKTD, *branch.segment.v_LKTD):
                room = kv[:, branch.segment.length : branch.segment.length + count]
                room.copy_(torch.randn(room.shape, generator=generator))
            branch.segment.length += count

        def history(branch: Branch) -> torch.Tensor:
            parts = [p.segment.k_LKTD[1][:, : p.num_tokens] for p in branch.seen()]
            return torch.cat([*parts, branch.segment.k_LKTD[1][:, : branch.segment.length]], dim=1).clone()

        root = Branch(spec, (), 10)
        grow(root, 50)
        a = root.fork(num_seen=20)
        b = root.fork()
        grow(root, 100)  # behind both: nobody sees it once the root's owner is gone
        grow(a, 3)
        grow(b, 4)
        c = b.fork(num_seen=2)
        grow(c, 5)
        before = [history(a), history(c)]
        assert [p.num_tokens for p in c.seen()] == [50, 2]
        compact([a, c])
        assert [history(a).equal(before[0]), history(c).equal(before[1])] == [True, True]
        assert len(reachable([a, c])) == 3, "b and c are one, on the root"
        assert root.segment.length == 50
        assert root.segment.capacity < 150
        compact([c])
        assert history(c).equal(before[1])
        assert reachable([c]) == [c]
        assert (c.first, c.segment.length) == (10, 57)


class TestSearchAlone:
    def test_equal_sums_go_to_the_better_beam_and_the_smaller_token(self) -> None:
        search = BeamSearch(Beams(2), 3, ())
        flat = tuple(enumerate(torch.full((4,), 0.25).log().tolist()))
        assert [(r.parent, r.steps[-1].token_id) for r in search.advance([flat])] == [(0, 0), (0, 1)]
        assert [(r.parent, r.steps[-1].token_id) for r in search.advance([flat, flat])] == [(0, 0), (0, 1)]

    def test_more_beams_than_tokens(self) -> None:
        search = BeamSearch(Beams(8), 2, (2,))
        flat = tuple(enumerate(torch.tensor([0.5, 0.3, 0.2]).log().tolist()))
        assert len(search.advance([flat])) == 2
        assert search.advance([flat, flat]) == []
        assert len(search.hypotheses) == 7, "one that ended, and six of full length"


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("changes", "sampling", "field"),
        [
            ({"beams": (0,)}, {}, "beams.width"),
            ({"beams": (65,)}, {}, "beams.width"),
            ({"beams": (2, math.nan)}, {}, "beams.length_penalty"),
            ({"beams": (2, 11.0)}, {}, "beams.length_penalty"),
            ({"beams": (2,)}, {"n": 3}, "sampling.n"),
            ({"beams": (2,)}, {"temperature": 0.5}, "sampling.temperature"),
            ({"beams": (2,)}, {"stop": ("x",)}, "sampling.stop"),
        ],
    )
    def test_options_that_contradict_each_other_name_the_field(
        self, changes: dict[str, Any], sampling: dict[str, Any], field: str
    ) -> None:
        engine = engine_of("qwen2", decode=lambda ids: "x" * len(ids))
        with pytest.raises(InvalidRequest) as refusal:
            run(engine, replace(Prompts(engine).request(**sampling), beams=Beams(*changes["beams"])))
        assert refusal.value.detail.startswith(field)

    def test_more_beams_than_the_engine_runs(self) -> None:
        engine = engine_of("qwen2", max_running_branches=4)
        request = Prompts(engine).request(questions=(3, 3))
        with pytest.raises(InvalidRequest, match=r"questions × beams\.width: 6 branches; .* at most 4"):
            run(engine, replace(request, beams=Beams(3)))
