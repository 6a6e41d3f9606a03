"""Request-side adapters: the laws with private rows by an adapted model and stored KV by the model itself,
and that nobody else notices one.

The oracle of a request with an adapter is that of its mode, stock transformers in two stages: prefix and
chunks by the base model, question, generated tokens and whatever is computed anew by a copy of it with the
adapter merged (``tests.lora_adapters.merged``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from shared.engine import Engine, EngineConfig, LiveForest, wrap_model
from shared.engine.model.adapting import TILE, AdapterWeights, adapted_rows, adapting
from shared.engine.model.lora import AdapterFacts, LoraAdapter, LoraPair
from shared.engine.model.lora_files import write_adapter
from shared.engine.model.packing import FLOAT32, PackedGatedMlp, best_products
from shared.errors import ConfigError, InvalidRequest, ModelMismatch
from shared.generation.asked import Beams, GenerateRequest
from shared.generation.forest import ForestRequest, Fork, Grow, Start
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import Event, GrownEvent, SelectedEvent, TokenEvent
from tests import oracles
from tests.engine_runs import (
    Prompts,
    Run,
    Shelf,
    any_lengths,
    assert_alike,
    assert_equals_oracle,
    engine_of,
    run,
)
from tests.lora_adapters import merged, random_adapter
from tests.oracles import FAMILIES, ORACLES, Generated, as_dtype, assert_same_generation, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = [mode for mode in ReuseMode if mode.row.stored and not mode.deferred]
WITH_ORACLE = [mode for mode in STORED if mode.value in ORACLES]
DTYPES = [torch.float32, torch.bfloat16]
Ids = Sequence[int]


@lru_cache
def base_model(family: str) -> Any:
    return tiny_model(family)


@lru_cache
def adapter_of(family: str, name: str = "qa", seed: int = 1) -> LoraAdapter:
    return random_adapter(base_model(family), name, seed)


@lru_cache
def adapted_model(family: str) -> Any:
    """With ``qa`` merged."""
    return merged(base_model(family), adapter_of(family))


def serving(family: str, dtype: torch.dtype = torch.float32, source: Any = None, **changes: Any) -> Engine:
    """An engine that serves ``qa`` and ``other``."""
    extra = {} if source is None else {"source": source}
    adapters = [adapter_of(family), adapter_of(family, "other", 2)]
    model = wrap_model(as_dtype(base_model(family), dtype))
    return Engine(model, EngineConfig(**changes), adapters=adapters, **extra)


@lru_cache
def shared_engine(family: str) -> Engine:
    return serving(family)


def asked(prompts: Prompts, adapter: str = "qa", **pieces: Any) -> GenerateRequest:
    return replace(prompts.request(**pieces), adapter=adapter)


def side_by_side(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Any],
    question: Sequence[int],
    generated: Sequence[int],
) -> torch.Tensor:
    """``composite`` in two stages: chunks stored by the base model right behind the prefix, the question at
    its place behind all of them. Returns [G, V]."""
    tail = [*question, *generated[:-1]]
    start = len(prefix) + sum(map(len, chunks))
    with torch.no_grad():
        past = DynamicCache()
        for kv in (oracles._kv_of(model, prefix), *(oracles._chunk_kv(model, prefix, c) for c in chunks)):
            oracles._append(past, kv)
        logits = model(
            input_ids=torch.tensor([tail]),
            position_ids=torch.arange(start, start + len(tail))[None],
            past_key_values=past,
            use_cache=True,
        ).logits[0]
    return logits[-len(generated) :].float()


def behind_the_prefix(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Any],
    question: Sequence[int],
    generated: Sequence[int],
) -> torch.Tensor:
    """Law 4 at 100 %: the prefix's KV from the base model, then one stock forward of the adapted model over
    all chunks, question and generated tokens. Returns [G, V]."""
    rows = [*(i for c in chunks for i in c), *question, *generated[:-1]]
    with torch.no_grad():
        past = DynamicCache()
        oracles._append(past, oracles._kv_of(model, prefix))
        logits = model(input_ids=torch.tensor([rows]), past_key_values=past, use_cache=True).logits[0]
    return logits[-len(generated) :].float()


def assert_is(one: Run, oracle: Callable[..., torch.Tensor], model: Any, tolerance: float = 1e-4) -> None:
    """Every branch of the run against ``oracle(model, prefix, chunks, question, generated)``."""
    request = one.request
    assert isinstance(request, GenerateRequest)
    chunks = [c.token_ids for c in request.chunks]
    for (question, _), ours in one.branches().items():
        oracle_GV = oracle(model, request.prefix_ids, chunks, request.questions[question], ours.token_ids)
        assert_same_generation(ours, oracle_GV, tolerance, greedy=request.sampling.temperature == 0)


class TestPrivateRowsAreTheAdaptedModels:
    """Law 2, and 3 in two stages."""

    @pytest.mark.parametrize("mode", WITH_ORACLE, ids=lambda m: m.value)
    @pytest.mark.parametrize("family", FAMILIES)
    def test_every_family_in_every_mode(self, family: str, mode: ReuseMode) -> None:
        engine = shared_engine(family)
        request = asked(
            Prompts(engine, seed=1),
            prefix=7,
            chunks=(20, 1, 64, 33),
            questions=(9,),
            reuse=mode,
            max_tokens=4,
        )
        (one,) = run(engine, request)
        model = adapted_model(family)
        if mode is ReuseMode.COMPOSITE:
            assert_is(one, side_by_side, model)
        else:
            assert_equals_oracle(one, model)
        assert one.done.usage.adapter == "qa"

    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen3", "phi3_partial")),
        mode=st.sampled_from((ReuseMode.REORDERED, ReuseMode.EPIC, ReuseMode.APE)),
        **any_lengths(most_chunks=6),
    )
    def test_any_lengths_any_number_of_chunks_any_questions(
        self, family: str, mode: ReuseMode, prefix: int, chunks: list[int], questions: list[int], seed: int
    ) -> None:
        engine = shared_engine(family)
        prompts = Prompts(engine, seed)
        request = asked(prompts, prefix=prefix, chunks=chunks, questions=questions, reuse=mode, max_tokens=4)
        assert_equals_oracle(run(engine, request)[0], adapted_model(family))

    def test_chunks_behind_their_documents(self) -> None:
        engine = shared_engine("qwen2")
        prompts = Prompts(engine, seed=3)
        request = prompts.request(max_tokens=3)
        document = prompts.document(request.prefix_ids, (12, 20, 31, 9))
        placed = replace(
            request, adapter="qa", chunks=tuple(document[i] for i in (3, 1)), links=tuple(document)
        )
        assert_equals_oracle(run(engine, placed)[0], adapted_model("qwen2"))

    @pytest.mark.parametrize(
        "only", [("q_proj",), ("v_proj", "down_proj"), ("gate_proj",), ("up_proj", "o_proj")]
    )
    def test_some_linear_layers_alone(self, only: tuple[str, ...]) -> None:
        adapter = random_adapter(base_model("llama3"), rank=3, only=only)
        engine = Engine(wrap_model(tiny_model("llama3")), adapters=[adapter])
        (one,) = run(engine, asked(Prompts(engine, seed=4), questions=(9, 1)))
        assert_equals_oracle(one, merged(base_model("llama3"), adapter))

    def test_some_layers_alone_with_ranks_and_scales_of_their_own(self) -> None:
        own = zip(itertools.cycle((1, 3, 2)), itertools.cycle((0.5, 2.0)), strict=False)
        pairs = {
            site: LoraPair(pair.a_rI[:rank], pair.b_Or[:, :rank], scale)
            for (site, pair), (rank, scale) in zip(adapter_of("qwen2").pairs.items(), own, strict=False)
            if site.layer == 1
        }
        adapter = LoraAdapter("qa", pairs)
        engine = Engine(wrap_model(tiny_model("qwen2")), adapters=[adapter])
        (one,) = run(engine, asked(Prompts(engine, seed=4)))
        assert_equals_oracle(one, merged(base_model("qwen2"), adapter))

    def test_a_small_step_budget_and_the_reference_backend(self) -> None:
        for changes in ({"max_step_tokens": 16}, {"backend": "reference"}, {"backend": "torch"}):
            engine = serving("qwen2", **changes)
            (one,) = run(
                engine, asked(Prompts(engine, seed=5), prefix=20, chunks=(50, 33), questions=(40, 3))
            )
            assert_equals_oracle(one, adapted_model("qwen2"))

    def test_it_is_neither_the_base_model_nor_the_adapted_one_alone(self) -> None:
        """Or the law would say nothing."""
        engine = shared_engine("qwen2")
        (one,) = run(engine, asked(Prompts(engine, seed=6)))
        alone = adapted_model("qwen2")
        with pytest.raises(AssertionError):
            assert_equals_oracle(one, base_model("qwen2"))
        with pytest.raises(AssertionError):
            assert_is(one, oracles.full, alone)

    @pytest.mark.parametrize("family", ["llama3", "qwen2"])
    def test_bfloat16_is_as_near_to_float32_as_the_stock_model(self, family: str) -> None:
        """On packed weights, where the processor has them."""
        whole = adapter_of(family)
        pairs = {s: LoraPair(p.a_rI.bfloat16(), p.b_Or.bfloat16(), p.scale) for s, p in whole.pairs.items()}
        adapter, base = LoraAdapter("qa", pairs), as_dtype(base_model(family), torch.bfloat16)
        exact = merged(as_dtype(base, torch.float32), adapter)
        stock = as_dtype(exact, torch.bfloat16)
        stock.__dict__["stored_by"] = base
        engine = Engine(wrap_model(as_dtype(base_model(family), torch.bfloat16)), adapters=[adapter])
        prompts, ours, theirs = Prompts(engine, seed=7), [], []
        for lengths in ((30, 64, 5), (100, 41), (12, 12, 12, 70)):
            request = asked(prompts, chunks=lengths, max_tokens=12, top_logprobs=64)
            branch = run(engine, request)[0].branch()
            args = (request.prefix_ids, [c.token_ids for c in request.chunks], request.questions[0])
            exact_GV, stock_GV = (
                oracles.reordered(model, *args, branch.token_ids).log_softmax(-1) for model in (exact, stock)
            )
            for step, top in enumerate(branch.top_logprobs):
                ids = [token for token, _ in top]
                ours.append(torch.tensor([logprob for _, logprob in top]) - exact_GV[step, ids])
                theirs.append(stock_GV[step, ids] - exact_GV[step, ids])
        assert _rms(ours) <= 1.25 * _rms(theirs)


class TestWhatIsComputedAnewGoesWithIt:
    """Law 4, the adapter equally on or off, and the modes with an oracle of their own."""

    @pytest.mark.parametrize("family", FAMILIES)
    def test_all_of_it_is_one_forward_behind_the_prefix(self, family: str) -> None:
        engine = shared_engine(family)
        tokens = tuple(range(54))
        request = asked(Prompts(engine, seed=1), reuse=ReuseMode.TOKENS, recompute=Recompute(tokens=tokens))
        (one,) = run(engine, request)
        assert_is(one, behind_the_prefix, adapted_model(family))
        (off,) = run(engine, replace(request, request_id="off", adapter=""))
        assert_is(off, oracles.full, base_model(family))

    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen2", "phi3_partial")),
        prefix=st.integers(0, 9),
        chunks=st.lists(st.integers(1, 60), min_size=1, max_size=5),
        questions=st.lists(st.integers(1, 40), min_size=1, max_size=3),
        fraction=st.sampled_from((0.0, 0.02, 0.2, 0.7, 1.0)),
        seed=st.integers(0, 1000),
    )
    def test_any_tokens_of_any_chunks(
        self, family: str, prefix: int, chunks: list[int], questions: list[int], fraction: float, seed: int
    ) -> None:
        engine = shared_engine(family)
        tokens = tuple(oracles.random_tokens(sum(chunks), round(fraction * sum(chunks)), seed))
        request = asked(
            Prompts(engine, seed),
            prefix=prefix,
            chunks=chunks,
            questions=questions,
            reuse=ReuseMode.TOKENS,
            recompute=Recompute(tokens=tokens),
            max_tokens=3,
        )
        (one,) = run(engine, request)
        assert_is(one, partial(oracles.recomputed, selected=tokens), adapted_model(family))

    @pytest.mark.parametrize("family", ["llama3", "qwen3"])
    def test_the_question_that_scores_is_the_adapted_models(self, family: str) -> None:
        engine = shared_engine(family)
        request = asked(
            Prompts(engine, seed=2),
            reuse=ReuseMode.QUERY_ATTENTION,
            recompute=Recompute(0.3),
            questions=(9, 5),
        )
        (one,) = run(engine, request)
        for event in (e for e in one.events if isinstance(e, SelectedEvent)):
            question, chunks = request.questions[event.question or 0], [c.token_ids for c in request.chunks]
            scores = oracles.question_scores(adapted_model(family), request.prefix_ids, chunks, question)
            torch.testing.assert_close(torch.tensor(event.scores), scores, atol=1e-5, rtol=0)
            ours = one.branch(event.question or 0)
            oracle_GV = oracles.recomputed(
                adapted_model(family), request.prefix_ids, chunks, question, ours.token_ids, event.tokens
            )
            assert_same_generation(ours, oracle_GV)

    @pytest.mark.parametrize("ratio", [0.3, 0.6])
    def test_cacheblend_computes_every_layer_by_the_adapted_model(self, ratio: float) -> None:
        deep = tiny_model("qwen2", num_hidden_layers=5)
        adapter = random_adapter(deep, strength=0.3)
        engine = Engine(wrap_model(tiny_model("qwen2", num_hidden_layers=5)), adapters=[adapter])
        request = asked(Prompts(engine, seed=3), reuse=ReuseMode.CACHEBLEND, recompute=Recompute(ratio))
        (one,) = run(engine, request)
        assert_is(one, partial(oracles.blended, ratio=ratio), merged(deep, adapter))

    def test_what_a_selector_chose(self) -> None:
        """``cacheclip``: decided while KV is loaded; by the fallback ``full`` nothing is adapted."""
        engine = shared_engine("qwen2")
        prompts = Prompts(engine, seed=4)
        tokens = (3, 4, 5, 30, 31)
        request = asked(prompts, reuse=ReuseMode.CACHECLIP)
        listed, by_full = Recompute(by_question=(tokens,)), Recompute()
        for mode, recompute, adapter in ((ReuseMode.TOKENS, listed, "qa"), (ReuseMode.FULL, by_full, "")):
            decided = replace(request, request_id=mode.value)
            one = _decided(engine, decided, mode, recompute)
            if mode is ReuseMode.TOKENS:
                assert_is(one, partial(oracles.recomputed, selected=tokens), adapted_model("qwen2"))
            else:
                assert_is(one, oracles.full, base_model("qwen2"))
            assert one.done.usage.adapter == adapter


class TestNobodyElseNotices:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_full_and_requests_without_one_keep_their_bits(self, dtype: torch.dtype) -> None:
        """Alone in their steps: by an engine that serves adapters as by one that knows none."""
        plain = engine_of(hf_model=as_dtype(base_model("qwen2"), dtype))
        requests = [Prompts(plain, seed=1).request(reuse=mode, questions=(9, 4)) for mode in STORED]
        requests.append(Prompts(plain, seed=1).request(reuse=ReuseMode.FULL, questions=(9, 4)))
        engine = serving("qwen2", dtype)
        for n, request in enumerate(requests):
            request = replace(request, request_id=f"r{n}")
            name = "qa" if request.reuse is ReuseMode.FULL else ""
            (before,), (after,) = run(plain, request), run(engine, replace(request, adapter=name))
            assert after.branches() == before.branches()
            assert after.done.usage == before.done.usage

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_stored_kv_and_what_is_computed_after_a_loss_keep_their_bits(self, dtype: torch.dtype) -> None:
        shelves = []
        for adapter in ("", "qa"):
            shelf = Shelf()
            engine = serving("qwen2", dtype, source=shelf)
            prompts = Prompts(engine, seed=2)
            request = asked(prompts, adapter, max_tokens=2)
            document = prompts.document(request.prefix_ids, (12, 20, 31))
            asking = replace(
                request, chunks=(*request.chunks, document[2]), links=tuple(document), request_id="r"
            )
            (one,) = run(engine, asking)  # nothing is stored: all of it is computed, and written back
            assert one.done.usage.adapter == adapter
            engine.shut_down()
            shelves.append(shelf)
        assert shelves[0].kv.keys() == shelves[1].kv.keys()
        assert len(shelves[0].kv) == 4
        for chunk_id, kv in shelves[0].kv.items():
            for ours, theirs in zip(kv, shelves[1].kv[chunk_id], strict=True):
                assert all(map(torch.equal, ours, theirs))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("adapter", ["", "qa"])
    @pytest.mark.parametrize("mode", STORED, ids=lambda m: m.value)
    def test_bits_do_not_depend_on_the_adapters_of_other_rows(
        self, dtype: torch.dtype, adapter: str, mode: ReuseMode
    ) -> None:
        """In steps of equal rows, without batch invariance: prefill beside prefill, decoding beside
        decoding. All chunks are resident, so that every time the same rows meet."""
        engine = serving("qwen2", dtype)
        prompts = Prompts(engine, seed=3)
        prefix, chunk = prompts.ids(5), prompts.ids(30)
        requests = [
            prompts.request(prefix, (chunk, 9), (9,), mode, max_tokens=8),
            prompts.request(prefix, (chunk, 12), (17,), n=2, temperature=0.8),
            prompts.request(prefix, (chunk,), (4,)),
        ]
        run(engine, *requests)
        ours = []
        for others in (("", ""), ("other", ""), ("other", "qa"), ("qa", "qa")):
            names = (adapter, *others)
            asked_now = [
                replace(request, request_id=f"{others} {n}", adapter=name)
                for n, (request, name) in enumerate(zip(requests, names, strict=True))
            ]
            ours.append(run(engine, *asked_now)[0].branches())
        assert all(one == ours[0] for one in ours)

    def test_hooks_are_there_only_while_a_layer_runs(self) -> None:
        engine = shared_engine("qwen2")
        modules = list(engine.model.hf_model.modules())
        left: list[int] = []

        def look(one: Run, event: Event) -> None:
            left.append(sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules))

        run(engine, asked(Prompts(engine, seed=4)), on_event=look)
        assert not any(left)
        assert len(left) > 6


def _mixed(prompts: Prompts) -> list[GenerateRequest]:
    """Shared chunks, all modes, several questions and samples, each with another adapter or none."""
    prefix, shared, other = prompts.ids(7), prompts.ids(40), prompts.ids(25)
    plain = [
        prompts.request(prefix, (shared, other), (9,), ReuseMode.REORDERED, max_tokens=8),
        prompts.request(prefix, (other, shared), (5, 30), ReuseMode.REORDERED, temperature=0.8, seed=1, n=2),
        prompts.request(prefix, (shared,), (12,), ReuseMode.COMPOSITE, max_tokens=7),
        prompts.request(prefix, (shared, 60), (3,), ReuseMode.FULL, max_tokens=5),
        prompts.request((), (), (14,), ReuseMode.REORDERED, max_tokens=6),
        prompts.request(prefix, (shared, other), (11, 4), ReuseMode.EPIC, Recompute(0.4), max_tokens=5),
        prompts.request(prefix, (shared, other), (17, 6), ReuseMode.QUERY_ATTENTION, max_tokens=5),
        prompts.request(prefix, (other, shared), (8,), ReuseMode.CACHEBLEND, Recompute(0.9), max_tokens=5),
        prompts.request(prefix, (shared, other), (6,), ReuseMode.APE, max_tokens=5),
        replace(prompts.request(prefix, (other,), (8,), max_tokens=5), beams=Beams(2)),
    ]
    names = ("qa", "other", "", "qa", "other", "qa", "qa", "other", "qa", "other")
    return [replace(request, adapter=name) for request, name in zip(plain, names, strict=True)]


@pytest.mark.parametrize(
    ("dtype", "bitwise"),
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)],
    ids=["float32", "float32-bitwise", "bfloat16-bitwise"],
)
class TestMixedAdaptersInAStep:
    """Laws 5 and 6; with ``batch_invariant`` bit by bit."""

    def alone(self, dtype: torch.dtype, bitwise: bool) -> tuple[list[GenerateRequest], list[Run]]:
        engine = serving("qwen2", dtype, batch_invariant=bitwise)
        requests = _mixed(Prompts(engine, seed=12))
        return requests, [run(engine, request)[0] for request in requests]

    def check(self, runs: list[Run], truth: list[Run], bitwise: bool) -> None:
        by_id = {one.request.request_id: one for one in runs}
        for expected in truth:
            got = by_id[expected.request.request_id]
            if bitwise:
                assert got.branches() == expected.branches(), "not equal bit by bit"
            else:
                for path, branch in expected.branches().items():
                    assert_alike(got.branch(*path), branch)
            assert got.done.usage.adapter == expected.done.usage.adapter

    def test_company_order_budget_eviction_and_preemption(self, dtype: torch.dtype, bitwise: bool) -> None:
        requests, truth = self.alone(dtype, bitwise)
        make = partial(serving, "qwen2", dtype, batch_invariant=bitwise)
        per_token = make().model.spec.kv_bytes_per_token
        self.check(run(make(), *requests), truth, bitwise)
        self.check(run(make(max_step_tokens=24), *reversed(requests)), truth, bitwise)
        self.check(run(make(resident_bytes=140 * per_token), *requests), truth, bitwise)
        tight, num_paused = make(private_bytes=160 * per_token), []
        runs = run(tight, *requests, on_event=lambda one, event: num_paused.append(tight.stats().paused))
        self.check(runs, truth, bitwise)
        assert max(num_paused) > 0, "nothing was preempted"

    def test_questions_and_samples_together_equal_each_alone(self, dtype: torch.dtype, bitwise: bool) -> None:
        engine = serving("qwen2", dtype, batch_invariant=bitwise)
        together = asked(Prompts(engine, seed=8), chunks=(20, 70), questions=(9, 1, 70), max_tokens=5)
        (forest,) = run(engine, together)
        for index, question in enumerate(together.questions):
            (alone,) = run(engine, replace(together, request_id=f"alone-{index}", questions=(question,)))
            if bitwise:
                assert forest.branch(index) == alone.branch()
            else:
                assert_alike(forest.branch(index), alone.branch())

    def test_cancellation_of_neighbours(self, dtype: torch.dtype, bitwise: bool) -> None:
        requests, truth = self.alone(dtype, bitwise)
        engine = serving("qwen2", dtype, batch_invariant=bitwise)
        victims = {requests[0].request_id, requests[5].request_id}

        def cancel(one: Run, event: Event) -> None:
            if isinstance(event, TokenEvent) and one.request.request_id in victims:
                engine.cancel(one.request.request_id)

        runs = run(engine, *requests, on_event=cancel)
        self.check(runs, [t for t in truth if t.request.request_id not in victims], bitwise)
        assert engine.stats().private_bytes == 0


def test_a_live_forest_goes_with_its_adapter() -> None:
    engine = shared_engine("qwen2")
    prompts = Prompts(engine, seed=5)
    request = prompts.request(max_tokens=3)
    question = request.questions[0]
    opened = ForestRequest("forest", request.prefix_ids, request.chunks, adapter="qa")
    with LiveForest(engine, opened) as forest:
        forest.do(Start(0, question))
        told = forest.do(Fork(1, 0), Grow(0, request.sampling), Grow(1, request.sampling))
    for branch in (0, 1):
        grown = [e for e in told if isinstance(e, GrownEvent) and e.branch == branch]
        ours = Generated(tuple(e.token_id for e in grown), tuple(e.logprob for e in grown))
        chunks = [c.token_ids for c in request.chunks]
        oracle_GV = oracles.reordered(
            adapted_model("qwen2"), request.prefix_ids, chunks, question, ours.token_ids
        )
        assert_same_generation(ours, oracle_GV)


class TestRefused:
    def test_a_name_that_is_not_served(self) -> None:
        for engine, there in (
            (shared_engine("qwen2"), "there are other, qa"),
            (engine_of("qwen2"), "there are none (engine.adapters)"),
        ):
            for mode in (ReuseMode.REORDERED, ReuseMode.FULL):
                with pytest.raises(InvalidRequest) as error:
                    run(engine, asked(Prompts(engine), "law", reuse=mode))
                assert error.value.detail == f"adapter: there is no 'law'; {there}, or leave it out"
            with pytest.raises(InvalidRequest, match="there is no 'law'"):
                LiveForest(engine, ForestRequest("f", (), (), adapter="law"))

    def test_one_of_another_model(self) -> None:
        model = wrap_model(tiny_model("qwen2"))
        for adapter in (adapter_of("phi3"), replace(adapter_of("qwen2"), facts=AdapterFacts("0123"))):
            with pytest.raises(ModelMismatch, match="adapter 'qa'"):
                Engine(model, adapters=[adapter])
        known = replace(adapter_of("qwen2"), facts=AdapterFacts(model.fingerprint))
        Engine(model, adapters=[known])

    def test_compiled_layers(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"engine\.compile: compiled layers know no adapters"):
            Engine(
                wrap_model(tiny_model("qwen2")), EngineConfig(compile=True), adapters=[adapter_of("qwen2")]
            )
        with pytest.raises(ValueError, match="compile: compiled layers know no adapters"):
            EngineConfig(compile=True, adapters={"qa": str(tmp_path)})

    @pytest.mark.parametrize("name", ["none", "", "a b", "a/b"])
    def test_names_that_requests_could_not_give(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"adapters: {name!r} is no name of an adapter"):
            EngineConfig(adapters={name: "somewhere"})


def test_a_configuration_with_adapters_may_be_a_key() -> None:
    one, other = EngineConfig(adapters={"qa": "there"}), EngineConfig(adapters={"qa": "elsewhere"})
    assert len({one, other, EngineConfig(adapters={"qa": "there"})}) == 2


def test_adapters_of_the_configuration_are_read(tmp_path: Path) -> None:
    write_adapter(adapter_of("qwen2"), tmp_path / "first")
    engine = engine_of("qwen2", adapters={"law": str(tmp_path / "first")})
    (one,) = run(engine, asked(Prompts(engine, seed=1), "law"))
    assert_equals_oracle(one, adapted_model("qwen2"))
    assert one.done.usage.adapter == "law"
    with pytest.raises(ConfigError, match=r"adapter 'law': adapter_config.json: is not there"):
        engine_of("qwen2", adapters={"law": str(tmp_path)})


class TestRowsOfAPass:
    def weights(self) -> AdapterWeights:
        return AdapterWeights.of(adapter_of("qwen2"), torch.device("cpu"), torch.float32)

    def test_branches_with_several_rows_alone_and_single_rows_in_tiles(self) -> None:
        qa, other = self.weights(), self.weights()
        users = [(qa, slice(0, 5)), (qa, slice(5, 6)), (None, slice(6, 7)), (other, slice(7, 8))]
        users += [(qa, slice(n, n + 1)) for n in range(8, 8 + TILE)] + [(None, slice(60, 70))]
        groups = adapted_rows(users).groups
        assert [(g.weights is qa, g.rows.tolist(), len(g.rows_P)) for g in groups] == [
            (True, [0, 1, 2, 3, 4], 5),
            (True, [5, *range(8, 7 + TILE)], TILE),
            (True, [7 + TILE], TILE),
            (False, [7], TILE),
        ]
        assert all(set(g.rows_P.tolist()) == set(g.rows.tolist()) for g in groups)
        assert not adapted_rows([(None, slice(0, 9))])

    def test_gradients_reach_the_adapter(self) -> None:
        """So that what trains is what serves."""
        model, whole = wrap_model(tiny_model("qwen2")), adapter_of("qwen2")
        pairs = {
            site: LoraPair(pair.a_rI.clone().requires_grad_(), pair.b_Or.clone().requires_grad_(), pair.scale)
            for site, pair in whole.pairs.items()
        }
        weights = AdapterWeights.of(LoraAdapter("qa", pairs), torch.device("cpu"), torch.float32)
        layer, rows = model.hf_model.model.layers[0].mlp, adapted_rows([(weights, slice(2, 6))])
        hidden = torch.randn(1, 8, 64, generator=torch.Generator().manual_seed(0))
        with adapting(model.hf_model.model.layers[0], 0, rows):
            out = layer(hidden)
        out.square().sum().backward()
        for site, pair in pairs.items():
            touched = site.layer == 0 and site.path.startswith("mlp.")
            assert (pair.a_rI.grad is not None) is touched
            assert (pair.b_Or.grad is not None) is touched
        expected = merged(base_model("qwen2"), whole).model.layers[0].mlp(hidden)
        torch.testing.assert_close(out[0, 2:6], expected[0, 2:6])
        torch.testing.assert_close(out[0, :2], base_model("qwen2").model.layers[0].mlp(hidden)[0, :2])


@pytest.mark.skipif(best_products() is FLOAT32, reason="its MLPs are three layers")
class TestPackedMlp:
    def test_only_changed_rows_are_computed_apart(self) -> None:
        model = wrap_model(as_dtype(base_model("llama3"), torch.bfloat16))
        layer = model.hf_model.model.layers[1]
        assert isinstance(layer.mlp, PackedGatedMlp)
        weights = AdapterWeights.of(adapter_of("llama3"), torch.device("cpu"), torch.bfloat16)
        x = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
        with torch.inference_mode():
            plain = layer.mlp(x)
            exact = merged(base_model("llama3"), adapter_of("llama3")).model.layers[1].mlp(x.float())
            for users in ([(weights, slice(2, 6))], [(weights, slice(4, 5))], [(weights, slice(0, 9))]):
                rows = adapted_rows(users)
                with adapting(layer, 1, rows):
                    out = layer.mlp(x)
                changed = rows.groups[0].rows.tolist()
                others = [row for row in range(9) if row not in changed]
                assert torch.equal(out[:, others], plain[:, others])
                error = (out[:, changed].float() - exact[:, changed]).square().mean().sqrt()
                assert error < 1.5e-2 * exact[:, changed].square().mean().sqrt()


def _decided(engine: Engine, request: GenerateRequest, mode: ReuseMode, recompute: Recompute) -> Run:
    """A deferred request, told what to be as soon as it has been submitted."""
    one = Run(request)
    engine.submit(request, one.events.append)
    engine.decide(request.request_id, mode, recompute)
    while not one.ended:
        if not engine.step():
            engine.wait()
    return one


def _rms(errors: list[torch.Tensor]) -> float:
    return float(torch.cat(errors).pow(2).mean().sqrt())
