"""The exactness laws of the engine, against stock transformers (``tests.oracles``), on random models in
float32."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine import Engine, EngineConfig, wrap_model
from shared.errors import Cancelled
from shared.generation.asked import GenerateRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import Event, TokenEvent
from tests import oracles
from tests.engine_runs import Prompts, Run, any_lengths, assert_alike, assert_equals_oracle, engine_of, run
from tests.oracles import FAMILIES, ORACLES, VARIANTS, as_dtype, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

MODES = [mode for mode in ReuseMode if mode.value in ORACLES]


@lru_cache
def oracle_model(family: str) -> Any:
    return tiny_model(family)


@lru_cache
def shared_engine(family: str) -> Engine:
    """One engine for many examples: later examples meet whatever earlier ones left resident."""
    return engine_of(family)


class TestModesEqualTheirOracles:
    """Laws 1, 2 and 3."""

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("family", FAMILIES + VARIANTS)
    def test_every_family_in_every_mode(self, family: str, mode: ReuseMode) -> None:
        engine = shared_engine(family)
        request = Prompts(engine, seed=1).request(
            prefix=7, chunks=(20, 1, 64, 33), questions=(9,), reuse=mode
        )
        assert_equals_oracle(run(engine, request)[0], oracle_model(family))

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen2", "phi3_partial")),
        mode=st.sampled_from(MODES),
        **any_lengths(),
    )
    def test_any_lengths_any_number_of_chunks_any_questions(
        self, family: str, mode: ReuseMode, prefix: int, chunks: list[int], questions: list[int], seed: int
    ) -> None:
        engine = shared_engine(family)
        request = Prompts(engine, seed).request(prefix, chunks, questions, mode, max_tokens=4)
        assert_equals_oracle(run(engine, request)[0], oracle_model(family))

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_any_order_and_the_same_chunk_twice(self, mode: ReuseMode) -> None:
        engine = shared_engine("qwen2")
        prompts = Prompts(engine, seed=2)
        prefix, question = prompts.ids(5), prompts.ids(8)
        a, b, c = prompts.ids(17), prompts.ids(30), prompts.ids(2)
        for chunks in ((a, b, c), (c, a, b), (b, a, b), (a, a), (c,)):
            request = prompts.request(prefix, chunks, (question,), mode, max_tokens=3)
            assert_equals_oracle(run(engine, request)[0], oracle_model("qwen2"))

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("family", ["llama3", "llama_yarn"])
    def test_positions_far_beyond_float32_angles(self, family: str, mode: ReuseMode) -> None:
        engine = shared_engine(family)
        request = Prompts(engine, seed=3).request(
            prefix=6, chunks=(700, 512, 640, 600), questions=(20,), reuse=mode, max_tokens=3
        )
        assert_equals_oracle(run(engine, request)[0], oracle_model(family))

    def test_a_long_row_of_chunks_when_reordered(self) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, seed=4).request(prefix=6, chunks=(500,) * 24, questions=(12,), max_tokens=2)
        assert_equals_oracle(run(engine, request)[0], oracle_model("qwen2"))

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_a_step_budget_smaller_than_every_piece(self, mode: ReuseMode) -> None:
        engine = engine_of("qwen2", max_step_tokens=16)
        request = Prompts(engine, seed=5).request(prefix=20, chunks=(50, 33), questions=(40, 3), reuse=mode)
        assert_equals_oracle(run(engine, request)[0], oracle_model("qwen2"))

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_the_reference_backend(self, mode: ReuseMode) -> None:
        engine = engine_of("llama_yarn", backend="reference")
        request = Prompts(engine, seed=6).request(reuse=mode, questions=(9, 4))
        assert_equals_oracle(run(engine, request)[0], oracle_model("llama_yarn"))

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("family", ["llama3", "qwen2"])
    def test_bfloat16_is_as_near_to_float32_as_the_stock_model(self, family: str, mode: ReuseMode) -> None:
        stock = as_dtype(oracle_model(family), torch.bfloat16)
        exact = as_dtype(stock, torch.float32)
        engine = Engine(
            wrap_model(as_dtype(oracle_model(family), torch.bfloat16)), EngineConfig(dtype="bfloat16")
        )
        prompts = Prompts(engine, seed=7)
        ours, theirs = [], []
        for lengths in ((30, 64, 5), (100, 41), (12, 12, 12, 70)):
            # Ask for the widest report there is: 64 of the 257 logits, as log-probabilities on both sides.
            request = prompts.request(
                prefix=7, chunks=lengths, questions=(9,), reuse=mode, max_tokens=12, top_logprobs=64
            )
            branch = run(engine, request)[0].branch()
            args = (
                request.prefix_ids,
                [c.token_ids for c in request.chunks],
                request.questions[0],
                branch.token_ids,
            )
            exact_GV = oracles.ORACLES[mode.value](exact, *args).log_softmax(-1)
            stock_GV = oracles.ORACLES[mode.value](stock, *args).log_softmax(-1)
            for step, top in enumerate(branch.top_logprobs):
                ids = [token for token, _ in top]
                ours.append(torch.tensor([logprob for _, logprob in top]) - exact_GV[step, ids])
                theirs.append(stock_GV[step, ids] - exact_GV[step, ids])
        assert _rms(ours) <= 1.25 * _rms(theirs)


class TestForestsEqualTheirPaths:
    """Law 5."""

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_questions_together_equal_each_alone(self, mode: ReuseMode) -> None:
        engine = shared_engine("llama3")
        prompts = Prompts(engine, seed=8)
        together = prompts.request(questions=(9, 1, 30, 9), reuse=mode, max_tokens=8)
        (forest,) = run(engine, together)
        for index, question in enumerate(together.questions):
            (alone,) = run(engine, replace(together, request_id=f"alone-{index}", questions=(question,)))
            assert_alike(forest.branch(index), alone.branch())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_with_batch_invariance_questions_keep_the_bits_of_each_alone(
        self, mode: ReuseMode, dtype: torch.dtype
    ) -> None:
        engine = engine_of(hf_model=as_dtype(oracle_model("llama3"), dtype), batch_invariant=True)
        together = Prompts(engine, seed=8).request(
            chunks=(20, 70, 33), questions=(9, 1, 70), reuse=mode, max_tokens=6
        )
        (forest,) = run(engine, together)
        for index, question in enumerate(together.questions):
            (alone,) = run(engine, replace(together, request_id=f"alone-{index}", questions=(question,)))
            assert forest.branch(index) == alone.branch()

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_seeded_samples_together_equal_each_path_alone(self, mode: ReuseMode) -> None:
        engine = shared_engine("llama3")
        request = Prompts(engine, seed=9).request(
            questions=(9, 4), reuse=mode, temperature=0.9, seed=7, n=3, max_tokens=8
        )
        (many,) = run(engine, request)
        (one,) = run(engine, replace(request, request_id="one", sampling=replace(request.sampling, n=1)))
        for question in range(2):
            alone_request = replace(
                request, request_id=f"alone-{question}", questions=request.questions[question : question + 1]
            )
            (alone,) = run(engine, alone_request)
            assert_alike(many.branch(question, 0), one.branch(question, 0))
            for sample in range(3):
                assert_alike(many.branch(question, sample), alone.branch(0, sample))
        assert len({b.token_ids for b in many.branches().values()}) == 6, "samples are drawn independently"

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_every_sampled_path_equals_the_oracle_on_that_path(self, mode: ReuseMode) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, seed=10).request(questions=(9, 4), reuse=mode, temperature=1.2, seed=3, n=3)
        assert_equals_oracle(run(engine, request)[0], oracle_model("qwen2"))

    def test_the_same_seed_samples_the_same_and_another_seed_does_not(self) -> None:
        engine = shared_engine("qwen2")
        request = Prompts(engine, seed=11).request(temperature=1.0, seed=5, max_tokens=12)
        (one,) = run(engine, request)
        (again,) = run(engine, replace(request, request_id="again"))
        (other,) = run(
            engine, replace(request, request_id="other", sampling=replace(request.sampling, seed=6))
        )
        assert one.branch().token_ids == again.branch().token_ids
        assert one.branch().token_ids != other.branch().token_ids


def _mixed_requests(prompts: Prompts) -> list[GenerateRequest]:
    """Shared chunks, all modes, several questions, samples, long and short."""
    prefix, shared, other = prompts.ids(7), prompts.ids(40), prompts.ids(25)
    return [
        prompts.request(prefix, (shared, other), (9,), ReuseMode.REORDERED, max_tokens=10),
        prompts.request(
            prefix, (other, shared, other), (5, 30), ReuseMode.REORDERED, temperature=0.8, seed=1, n=2
        ),
        prompts.request(prefix, (shared,), (12,), ReuseMode.COMPOSITE, max_tokens=8),
        prompts.request(prefix, (shared, 60), (3,), ReuseMode.FULL, max_tokens=5),
        prompts.request((), (), (14,), ReuseMode.REORDERED, max_tokens=7),
        prompts.request(prefix, (90, shared), (21, 2), ReuseMode.COMPOSITE, temperature=1.1, seed=2),
        prompts.request(prefix, (shared, other), (11, 4), ReuseMode.EPIC, Recompute(0.4), max_tokens=6),
        prompts.request(prefix, (other, 50, shared), (8,), ReuseMode.RANDOM, temperature=0.9, seed=3, n=2),
        prompts.request(prefix, (shared, other), (17, 6), ReuseMode.QUERY_ATTENTION, max_tokens=5),
    ]


@pytest.mark.parametrize(
    ("dtype", "bitwise"),
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)],
    ids=["float32", "float32-bitwise", "bfloat16-bitwise"],
)
class TestCompanyChangesNothing:
    """Law 6; with ``batch_invariant`` bit by bit."""

    def engine(self, dtype: torch.dtype, bitwise: bool, **changes: Any) -> Engine:
        hf_model = tiny_model("qwen2") if dtype == torch.float32 else as_dtype(oracle_model("qwen2"), dtype)
        return engine_of(hf_model=hf_model, batch_invariant=bitwise, **changes)

    def alone(self, dtype: torch.dtype, bitwise: bool) -> tuple[list[GenerateRequest], list[Run]]:
        """Every request by itself on a fresh engine: the truth of this class."""
        requests = _mixed_requests(Prompts(self.engine(dtype, bitwise), seed=12))
        return requests, [run(self.engine(dtype, bitwise), request)[0] for request in requests]

    def check(self, runs: list[Run], truth: list[Run], bitwise: bool) -> None:
        by_id = {one.request.request_id: one for one in runs}
        for expected in truth:
            got = by_id[expected.request.request_id]
            if bitwise:
                assert got.branches() == expected.branches(), "not equal bit by bit"
            else:
                for path, branch in expected.branches().items():
                    assert_alike(got.branch(*path), branch)
            assert got.done.usage.prompt_tokens == expected.done.usage.prompt_tokens
            assert got.done.usage.generated_tokens == expected.done.usage.generated_tokens

    def test_batch_composition_and_order_of_arrival(self, dtype: torch.dtype, bitwise: bool) -> None:
        requests, truth = self.alone(dtype, bitwise)
        self.check(run(self.engine(dtype, bitwise), *requests), truth, bitwise)
        self.check(run(self.engine(dtype, bitwise), *reversed(requests)), truth, bitwise)
        self.check(run(self.engine(dtype, bitwise, max_step_tokens=24), *requests), truth, bitwise)
        self.check(run(self.engine(dtype, bitwise, max_running_branches=4), *requests), truth, bitwise)

    def test_residency_and_eviction(self, dtype: torch.dtype, bitwise: bool) -> None:
        requests, truth = self.alone(dtype, bitwise)
        warm = self.engine(dtype, bitwise)
        run(warm, *(replace(r, request_id="warm-" + r.request_id) for r in requests))
        self.check(run(warm, *requests), truth, bitwise)
        per_token = warm.model.spec.kv_bytes_per_token
        # not all chunks fit beside each other
        tight = self.engine(dtype, bitwise, resident_bytes=140 * per_token)
        for request, expected in zip(requests, truth, strict=True):
            self.check(run(tight, request), [expected], bitwise)
        assert tight.stats().resident_bytes <= 140 * per_token
        self.check(run(tight, *(reversed(requests))), truth, bitwise)
        chunk_ids = {c.chunk_id for r in requests for c in r.chunks if r.reuse is not ReuseMode.FULL}
        assert len(tight.stats().resident_chunk_ids) < len(chunk_ids), "nothing was evicted"

    def test_preemption(self, dtype: torch.dtype, bitwise: bool) -> None:
        requests, truth = self.alone(dtype, bitwise)
        per_token = self.engine(dtype, bitwise).model.spec.kv_bytes_per_token
        tight = self.engine(dtype, bitwise, private_bytes=160 * per_token)
        num_paused = []
        self.check(
            run(tight, *requests, on_event=lambda one, event: num_paused.append(tight.stats().paused)),
            truth,
            bitwise,
        )
        assert max(num_paused) > 0, "nothing was preempted"

    def test_cancellation_of_neighbours(self, dtype: torch.dtype, bitwise: bool) -> None:
        requests, truth = self.alone(dtype, bitwise)
        engine = self.engine(dtype, bitwise)
        victims = {requests[1].request_id, requests[3].request_id}

        def cancel_at_first_token(one: Run, event: Event) -> None:
            if isinstance(event, TokenEvent) and one.request.request_id in victims:
                engine.cancel(one.request.request_id)

        runs = run(engine, *requests, on_event=cancel_at_first_token)
        for one in runs:
            if one.request.request_id in victims:
                assert isinstance(one.error, Cancelled)
        self.check(runs, [t for t in truth if t.request.request_id not in victims], bitwise)
        assert engine.stats().private_bytes == 0, "a cancelled request's memory returns"


def _rms(errors: list[torch.Tensor]) -> float:
    return float(torch.cat(errors).pow(2).mean().sqrt())
