"""The twin of the engine's step equals the engine, and stock ``transformers``, logit
by logit; its gradients are those of what it computes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.training.known_kv import segments_of
from services.training.twin import TwinStep
from services.training.twin_request import KnownKv, PlacedChunk, RequestRows, TwinRequest
from shared.engine import Engine, wrap_model
from shared.engine.model.loader import take_over
from shared.engine.model.model import LoadedModel
from shared.errors import ContextTooLong, InvalidRequest
from shared.generation.asked import Chunk, GenerateRequest, PrefillRequest, chain_of
from shared.generation.modes import Recompute, ReuseMode
from tests.engine_runs import Prompts, Run, Shelf, engine_of, run
from tests.lora_adapters import random_adapter
from tests.oracles import (
    FAMILIES,
    ORACLES,
    VARIANTS,
    VOCAB,
    Chained,
    as_dtype,
    recomputed,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")

Ids = tuple[int, ...]
PREFIX = (5, 9, 200, 31)
MODES = (ReuseMode.FULL, ReuseMode.REORDERED, ReuseMode.COMPOSITE)


@lru_cache
def twin_model(family: str) -> LoadedModel:
    return take_over(tiny_model(family))


@lru_cache
def oracle_model(family: str) -> Any:
    return tiny_model(family)


def logits_of(model: LoadedModel, step: TwinStep, rows: range) -> Tensor:
    return model.logits(model.forward(step)[rows.start : rows.stop])


class Drawn:
    """Documents of several chunks, of which some are placed in any order, one of them perhaps twice."""

    def __init__(self, seed: int, prefix_len: int = 4) -> None:
        self.rng = random.Random(seed)
        self.prefix = self.ids(prefix_len)

    def ids(self, count: int) -> Ids:
        return tuple(self.rng.randrange(3, VOCAB) for _ in range(count))

    def chunks(self, documents: Sequence[Sequence[int]], chained: bool = True) -> list[PlacedChunk]:
        found = []
        for lens in documents:
            texts = [self.ids(length) for length in lens]
            found += [PlacedChunk(ids, tuple(texts[:i]) if chained else ()) for i, ids in enumerate(texts)]
        return self.rng.sample([*found, found[0]], self.rng.randint(min(3, len(found)), len(found) + 1))


def chained(chunks: Sequence[PlacedChunk]) -> list[Chained]:
    return [Chained.of(chunk.token_ids, chunk.chain) for chunk in chunks]


documents = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=3)


class TestEqualsStockTransformers:
    """Laws 1 to 4."""

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from((*FAMILIES, *VARIANTS)),
        mode=st.sampled_from(MODES),
        documents=documents,
        prefix_len=st.integers(0, 6),
        seed=st.integers(0, 99),
        known=st.booleans(),
    )
    def test_whatever_is_placed(
        self,
        family: str,
        mode: ReuseMode,
        documents: list[list[int]],
        prefix_len: int,
        seed: int,
        known: bool,
    ) -> None:
        drawn, model = Drawn(seed, prefix_len), twin_model(family)
        chunks = drawn.chunks(documents, chained=mode is not ReuseMode.COMPOSITE)
        questions, answers = [drawn.ids(n) for n in (9, 1)], [drawn.ids(n) for n in (5, 3)]
        asked = tuple(q + a[:-1] for q, a in zip(questions, answers, strict=True))
        request = TwinRequest(drawn.prefix, tuple(chunks), asked, mode)
        with torch.no_grad():
            kv = [known_of(model, request)] if known and mode is not ReuseMode.FULL else None
            step = TwinStep([request], model.spec, kv)
            hidden_RE = model.forward(step)
        for question, answer, rows in zip(questions, answers, step.rows[0].branches, strict=True):
            ours = model.logits(hidden_RE[rows.start : rows.stop])[len(question) - 1 :]
            theirs = ORACLES[mode.value](
                oracle_model(family), drawn.prefix, chained(chunks), question, answer
            )
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)

    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(FAMILIES),
        documents=documents,
        share=st.floats(0, 1),
        seed=st.integers(0, 99),
        known=st.booleans(),
    )
    def test_whatever_is_recomputed(
        self, family: str, documents: list[list[int]], share: float, seed: int, known: bool
    ) -> None:
        drawn, model = Drawn(seed), twin_model(family)
        chunks = drawn.chunks(documents)
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        selected = tuple(sorted(drawn.rng.sample(range(num_tokens), round(share * num_tokens))))
        question, answer = drawn.ids(7), drawn.ids(4)
        asked = (question + answer[:-1], drawn.ids(5))
        request = TwinRequest(drawn.prefix, tuple(chunks), asked, ReuseMode.TOKENS, selected)
        with torch.no_grad():
            step = TwinStep([request], model.spec, [known_of(model, request)] if known else None)
            ours = logits_of(model, step, step.rows[0].branches[0])[len(question) - 1 :]
        theirs = recomputed(oracle_model(family), drawn.prefix, chained(chunks), question, answer, selected)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
    def test_in_bfloat16_it_is_no_worse_than_the_stock_model(self, family: str, known: bool) -> None:
        exact = oracle_model(family)
        model = take_over(as_dtype(tiny_model(family), torch.bfloat16))
        stock, ours, base = as_dtype(exact, torch.bfloat16), [], []
        for seed in range(6):
            drawn = Drawn(seed)
            chunks = drawn.chunks([(5, 20, 30), (12, 25)])
            question, answer = drawn.ids(9), drawn.ids(8)
            request = TwinRequest(drawn.prefix, tuple(chunks), (question + answer[:-1],))
            with torch.no_grad():
                step = TwinStep([request], model.spec, [known_of(model, request)] if known else None)
                logits = logits_of(model, step, step.rows[0].branches[0])[len(question) - 1 :]
            of = (drawn.prefix, chained(chunks), question, answer)
            truth = ORACLES["reordered"](exact, *of)
            ours.append((logits - truth).flatten())
            base.append((ORACLES["reordered"](stock, *of) - truth).flatten())
        assert _rms(ours) <= 1.25 * _rms(base)


class TestEqualsTheEngine:
    @pytest.mark.parametrize("mode", [*MODES, ReuseMode.TOKENS], ids=lambda mode: mode.value)
    @pytest.mark.parametrize("family", FAMILIES)
    def test_log_probabilities_of_the_whole_vocabulary_at_every_step(
        self, family: str, mode: ReuseMode
    ) -> None:
        engine = engine_of(family)
        prompts = Prompts(engine, seed=3)
        one, other = prompts.document(PREFIX, (5, 20, 33)), prompts.document(PREFIX, (17, 1, 40))
        placed = (other[2], one[1], other[0], one[2])
        if mode is ReuseMode.COMPOSITE:  # of isolated chunks, as the paper has it
            placed = tuple(prompts.chunk(PREFIX, chunk.token_ids) for chunk in placed)
        recompute = Recompute(tokens=(0, 3, 41, 60, 61, 90)) if mode is ReuseMode.TOKENS else None
        asked = prompts.request(
            prefix=PREFIX, chunks=(), questions=(9, 4), reuse=mode, recompute=recompute,
            top_logprobs=0, watch_ids=tuple(range(VOCAB)),
        )  # fmt: skip
        (told,) = run(engine, replace(asked, chunks=placed, links=(*one, *other)))
        model = twin_model(family)
        step = TwinStep([twin_of(told)], model.spec)
        with torch.no_grad():
            hidden_RE = model.forward(step)
        for index, rows in enumerate(step.rows[0].branches):
            ours = model.logits(hidden_RE[rows.start : rows.stop]).log_softmax(-1)
            theirs = torch.tensor([event.watched for event in told.tokens(index)])
            torch.testing.assert_close(ours[-len(theirs) :], theirs, atol=1e-4, rtol=0)

    def test_the_keys_and_values_that_are_stored(self) -> None:
        engine = engine_of("llama3", source=(shelf := Shelf()))
        document = Prompts(engine).document(PREFIX, (6, 30, 64))
        run(engine, PrefillRequest("p", PREFIX, tuple(document[1:]), links=tuple(document[:1])))
        model = twin_model("llama3")
        placed = [placed_chunk(chunk, document) for chunk in reversed(document[1:])]
        _, segments = segments_of(model, PREFIX, placed)
        for chunk, segment in zip(reversed(document[1:]), segments, strict=True):
            for ours, theirs in zip((segment.k_LTKD, segment.v_LTKD), shelf.kv[chunk.chunk_id], strict=True):
                for x_TKD, x_KTD in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(x_TKD.transpose(0, 1), x_KTD, atol=1e-5, rtol=0)


class TestCompany:
    def test_requests_of_a_batch_do_not_see_each_other(self) -> None:
        model, drawn = twin_model("qwen3"), Drawn(4)
        requests = [
            TwinRequest(drawn.prefix, tuple(drawn.chunks(lens)), tuple(drawn.ids(n) for n in (4, 9)), mode)
            for lens, mode in (
                ([(3, 50)], ReuseMode.REORDERED),
                ([(10, 2), (5,)], ReuseMode.FULL),
                ([(7, 7, 7), (30,)], ReuseMode.COMPOSITE),
            )
        ]
        with torch.no_grad():
            together = TwinStep(requests, model.spec)
            hidden_RE = model.forward(together)
            for in_company, request in zip(together.rows, requests, strict=True):
                alone = TwinStep([request], model.spec)
                hidden = model.forward(alone)
                for ours, theirs in zip(runs_of(in_company), runs_of(alone.rows[0]), strict=True):
                    torch.testing.assert_close(hidden_RE[ours], hidden[theirs], atol=1e-4, rtol=0)

    def test_private_rows_come_last(self) -> None:
        drawn = Drawn(1)
        chunks = tuple(drawn.chunks([(4, 6), (5, 3)]))
        requests = [
            TwinRequest(drawn.prefix, chunks, (drawn.ids(3),), ReuseMode.TOKENS, (0, 2)) for _ in range(2)
        ]
        step = TwinStep(requests, twin_model("qwen2").spec)
        for rows in step.rows:
            assert all(row < step.first_private for part in (rows.prefix, *rows.chunks) for row in part)
            assert all(row >= step.first_private for part in (rows.private, *rows.branches) for row in part)

    def test_a_chain_is_computed_once(self) -> None:
        drawn = Drawn(2)
        header, first, second = drawn.ids(3), drawn.ids(10), drawn.ids(20)
        chunks = (
            PlacedChunk(second, (header, first)),
            PlacedChunk(first, (header,)),
            PlacedChunk(first, (header,)),
        )
        step = TwinStep([TwinRequest(drawn.prefix, chunks, ())], twin_model("qwen2").spec)
        assert len(step.token_ids) == len(drawn.prefix) + 3 + 10 + 20
        assert step.rows[0].chunks[1] == step.rows[0].chunks[2]


class TestAdapters:
    """Private rows go with one; prefix, chunks and ``full`` never."""

    @pytest.mark.parametrize("known", [False, True])
    @pytest.mark.parametrize("mode", [ReuseMode.REORDERED, ReuseMode.COMPOSITE, ReuseMode.TOKENS])
    @pytest.mark.parametrize("family", ["qwen2", "phi3"])
    def test_what_the_engine_computes_with_one(self, family: str, mode: ReuseMode, known: bool) -> None:
        adapter = random_adapter(oracle_model(family))
        engine = Engine(wrap_model(tiny_model(family)), adapters=[adapter])
        prompts = Prompts(engine, seed=5)
        document = prompts.document(PREFIX, (6, 20, 33))
        placed = (document[2], document[1])
        if mode is ReuseMode.COMPOSITE:
            placed = tuple(prompts.chunk(PREFIX, chunk.token_ids) for chunk in placed)
        recompute = Recompute(tokens=(0, 3, 40)) if mode is ReuseMode.TOKENS else None
        asked = prompts.request(
            prefix=PREFIX, chunks=(), reuse=mode, recompute=recompute, top_logprobs=0,
            watch_ids=tuple(range(VOCAB)),
        )  # fmt: skip
        (told,) = run(engine, replace(asked, chunks=placed, links=tuple(document), adapter="qa"))
        model = twin_model(family)
        request = twin_of(told)
        with torch.no_grad():
            step = TwinStep([request], model.spec, [known_of(model, request)] if known else None)
            step.adapt(model.place(adapter))
            ours = logits_of(model, step, step.rows[0].branches[0]).log_softmax(-1)
        theirs = torch.tensor([event.watched for event in told.tokens()])
        torch.testing.assert_close(ours[-len(theirs) :], theirs, atol=1e-4, rtol=0)

    def test_full_and_stored_rows_keep_their_bits(self) -> None:
        drawn, model = Drawn(6), twin_model("qwen2")
        chunks = tuple(drawn.chunks([(5, 12), (9, 4)]))
        requests = [
            TwinRequest(drawn.prefix, chunks, (drawn.ids(7),), mode)
            for mode in (ReuseMode.FULL, ReuseMode.REORDERED)
        ]
        step = TwinStep(requests, model.spec)
        with torch.no_grad():
            before = model.forward(step)
            step.adapt(model.place(random_adapter(oracle_model("qwen2"))))
            after = model.forward(step)
        full, reordered = step.rows
        for rows in (*runs_of(full), slice(0, step.first_private)):
            assert torch.equal(before[rows], after[rows])
        assert not torch.equal(before[reordered.branches[0].start :], after[reordered.branches[0].start :])

    def test_gradients_reach_it_and_are_its_slope(self) -> None:
        drawn, model = Drawn(3), twin_model("llama3")
        request = TwinRequest(drawn.prefix, tuple(drawn.chunks([(5, 12), (9, 4)])), (drawn.ids(7),))
        weights = model.place(random_adapter(oracle_model("llama3")))
        added = weights.layers[0]["self_attn.k_proj"]
        added.a_rI.requires_grad_()
        known = known_of(model, request)

        def loss() -> Tensor:
            step = TwinStep([request], model.spec, [known])
            step.adapt(weights)
            return logits_of(model, step, step.rows[0].branches[0]).log_softmax(-1)[:, 7].mean()

        loss().backward()
        direction = torch.randn(added.a_rI.shape, generator=torch.Generator().manual_seed(0))
        slope = float((added.a_rI.grad * direction).sum())
        with torch.no_grad():
            added.a_rI.add_(1e-3 * direction)
            above = float(loss())
            added.a_rI.sub_(2e-3 * direction)
            below = float(loss())
        assert slope == pytest.approx((above - below) / 2e-3, rel=0.03, abs=1e-3)


class TestGradients:
    def test_of_full_are_those_of_the_stock_model(self) -> None:
        drawn = Drawn(7)
        chunks, asked = drawn.chunks([(5, 12), (9,)]), drawn.ids(11)
        stock = tiny_model("qwen2")
        ids = [*drawn.prefix, *(token for chunk in chunks for token in chunk.token_ids), *asked]
        stock(torch.tensor([ids])).logits[0, -len(asked) :].log_softmax(-1)[:, 7].sum().backward()
        model = take_over(tiny_model("qwen2"))
        step = TwinStep([TwinRequest(drawn.prefix, tuple(chunks), (asked,), ReuseMode.FULL)], model.spec)
        logits_of(model, step, step.rows[0].branches[0]).log_softmax(-1)[:, 7].sum().backward()
        theirs = dict(stock.named_parameters())
        for name, parameter in model.hf_model.named_parameters():
            torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=2e-4, rtol=1e-3)

    @pytest.mark.parametrize("mode", [ReuseMode.REORDERED, ReuseMode.COMPOSITE, ReuseMode.TOKENS])
    def test_flow_through_the_keys_and_values_of_chunks(self, mode: ReuseMode) -> None:
        """The slope along a random direction is the one that the loss has."""
        drawn = Drawn(8)
        chunks = tuple(drawn.chunks([(5, 12, 8), (9, 4)], chained=mode is not ReuseMode.COMPOSITE))
        selected = (1, 2, 9) if mode is ReuseMode.TOKENS else ()
        model = take_over(tiny_model("llama3"))
        request = TwinRequest(drawn.prefix, chunks, (drawn.ids(11),), mode, selected)

        def loss() -> Tensor:
            step = TwinStep([request], model.spec)
            return logits_of(model, step, step.rows[0].branches[0]).log_softmax(-1)[:, 7].mean()

        loss().backward()
        weight = model.hf_model.model.layers[0].self_attn.k_proj.weight
        direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        slope = float((weight.grad * direction).sum())
        with torch.no_grad():
            weight += 1e-3 * direction
            above = float(loss())
            weight -= 2e-3 * direction
            below = float(loss())
        assert slope == pytest.approx((above - below) / 2e-3, rel=0.03, abs=1e-3)

    def test_end_at_what_is_known(self) -> None:
        model = take_over(tiny_model("qwen2"))
        chunk, asked = PlacedChunk((7,) * 5), (3, 4, 5)
        request = TwinRequest((6,), (chunk,), (asked,))
        step = TwinStep([request], model.spec, [known_of(model, request)])
        assert step.first_private == 0
        logits_of(model, step, step.rows[0].branches[0])[:, 2].sum().backward()
        grad_VE = model.hf_model.model.embed_tokens.weight.grad
        assert {int(i) for i in grad_VE.abs().sum(1).nonzero()} == set(asked)


class TestRefusals:
    def test_modes_that_choose_or_weigh(self) -> None:
        for mode in (ReuseMode.APE, ReuseMode.EPIC, ReuseMode.CACHECLIP):
            with pytest.raises(InvalidRequest, match=f"reuse: {mode.value}"):
                TwinRequest(PREFIX, (), ((3,),), mode)

    def test_tokens_that_are_not_there(self) -> None:
        with pytest.raises(InvalidRequest, match="recomputed: the context has 2 tokens"):
            TwinRequest(PREFIX, (PlacedChunk((3, 4)),), ((3,),), ReuseMode.TOKENS, (2,))

    def test_more_positions_than_the_model_has(self) -> None:
        model = take_over(tiny_model("qwen2", max_position_embeddings=40))
        request = TwinRequest(PREFIX, (PlacedChunk((3,) * 30),), ((3,) * 10,))
        with pytest.raises(ContextTooLong, match="44 positions, the model has 40"):
            TwinStep([request], model.spec)


def test_a_model_that_is_taken_over_stays_trainable() -> None:
    stock = tiny_model("qwen2").train()
    model = take_over(stock)
    assert all(parameter.requires_grad for parameter in stock.parameters())
    assert type(stock.model.layers[0].self_attn.q_proj) is torch.nn.Linear
    assert model.hf_model is stock


def known_of(model: LoadedModel, request: TwinRequest) -> KnownKv:
    prefix, chunks = segments_of(model, request.prefix_ids, request.chunks)
    return KnownKv(prefix, tuple(chunks))


def runs_of(rows: RequestRows) -> list[slice]:
    runs = (rows.prefix, *rows.chunks, rows.private, *rows.branches)
    return [slice(run.start, run.stop) for run in runs]


def placed_chunk(chunk: Chunk, known: Sequence[Chunk]) -> PlacedChunk:
    chain = chain_of(chunk, known) if chunk.parent_id else ()
    assert chain is not None
    return PlacedChunk(chunk.token_ids, tuple(link.token_ids for link in chain))


def twin_of(told: Run) -> TwinRequest:
    """Teacher-forced on what was generated."""
    request = told.request
    assert isinstance(request, GenerateRequest)
    return TwinRequest(
        request.prefix_ids,
        tuple(placed_chunk(chunk, (*request.links, *request.chunks)) for chunk in request.chunks),
        tuple(q + told.branch(i).token_ids[:-1] for i, q in enumerate(request.questions)),
        request.reuse,
        request.recompute.tokens,
    )


def _rms(errors: list[Tensor]) -> float:
    return float(torch.cat(errors).pow(2).mean().sqrt())
