"""Selective recompute (law 4): any tokens of a context computed anew beside others that stay as they were
stored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine import Engine, LiveForest
from shared.engine.backends.native import best_level
from shared.engine.modes.epic import first_of_chunks
from shared.engine.modes.token_selection import blend_counts, num_selected
from shared.errors import InvalidRequest
from shared.generation.asked import GenerateRequest, SamplingParams
from shared.generation.forest import ForestRequest, Grow, Start
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import GrownEvent, SelectedEvent
from tests import oracles
from tests.engine_runs import Prompts, Run, Shelf, assert_alike, engine_of, run
from tests.oracles import FAMILIES, VARIANTS, Generated, assert_same_generation, epic_tokens, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

BY_RATIO = [
    mode for mode in ReuseMode if mode.recomputes and not mode.deferred and mode is not ReuseMode.TOKENS
]


@lru_cache
def oracle_model(family: str) -> Any:
    return tiny_model(family)


@lru_cache
def shared_engine(family: str) -> Engine:
    return engine_of(family)


def context_len(request: GenerateRequest) -> int:
    return sum(len(chunk.token_ids) for chunk in request.chunks)


def selections_of(one: Run) -> list[SelectedEvent]:
    return [e for e in one.events if isinstance(e, SelectedEvent)]


def selected_of(one: Run) -> tuple[int, ...]:
    (event,) = selections_of(one)
    return event.tokens


def assert_is(one: Run, oracle: Any, model: Any) -> None:
    """Every branch of the run against ``oracle(model, prefix, chunks, question, generated)``."""
    request = one.request
    assert isinstance(request, GenerateRequest)
    chunks = [c.token_ids for c in request.chunks]
    for (question, _), ours in one.branches().items():
        oracle_GV = oracle(model, request.prefix_ids, chunks, request.questions[question], ours.token_ids)
        assert_same_generation(ours, oracle_GV, greedy=request.sampling.temperature == 0)


def assert_recomputed(one: Run, model: Any, tokens: Sequence[int]) -> None:
    assert selected_of(one) == tuple(sorted(tokens))
    assert_is(one, partial(oracles.recomputed, selected=tokens), model)


def some(num_tokens: int, fraction: float, seed: int) -> tuple[int, ...]:
    """Single tokens and runs, in no order."""
    draw = random.Random(seed)
    chosen: set[int] = set()
    while len(chosen) < fraction * num_tokens:
        start = draw.randrange(num_tokens)
        chosen |= set(range(start, min(num_tokens, start + draw.choice((1, 1, 8)))))
    return tuple(draw.sample(sorted(chosen), len(chosen)))


def by_list(prompts: Prompts, tokens: Sequence[int], **pieces: Any) -> GenerateRequest:
    return prompts.request(reuse=ReuseMode.TOKENS, recompute=Recompute(tokens=tuple(tokens)), **pieces)


class TestBetweenNoneAndAll:
    @pytest.mark.parametrize("family", FAMILIES + VARIANTS)
    def test_every_family_equals_the_oracle_layer_by_layer(self, family: str) -> None:
        prompts = Prompts(shared_engine(family), seed=1)
        tokens = some(118, 0.3, seed=1)
        (one,) = run(shared_engine(family), by_list(prompts, tokens, chunks=(20, 1, 64, 33)))
        assert_recomputed(one, oracle_model(family), tokens)

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen2", "qwen3", "phi3_partial")),
        prefix=st.integers(0, 9),
        chunks=st.lists(st.integers(1, 90), min_size=1, max_size=6),
        questions=st.lists(st.integers(1, 40), min_size=1, max_size=3),
        fraction=st.sampled_from((0.02, 0.2, 0.7, 1.0)),
        seed=st.integers(0, 1000),
    )
    def test_any_tokens_of_any_chunks_for_any_questions(
        self, family: str, prefix: int, chunks: list[int], questions: list[int], fraction: float, seed: int
    ) -> None:
        tokens = some(sum(chunks), fraction, seed)
        prompts = Prompts(shared_engine(family), seed)
        request = by_list(prompts, tokens, prefix=prefix, chunks=chunks, questions=questions, max_tokens=4)
        (one,) = run(shared_engine(family), request)
        assert_recomputed(one, oracle_model(family), tokens)

    def test_it_is_neither_reordered_nor_full(self) -> None:
        """Or the law would say nothing."""
        prompts = Prompts(shared_engine("qwen2"), seed=2)
        (one,) = run(shared_engine("qwen2"), by_list(prompts, some(54, 0.4, seed=2)))
        for other in (oracles.full, oracles.reordered):
            with pytest.raises(AssertionError):
                assert_is(one, other, oracle_model("qwen2"))

    def test_of_a_chunk_that_stands_twice_either_place_is_recomputed_by_itself(self) -> None:
        prompts = Prompts(shared_engine("qwen2"), seed=3)
        a, b = prompts.ids(17), prompts.ids(30)
        for tokens in (range(50, 60), range(3, 12), (0, 5, 48, 52), range(47, 64)):
            (one,) = run(shared_engine("qwen2"), by_list(prompts, tokens, chunks=(a, b, a), max_tokens=3))
            assert_recomputed(one, oracle_model("qwen2"), tokens)

    @pytest.mark.parametrize("family", ["llama3", "llama_yarn"])
    def test_positions_far_beyond_float32_angles(self, family: str) -> None:
        tokens = some(2452, 0.1, seed=4)
        request = by_list(
            Prompts(shared_engine(family), seed=4),
            tokens,
            prefix=6,
            chunks=(700, 512, 640, 600),
            questions=(20,),
            max_tokens=3,
        )
        assert_recomputed(run(shared_engine(family), request)[0], oracle_model(family), tokens)

    @pytest.mark.parametrize("backend", ["native", "torch", "reference"])
    def test_every_backend(self, backend: str) -> None:
        if backend == "native" and not best_level():
            pytest.skip("this processor has no AVX2")
        engine = engine_of("llama_yarn", backend=backend)
        tokens = some(103, 0.3, seed=5)
        (one,) = run(engine, by_list(Prompts(engine, seed=5), tokens, chunks=(20, 50, 33), questions=(9, 4)))
        assert_recomputed(one, oracle_model("llama_yarn"), tokens)

    @pytest.mark.parametrize("questions", [(9,), (40, 3)], ids=["one", "two"])
    def test_a_step_budget_smaller_than_every_piece(self, questions: tuple[int, ...]) -> None:
        engine = engine_of("qwen2", max_step_tokens=16)
        tokens = some(83, 0.6, seed=6)
        request = by_list(Prompts(engine, seed=6), tokens, prefix=20, chunks=(50, 33), questions=questions)
        assert_recomputed(run(engine, request)[0], oracle_model("qwen2"), tokens)

    @pytest.mark.parametrize("family", ["llama3", "qwen2"])
    def test_bfloat16_is_as_near_to_float32_as_the_stock_model(self, family: str) -> None:
        stock = oracles.as_dtype(oracle_model(family), torch.bfloat16)
        exact = oracles.as_dtype(stock, torch.float32)
        engine = engine_of(hf_model=oracles.as_dtype(oracle_model(family), torch.bfloat16))
        ours, theirs = [], []
        for seed, lens in enumerate(((30, 64, 5), (100, 41), (12, 12, 12, 70))):
            tokens = some(sum(lens), 0.3, seed)
            request = by_list(Prompts(engine, seed), tokens, chunks=lens, max_tokens=12, top_logprobs=64)
            branch = run(engine, request)[0].branch()
            args = (
                request.prefix_ids,
                [c.token_ids for c in request.chunks],
                request.questions[0],
                branch.token_ids,
                tokens,
            )
            exact_GV, stock_GV = (
                oracles.recomputed(model, *args).log_softmax(-1) for model in (exact, stock)
            )
            for step, top in enumerate(branch.top_logprobs):
                ids = [token for token, _ in top]
                ours.append(torch.tensor([logprob for _, logprob in top]) - exact_GV[step, ids])
                theirs.append(stock_GV[step, ids] - exact_GV[step, ids])
        assert _rms(ours) <= 1.25 * _rms(theirs)


class TestTheEnds:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("questions", [(9,), (9, 4)], ids=["one", "two"])
    def test_all_tokens_listed_are_full_and_none_are_reordered(
        self, family: str, questions: tuple[int, ...]
    ) -> None:
        engine = shared_engine(family)
        prompts = Prompts(engine, seed=7)
        everything, nothing = (
            run(engine, by_list(prompts, range(n), questions=questions))[0] for n in (54, 0)
        )
        assert_is(everything, oracles.full, oracle_model(family))
        assert_is(nothing, oracles.reordered, oracle_model(family))

    @pytest.mark.parametrize("mode", BY_RATIO, ids=lambda m: m.value)
    @pytest.mark.parametrize("prefix", [0, 7])
    def test_ratio_1_is_full_and_ratio_0_is_reordered(self, mode: ReuseMode, prefix: int) -> None:
        engine = shared_engine("llama3")
        prompts = Prompts(engine, seed=9)
        everything, nothing = (
            run(engine, prompts.request(prefix=prefix, reuse=mode, recompute=Recompute(ratio)))[0]
            for ratio in (1.0, 0.0)
        )
        assert_is(everything, oracles.full, oracle_model("llama3"))
        assert_is(nothing, oracles.reordered, oracle_model("llama3"))
        assert everything.done.usage.reused_tokens == prefix
        assert nothing.done.usage.recomputed_tokens >= 9


class TestModes:
    @pytest.mark.parametrize(
        "mode", [mode for mode in BY_RATIO if mode is not ReuseMode.CACHEBLEND], ids=lambda m: m.value
    )
    @settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        chunks=st.lists(st.integers(1, 60), max_size=5),
        ratio=st.floats(0, 1),
        prefix=st.integers(0, 5),
        seed=st.integers(0, 99),
    )
    def test_any_ratio_selects_that_part_of_the_tokens_and_equals_the_oracle(
        self, mode: ReuseMode, chunks: list[int], ratio: float, prefix: int, seed: int
    ) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, seed).request(
            prefix=prefix, chunks=chunks, reuse=mode, recompute=Recompute(ratio, seed=seed), max_tokens=3
        )
        (one,) = run(engine, request)
        assert abs(len(selected_of(one)) - ratio * sum(chunks)) <= 0.5
        assert_recomputed(one, oracle_model("qwen2"), selected_of(one))

    @given(lens=st.lists(st.integers(1, 30), max_size=6), ratio=st.floats(0, 1))
    @settings(max_examples=30, deadline=None)
    def test_epic_takes_the_beginnings_of_all_chunks_but_the_first(
        self, lens: list[int], ratio: float
    ) -> None:
        count = num_selected(ratio, sum(lens))
        tokens = first_of_chunks(lens, count)
        assert list(tokens) == epic_tokens(lens, count)
        per_chunk = [sum(sum(lens[:i]) <= t < sum(lens[: i + 1]) for t in tokens) for i in range(len(lens))]
        assert not lens or not per_chunk[0] or per_chunk[1:] == lens[1:], "the first chunk is taken last"
        for number, length in zip(per_chunk[1:], lens[1:], strict=True):
            assert number == length or max(per_chunk[1:]) - number <= 1, "chunks take turns"

    def test_random_is_another_set_for_another_seed_and_the_same_for_the_same(self) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, seed=10).request(reuse=ReuseMode.RANDOM, recompute=Recompute(0.3, seed=1))
        other = replace(request, request_id="other", recompute=Recompute(0.3, seed=2))
        one, again, another = run(engine, request, replace(request, request_id="again"), other)
        assert selected_of(one) == selected_of(again) != selected_of(another)
        assert_alike(one.branch(), again.branch())

    def test_without_a_ratio_it_is_a_fifth(self) -> None:
        engine = shared_engine("qwen2")
        (one,) = run(engine, Prompts(engine, seed=11).request(chunks=(50, 50), reuse=ReuseMode.EPIC))
        assert selected_of(one) == tuple(range(50, 70))


class TestQueryAttention:
    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen2", "phi3_partial", "llama_yarn")),
        prefix=st.integers(0, 6),
        chunks=st.lists(st.integers(1, 50), min_size=1, max_size=5),
        questions=st.lists(st.integers(1, 30), min_size=1, max_size=3),
        ratio=st.sampled_from((0.05, 0.2, 0.6)),
        seed=st.integers(0, 99),
    )
    def test_every_question_recomputes_what_it_attends_to_most(
        self, family: str, prefix: int, chunks: list[int], questions: list[int], ratio: float, seed: int
    ) -> None:
        """Scores are those of the stock model; of tokens that are as good as equal either may be chosen."""
        engine, model = shared_engine(family), oracle_model(family)
        request = Prompts(engine, seed).request(
            prefix, chunks, questions, ReuseMode.QUERY_ATTENTION, Recompute(ratio), max_tokens=3
        )
        (one,) = run(engine, request)
        count = round_half_up(ratio * sum(chunks))
        if count in (0, sum(chunks)):
            return
        ids = [c.token_ids for c in request.chunks]
        events = {event.question: event for event in selections_of(one)}
        for index, question in enumerate(request.questions):
            scores_T = oracles.question_scores(model, request.prefix_ids, ids, question)
            torch.testing.assert_close(torch.tensor(events[index].scores), scores_T, atol=1e-5, rtol=1e-3)
            tokens = events[index].tokens
            assert len(tokens) == count
            others = [t for t in range(sum(chunks)) if t not in tokens]
            assert scores_T[list(tokens)].min() > scores_T[others].max() - 1e-5
            ours = one.branch(index)
            oracle_GV = oracles.recomputed(model, request.prefix_ids, ids, question, ours.token_ids, tokens)
            assert_same_generation(ours, oracle_GV)

    def test_scoring_in_several_passes_is_scoring_in_one(self) -> None:
        narrow, wide = engine_of("qwen2", max_step_tokens=7), engine_of("qwen2")
        request = Prompts(wide, seed=21).request(questions=(30, 12), reuse=ReuseMode.QUERY_ATTENTION)
        by_pass, at_once = (run(engine, request)[0] for engine in (narrow, wide))
        for one, other in zip(selections_of(by_pass), selections_of(at_once), strict=True):
            assert (one.tokens, one.question) == (other.tokens, other.question)
            torch.testing.assert_close(
                torch.tensor(one.scores), torch.tensor(other.scores), atol=1e-6, rtol=1e-3
            )

    def test_company_changes_neither_choice_nor_answer(self) -> None:
        engine = engine_of("llama3")
        prompts = Prompts(engine, seed=22)
        request = prompts.request(
            questions=(9, 14), reuse=ReuseMode.QUERY_ATTENTION, recompute=Recompute(0.3), n=2, temperature=0.7
        )
        company = prompts.request(request.prefix_ids, [c.token_ids for c in request.chunks], (20,))
        together = run(engine, company, request)[1]
        for index, question in enumerate(request.questions):
            (alone,) = run(engine, replace(request, request_id=f"alone-{index}", questions=(question,)))
            (own,) = (event for event in selections_of(together) if event.question == index)
            assert own.tokens == selected_of(alone)
            for sample in range(2):
                assert_alike(together.branch(index, sample), alone.branch(0, sample))
        assert engine.stats().private_bytes == 0

    def test_usage_counts_what_any_question_selected_once(self) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, seed=23).request(questions=(9, 14), reuse=ReuseMode.QUERY_ATTENTION)
        run(engine, request)
        (one,) = run(engine, replace(request, request_id="warm"))
        selected = {token for event in selections_of(one) for token in event.tokens}
        assert one.done.usage.selected_tokens == len(selected)
        assert one.done.usage.recomputed_tokens == 23 + len(selected)

    def test_a_live_forest_has_no_question_to_go_by(self) -> None:
        engine = shared_engine("qwen2")
        with pytest.raises(InvalidRequest, match="query_attention"):
            engine.submit(ForestRequest("forest", (), (), ReuseMode.QUERY_ATTENTION), lambda event: None)


@lru_cache
def deep_model(family: str) -> Any:
    return tiny_model(family, num_hidden_layers=5)


@lru_cache
def deep_engine(family: str) -> Engine:
    return engine_of(hf_model=tiny_model(family, num_hidden_layers=5))


def blend_request(prompts: Prompts, ratio: float, **pieces: Any) -> GenerateRequest:
    return prompts.request(reuse=ReuseMode.CACHEBLEND, recompute=Recompute(ratio), **pieces)


class TestCacheBlend:
    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen2", "qwen3", "phi3_partial", "llama_yarn")),
        prefix=st.integers(0, 6),
        chunks=st.lists(st.integers(1, 50), min_size=1, max_size=5),
        questions=st.lists(st.integers(1, 30), min_size=1, max_size=3),
        ratio=st.sampled_from((0.05, 0.2, 0.45, 0.6, 0.9)),
        seed=st.integers(0, 99),
    )
    def test_every_layer_computes_its_own_tokens_as_the_oracle_does(
        self, family: str, prefix: int, chunks: list[int], questions: list[int], ratio: float, seed: int
    ) -> None:
        engine = deep_engine(family)
        request = blend_request(
            Prompts(engine, seed), ratio, prefix=prefix, chunks=chunks, questions=questions, max_tokens=3
        )
        (one,) = run(engine, request)
        if round_half_up(ratio * sum(chunks)) == 0:
            assert_is(one, oracles.reordered, deep_model(family))
        elif round_half_up(ratio * sum(chunks)) == sum(chunks):
            assert_is(one, oracles.full, deep_model(family))
        else:
            assert_is(one, partial(oracles.blended, ratio=ratio), deep_model(family))

    def test_it_is_neither_reordered_nor_full_nor_one_set_for_all_layers(self) -> None:
        (one,) = run(
            deep_engine("qwen2"),
            blend_request(Prompts(deep_engine("qwen2"), seed=24), 0.6, chunks=(40, 30, 30)),
        )
        for other in (
            oracles.full,
            oracles.reordered,
            partial(oracles.recomputed, selected=selected_of(one)),
        ):
            with pytest.raises(AssertionError):
                assert_is(one, other, deep_model("qwen2"))

    def test_fewer_and_fewer_tokens_are_computed_on_average_the_ratio(self) -> None:
        request = blend_request(Prompts(deep_engine("qwen2"), seed=25), 0.52, chunks=(50, 50))
        run(deep_engine("qwen2"), request)
        (warm,) = run(deep_engine("qwen2"), replace(request, request_id="warm"))
        (event,) = selections_of(warm)
        assert event.layers == (100, 100, 30, 20, 10)
        assert len(event.tokens) == 30
        assert len(event.scores) == 100
        assert min(event.scores[t] for t in event.tokens) >= sorted(event.scores)[-30]
        usage = warm.done.usage
        assert usage.selected_tokens == 52, "the mean of all layers"
        assert usage.recomputed_tokens == 9 + usage.selected_tokens

    @pytest.mark.parametrize(("ratio", "num_layers"), [(0.2, 24), (0.1, 28), (0.7, 4), (0.5, 80), (1.0, 24)])
    def test_the_mean_of_all_layers_is_the_ratio(self, ratio: float, num_layers: int) -> None:
        counts = blend_counts(ratio, 1000, num_layers)
        assert counts[:2] == [1000, 1000]
        assert counts[2:] == sorted(counts[2:], reverse=True)
        assert abs(sum(counts) / num_layers - 1000 * ratio) <= 0.5

    def test_below_the_share_of_the_first_two_layers_no_other_computes_any(self) -> None:
        assert blend_counts(0.2, 100, 5) == [100, 100, 0, 0, 0]

    @pytest.mark.parametrize("backend", ["native", "torch", "reference"])
    def test_every_backend(self, backend: str) -> None:
        if backend == "native" and not best_level():
            pytest.skip("this processor has no AVX2")
        engine = engine_of(
            hf_model=tiny_model("llama3", num_hidden_layers=5), backend=backend, max_step_tokens=16
        )
        (one,) = run(
            engine, blend_request(Prompts(engine, seed=26), 0.6, chunks=(20, 50, 33), questions=(9, 4))
        )
        assert_is(one, partial(oracles.blended, ratio=0.6), deep_model("llama3"))

    @pytest.mark.parametrize("bitwise", [False, True], ids=["float32", "float32-bitwise"])
    def test_company_and_preemption_change_nothing_and_stored_kv_keeps_its_bits(self, bitwise: bool) -> None:
        def engine(**changes: Any) -> Engine:
            return engine_of(
                hf_model=tiny_model("qwen2", num_hidden_layers=5), batch_invariant=bitwise, **changes
            )

        prompts = Prompts(engine(), seed=27)
        prefix, a, b = prompts.ids(7), prompts.ids(40), prompts.ids(25)
        requests = [
            blend_request(prompts, 0.6, prefix=prefix, chunks=(a, b), questions=(9,)),
            prompts.request(prefix, (b, a), (5, 8)),
            blend_request(
                prompts, 0.5, prefix=prefix, chunks=(b, a, b), questions=(4, 11), n=2, temperature=0.8
            ),
            prompts.request(prefix, (a, b), (6,), ReuseMode.RANDOM),
        ]
        truth = [run(engine(), request)[0] for request in requests]
        tight = engine(private_bytes=90 * engine_kv_bytes() * 5 // 2, max_step_tokens=24)
        run(tight, *(prompts.request(prefix, (chunk,), (3,)) for chunk in (a, b)))
        before = kv_bits(tight)
        together = run(tight, *requests)
        for ours, alone in zip(together, truth, strict=True):
            for path, branch in alone.branches().items():
                if bitwise:
                    assert ours.branch(*path) == branch
                else:
                    assert_alike(ours.branch(*path), branch)
        assert {key: kv_bits(tight)[key] for key in before} == before
        assert tight.stats().private_bytes == 0

    def test_a_live_forest_grows_on_blended_tokens(self) -> None:
        engine = deep_engine("qwen2")
        like = blend_request(Prompts(engine, seed=28), 0.6, chunks=(20, 25))
        asked = ForestRequest("forest", like.prefix_ids, like.chunks, like.reuse, recompute=like.recompute)
        with LiveForest(engine, asked) as forest:
            events = forest.do(
                Start(0, like.questions[0]), Grow(0, SamplingParams(max_tokens=5, ignore_eos=True))
            )
        grown = [e for e in events if isinstance(e, GrownEvent)]
        ours = Generated(tuple(e.token_id for e in grown), tuple(e.logprob for e in grown))
        chunks = [c.token_ids for c in like.chunks]
        oracle_GV = oracles.blended(
            deep_model("qwen2"), like.prefix_ids, chunks, like.questions[0], ours.token_ids, 0.6
        )
        assert_same_generation(ours, oracle_GV)

    def test_a_model_of_two_layers_computes_all(self) -> None:
        (one,) = run(shared_engine("qwen2"), blend_request(Prompts(shared_engine("qwen2"), seed=29), 0.2))
        assert_is(one, oracles.full, oracle_model("qwen2"))
        assert one.done.usage.selected_tokens == 54


class TestAmongOthers:
    def test_shared_segments_keep_their_bits_and_their_other_readers(self) -> None:
        """A request that recomputes, one that recomputes other tokens and one that recomputes nothing, over
        the same chunks in one engine at once; then the stored KV is what it was."""
        engine = engine_of("qwen2")
        prompts = Prompts(engine, seed=12)
        prefix, a, b = prompts.ids(7), prompts.ids(40), prompts.ids(25)
        (plain,) = run(engine, prompts.request(prefix, (a, b), (9,)))
        before = kv_bits(engine)
        first, second = some(65, 0.3, seed=12), some(65, 0.3, seed=13)
        one, two, three = run(
            engine,
            by_list(prompts, first, prefix=prefix, chunks=(a, b), questions=(9,)),
            by_list(prompts, second, prefix=prefix, chunks=(b, a), questions=(5, 8)),
            replace(plain.request, request_id="plain again"),
        )
        assert_recomputed(one, oracle_model("qwen2"), first)
        assert_recomputed(two, oracle_model("qwen2"), second)
        assert_alike(three.branch(), plain.branch())
        assert kv_bits(engine) == before
        assert engine.stats().private_bytes == 0

    def test_samples_and_questions_together_equal_each_alone(self) -> None:
        engine = shared_engine("llama3")
        tokens = some(54, 0.3, seed=14)
        request = by_list(
            Prompts(engine, seed=14), tokens, questions=(9, 4), temperature=0.9, seed=7, n=3, max_tokens=8
        )
        (many,) = run(engine, request)
        assert_recomputed(many, oracle_model("llama3"), tokens)
        for question in range(2):
            alone = replace(
                request, request_id=f"alone-{question}", questions=request.questions[question : question + 1]
            )
            (one,) = run(engine, alone)
            for sample in range(3):
                assert_alike(many.branch(question, sample), one.branch(0, sample))

    def test_a_live_forest_grows_on_recomputed_tokens(self) -> None:
        engine = engine_of("qwen2")
        prompts = Prompts(engine, seed=15)
        tokens = some(45, 0.4, seed=15)
        like = by_list(prompts, tokens, chunks=(20, 25))
        asked = ForestRequest(
            "forest", like.prefix_ids, like.chunks, ReuseMode.TOKENS, recompute=like.recompute
        )
        with LiveForest(engine, asked) as forest:
            events = forest.do(
                Start(0, like.questions[0]), Grow(0, SamplingParams(max_tokens=5, ignore_eos=True))
            )
        grown = [e for e in events if isinstance(e, GrownEvent)]
        ours = Generated(tuple(e.token_id for e in grown), tuple(e.logprob for e in grown))
        chunks = [c.token_ids for c in like.chunks]
        oracle_GV = oracles.recomputed(
            oracle_model("qwen2"), like.prefix_ids, chunks, like.questions[0], ours.token_ids, tokens
        )
        assert_same_generation(ours, oracle_GV)

    def test_tokens_are_recomputed_on_chunks_that_are_still_being_read(self) -> None:
        shelf = Shelf()
        first = engine_of("qwen2", source=shelf)
        prompts = Prompts(first, seed=16)
        tokens = some(54, 0.3, seed=16)
        request = by_list(prompts, tokens)
        (computed,) = run(first, request)
        first.shut_down()  # not before all is stored
        (loaded,) = run(
            engine_of("qwen2", source=shelf, overlap_from_s=0.0), replace(request, request_id="again")
        )
        assert_recomputed(loaded, oracle_model("qwen2"), tokens)
        assert loaded.done.usage.loaded_tokens == 54
        assert computed.done.usage.recomputed_tokens == 54 + 9

    @pytest.mark.parametrize(
        "mode", [m for m in ReuseMode if m is not ReuseMode.FULL and not m.deferred], ids=lambda m: m.value
    )
    @pytest.mark.parametrize("spoilt", [False, True], ids=["intact", "spoilt"])
    def test_every_mode_answers_alike_on_chunks_that_are_being_read_and_on_spoilt_ones(
        self, mode: ReuseMode, spoilt: bool
    ) -> None:
        """A spoilt chunk's first layer is good: a pass that had begun on it is taken back."""
        shelf = Shelf()
        first, second = (
            engine_of(hf_model=tiny_model("qwen2", num_hidden_layers=5), source=shelf, overlap_from_s=0.0)
            for _ in range(2)
        )
        request = Prompts(first, seed=30).request(questions=(9, 4), reuse=mode)
        (computed,) = run(first, request)
        first.shut_down()  # not before all is stored
        if spoilt:
            shelf.corrupt.add(request.chunks[2].chunk_id)
        (loaded,) = run(second, replace(request, request_id="again"))
        for question in range(2):
            assert_alike(loaded.branch(question), computed.branch(question))
        told, before = selections_of(loaded), selections_of(computed)
        assert [(e.tokens, e.question, e.layers) for e in told] == [
            (e.tokens, e.question, e.layers) for e in before
        ]
        second.shut_down()


class TestAccounting:
    def test_usage_says_what_was_selected_and_counts_it_as_recomputed(self) -> None:
        engine = engine_of("qwen2")
        prompts = Prompts(engine, seed=17)
        prefix, chunks = prompts.ids(7), (prompts.ids(20), prompts.ids(30))
        (cold,) = run(
            engine, prompts.request(prefix, chunks, (9,), ReuseMode.TOKENS, Recompute(tokens=(3, 22)))
        )
        assert cold.done.usage.recomputed_tokens == 50 + 9, "chunks that had to be computed count once"
        assert cold.done.usage.selected_tokens == 2
        assert cold.done.usage.written_tokens == 50
        (warm,) = run(
            engine, prompts.request(prefix, chunks, (9,), ReuseMode.TOKENS, Recompute(tokens=(3, 22)))
        )
        usage = warm.done.usage
        assert usage.written_tokens == 0
        assert (usage.prompt_tokens, usage.reused_tokens, usage.recomputed_tokens, usage.selected_tokens) == (
            66,
            55,
            11,
            2,
        )

    def test_other_modes_select_nothing(self) -> None:
        engine = shared_engine("qwen2")
        for mode in (ReuseMode.FULL, ReuseMode.REORDERED, ReuseMode.COMPOSITE):
            (one,) = run(engine, Prompts(engine, seed=18).request(reuse=mode))
            assert not any(isinstance(e, SelectedEvent) for e in one.events)
            assert one.done.usage.selected_tokens == 0

    def test_what_is_recomputed_is_private_memory_from_the_start(self) -> None:
        """So that admission knows what a request will hold."""
        engine = engine_of("qwen2", private_bytes=100 * engine_kv_bytes())
        prompts = Prompts(engine, seed=19)
        chunks = (prompts.ids(60), prompts.ids(60))
        most: list[int] = []
        requests = [prompts.request((), chunks, (9,), ReuseMode.EPIC, Recompute(0.5)) for _ in range(3)]
        runs = run(engine, *requests, on_event=lambda one, event: most.append(engine.stats().running))
        assert max(most) == 1
        for one in runs:
            assert_recomputed(one, oracle_model("qwen2"), selected_of(one))


class TestBadInput:
    @pytest.mark.parametrize("ratio", [-0.01, 1.01, float("nan"), float("inf")])
    def test_a_ratio_outside_0_to_1_is_refused(self, ratio: float) -> None:
        with pytest.raises(InvalidRequest, match=r"recompute\.ratio.*0 to 1"):
            Recompute(ratio)

    def test_a_token_named_twice_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match=r"recompute\.tokens: 7 .*once"):
            Recompute(tokens=(3, 7, 9, 7))

    @pytest.mark.parametrize(
        ("mode", "recompute", "match"),
        [
            (ReuseMode.TOKENS, Recompute(tokens=(54,)), r"recompute\.tokens: 54 .*54 tokens"),
            (ReuseMode.TOKENS, Recompute(tokens=(-1,)), r"recompute\.tokens: -1"),
            (ReuseMode.TOKENS, Recompute(0.2, (1,)), r"recompute\.ratio: mode tokens"),
            (ReuseMode.EPIC, Recompute(tokens=(1,)), r"recompute\.tokens: mode epic"),
            (ReuseMode.REORDERED, Recompute(0.2), r"recompute\.ratio: mode reordered"),
            (ReuseMode.FULL, Recompute(tokens=(1,)), r"recompute\.tokens: mode full"),
        ],
        ids=str,
    )
    def test_what_does_not_fit_the_context_or_the_mode_is_refused(
        self, mode: ReuseMode, recompute: Recompute, match: str
    ) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, seed=20).request(reuse=mode, recompute=recompute)
        with pytest.raises(InvalidRequest, match=match):
            engine.submit(request, lambda event: None)
        forest = ForestRequest("forest", request.prefix_ids, request.chunks, mode, recompute=recompute)
        with pytest.raises(InvalidRequest, match=match):
            engine.submit(forest, lambda event: None)


def round_half_up(number: float) -> int:
    return int(number + 0.5)


def kv_bits(engine: Engine) -> dict[str, bytes]:
    """Of every resident chunk."""
    bits = {}
    for chunk_id in engine.stats().resident_chunk_ids:
        entry = engine._cache._pool.get(chunk_id)
        assert entry is not None
        assert entry.segment is not None
        length = entry.segment.length
        kv = [
            x[:, :length].contiguous().numpy().tobytes()
            for x in (*entry.segment.k_LKTD, *entry.segment.v_LKTD)
        ]
        bits[chunk_id] = b"".join(kv)
    return bits


def engine_kv_bytes() -> int:
    return shared_engine("qwen2").model.spec.kv_bytes_per_token


def _rms(errors: list[torch.Tensor]) -> float:
    return float(torch.cat(errors).pow(2).mean().sqrt())
