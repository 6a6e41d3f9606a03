"""The exactness laws over int8 weights: against stock transformers that hold the numbers which these stand
for (``round_weights``)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.model.int8 import best_level, round_weights
from shared.engine.model.lora import LoraAdapter
from shared.generation.asked import GenerateRequest
from shared.generation.modes import Recompute, ReuseMode
from tests import oracles
from tests.engine_runs import Prompts, Shelf, any_lengths, assert_alike, assert_equals_oracle, engine_of, run
from tests.lora_adapters import merged, random_adapter
from tests.oracles import FAMILIES, ORACLES, VARIANTS, as_dtype, assert_same_generation, tiny_model

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not best_level(), reason="no kernels of int8 weights on this processor"),
]
MODES = [mode for mode in ReuseMode if mode.value in ORACLES]
DTYPES = [torch.float32, torch.bfloat16]


@lru_cache
def twin(family: str) -> Any:
    """Stock, float32, with rounded weights."""
    model = tiny_model(family)
    round_weights(model)
    return model


@lru_cache
def shared_engine(family: str) -> Engine:
    return engine_of(family, weights="int8")


def int8_engine(family: str, dtype: torch.dtype, **changes: Any) -> Engine:
    return engine_of(hf_model=as_dtype(tiny_model(family), dtype), weights="int8", **changes)


class TestModesEqualTheirOracles:
    """Laws 1 to 4."""

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("family", FAMILIES + VARIANTS)
    def test_every_family_in_every_mode(self, family: str, mode: ReuseMode) -> None:
        engine = shared_engine(family)
        request = Prompts(engine, seed=1).request(chunks=(20, 1, 90, 33), reuse=mode)
        assert_equals_oracle(run(engine, request)[0], twin(family))

    def test_the_exact_weights_are_another_model(self) -> None:
        """Or the law would say nothing."""
        engine = shared_engine("qwen2")
        with pytest.raises(AssertionError):
            assert_equals_oracle(run(engine, Prompts(engine, seed=1).request())[0], tiny_model("qwen2"))

    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen2", "phi3_partial")),
        mode=st.sampled_from(MODES),
        **any_lengths(longest_question=80),
    )
    def test_any_lengths_any_number_of_chunks_any_questions(
        self, family: str, mode: ReuseMode, prefix: int, chunks: list[int], questions: list[int], seed: int
    ) -> None:
        engine = shared_engine(family)
        request = Prompts(engine, seed).request(prefix, chunks, questions, mode, max_tokens=4)
        assert_equals_oracle(run(engine, request)[0], twin(family))

    @pytest.mark.parametrize("changes", [{"max_step_tokens": 16}, {"backend": "reference"}])
    def test_small_steps_and_the_reference_backend(self, changes: dict[str, Any]) -> None:
        engine = engine_of("qwen2", weights="int8", **changes)
        request = Prompts(engine, seed=5).request(prefix=20, chunks=(50, 33), questions=(40, 3))
        assert_equals_oracle(run(engine, request)[0], twin("qwen2"))

    def test_chunks_behind_their_documents(self) -> None:
        engine = shared_engine("llama3")
        prompts = Prompts(engine, seed=3)
        request = prompts.request(max_tokens=3)
        document = prompts.document(request.prefix_ids, (12, 20, 31, 9))
        placed = replace(request, chunks=tuple(document[i] for i in (3, 1)), links=tuple(document))
        assert_equals_oracle(run(engine, placed)[0], twin("llama3"))

    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen3")),
        chunks=st.lists(st.integers(1, 60), min_size=1, max_size=5),
        fraction=st.sampled_from((0.0, 0.2, 0.7, 1.0)),
        seed=st.integers(0, 1000),
    )
    def test_any_tokens_computed_anew(
        self, family: str, chunks: list[int], fraction: float, seed: int
    ) -> None:
        engine = shared_engine(family)
        tokens = tuple(oracles.random_tokens(sum(chunks), round(fraction * sum(chunks)), seed))
        (one,) = run(
            engine,
            Prompts(engine, seed).request(
                chunks=chunks, reuse=ReuseMode.TOKENS, recompute=Recompute(tokens=tokens), max_tokens=3
            ),
        )
        assert isinstance(one.request, GenerateRequest)
        oracle_GV = partial(oracles.recomputed, selected=tokens)(
            twin(family),
            one.request.prefix_ids,
            [chunk.token_ids for chunk in one.request.chunks],
            one.request.questions[0],
            one.branch().token_ids,
        )
        assert_same_generation(one.branch(), oracle_GV)

    @pytest.mark.parametrize("family", ["llama3", "qwen2"])
    def test_bfloat16_is_as_near_to_float32_as_the_stock_model(self, family: str) -> None:
        plain = as_dtype(tiny_model(family), torch.bfloat16)
        exact, stock = as_dtype(plain, torch.float32), as_dtype(plain, torch.bfloat16)
        round_weights(exact)
        round_weights(stock)
        engine = int8_engine(family, torch.bfloat16)
        prompts, ours, theirs = Prompts(engine, seed=7), [], []
        for lengths in ((30, 64, 5), (100, 41), (12, 12, 12, 70)):
            request = prompts.request(chunks=lengths, max_tokens=12, top_logprobs=64)
            branch = run(engine, request)[0].branch()
            args = (request.prefix_ids, [c.token_ids for c in request.chunks], request.questions[0])
            exact_GV, stock_GV = (
                oracles.reordered(model, *args, branch.token_ids).log_softmax(-1) for model in (exact, stock)
            )
            for step, top in enumerate(branch.top_logprobs):
                ids = [token for token, _ in top]
                ours.append(torch.tensor([logprob for _, logprob in top]) - exact_GV[step, ids])
                theirs.append(stock_GV[step, ids] - exact_GV[step, ids])
        rms = [float(torch.cat(errors).pow(2).mean().sqrt()) for errors in (ours, theirs)]
        assert rms[0] <= 1.25 * rms[1]


class TestCompany:
    """Laws 5 and 6."""

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_questions_together_equal_each_alone(self, mode: ReuseMode) -> None:
        engine = shared_engine("llama3")
        together = Prompts(engine, seed=8).request(questions=(9, 1, 80, 9), reuse=mode, max_tokens=8)
        (forest,) = run(engine, together)
        for index, question in enumerate(together.questions):
            (alone,) = run(engine, replace(together, request_id=f"alone-{index}", questions=(question,)))
            assert_alike(forest.branch(index), alone.branch())

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_with_batch_invariance_questions_keep_the_bits_of_each_alone(
        self, mode: ReuseMode, dtype: torch.dtype
    ) -> None:
        engine = int8_engine("llama3", dtype, batch_invariant=True)
        together = Prompts(engine, seed=8).request(
            chunks=(20, 70, 33), questions=(9, 1, 70), reuse=mode, max_tokens=6
        )
        (forest,) = run(engine, together)
        for index, question in enumerate(together.questions):
            (alone,) = run(engine, replace(together, request_id=f"alone-{index}", questions=(question,)))
            assert forest.branch(index) == alone.branch()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_with_batch_invariance_requests_keep_their_bits_whoever_else_is_served(
        self, dtype: torch.dtype
    ) -> None:
        engine = int8_engine("qwen2", dtype, batch_invariant=True)
        prompts = Prompts(engine, seed=12)
        prefix, shared = prompts.ids(7), prompts.ids(40)
        requests = [
            prompts.request(prefix, (shared, 25), (9,), max_tokens=10),
            prompts.request(prefix, (66, shared), (5, 30), temperature=0.8, seed=1, n=2),
            prompts.request(prefix, (shared, 60), (3,), ReuseMode.FULL, max_tokens=5),
            prompts.request(prefix, (shared, 31), (11, 4), ReuseMode.EPIC, Recompute(0.4)),
        ]
        together = run(engine, *requests)
        for one in reversed(together):
            assert isinstance(one.request, GenerateRequest)
            fresh = int8_engine("qwen2", dtype, batch_invariant=True)
            (alone,) = run(fresh, replace(one.request, request_id="alone"))
            assert alone.branches() == one.branches()

    def test_every_sampled_path_equals_the_oracle_on_that_path(self) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, seed=10).request(questions=(9, 4), temperature=1.2, seed=3, n=3)
        assert_equals_oracle(run(engine, request)[0], twin("qwen2"))

    def test_stored_kv_answers_as_computed_kv_and_is_not_the_exact_models(self) -> None:
        shelf = Shelf()
        first, later, exact = (
            engine_of("qwen2", source=shelf, weights=weights) for weights in ("int8", "int8", "exact")
        )
        request = Prompts(first, seed=13).request()
        (computed,) = run(first, request)
        first.shut_down()
        saved = set(shelf.kv)
        (loaded,) = run(later, replace(request, request_id="later"))
        assert loaded.done.usage.loaded_tokens == sum(len(chunk.token_ids) for chunk in request.chunks)
        assert_alike(loaded.branch(), computed.branch())
        (other,) = run(exact, Prompts(exact, seed=13).request())
        assert other.done.usage.loaded_tokens == 0
        exact.shut_down()
        assert len(shelf.kv) == 2 * len(saved)


@lru_cache
def adapter_of(family: str) -> LoraAdapter:
    return random_adapter(tiny_model(family), "qa", 1)


class TestAdapters:
    """Made for the exact model, and served over its rounded weights."""

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("mode", [ReuseMode.REORDERED, ReuseMode.EPIC], ids=lambda m: m.value)
    def test_private_rows_are_the_adapted_models(self, family: str, mode: ReuseMode) -> None:
        model = wrap_model(tiny_model(family), weights="int8")
        engine = Engine(model, EngineConfig(weights="int8"), adapters=[adapter_of(family)])
        request = Prompts(engine, seed=1).request(chunks=(20, 1, 64), questions=(9, 1, 70), reuse=mode)
        (one,) = run(engine, replace(request, adapter="qa"))
        assert_equals_oracle(one, merged(twin(family), adapter_of(family)))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_nobody_else_notices(self, dtype: torch.dtype) -> None:
        model = wrap_model(as_dtype(tiny_model("llama3"), dtype), weights="int8")
        engine = Engine(model, EngineConfig(batch_invariant=True), adapters=[adapter_of("llama3")])
        prompts = Prompts(engine, seed=2)
        plain, adapted = prompts.request(questions=(9, 4)), prompts.request(questions=(3, 12))
        adapted = replace(adapted, adapter="qa")
        both = run(engine, plain, adapted)
        for one in both:
            assert isinstance(one.request, GenerateRequest)
            (alone,) = run(engine, replace(one.request, request_id=f"{one.request.request_id} alone"))
            assert alone.branches() == one.branches()
