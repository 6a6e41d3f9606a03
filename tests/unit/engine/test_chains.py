"""Chunks that are computed behind the chunks in front of them in their documents, and placed anywhere."""

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

from shared.engine import Engine
from shared.engine.kv.residency import LINK
from shared.engine.kv.residency import PREFIX as PREFIX_KEY
from shared.errors import ContextTooLong, InvalidRequest
from shared.generation.asked import Chunk, PrefillRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import ChunkStoredEvent
from shared.identity import chunk_identity
from tests import engine_runs
from tests.engine_runs import Prompts, Run, Shelf, assert_alike, assert_equals_oracle, run
from tests.oracles import FAMILIES, ORACLES, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

MODES = [mode for mode in ReuseMode if mode.value in ORACLES and mode is not ReuseMode.COMPOSITE]
PREFIX = (5, 9, 200, 31)
# Keys and values of the first layer know no context, those of the second one step of it: only in a third one
# it shows whether a chunk's chain stood behind its own.
NUM_LAYERS = 3


@lru_cache
def oracle_model(family: str) -> Any:
    return tiny_model(family, num_hidden_layers=NUM_LAYERS)


def engine_of(family: str = "qwen2", **settings: Any) -> Engine:
    own = {"hf_model": tiny_model(family, num_hidden_layers=NUM_LAYERS)}
    return engine_runs.engine_of(family, **own | settings)


def prefill(engine: Engine, chunks: Sequence[Chunk], links: Sequence[Chunk] = (), name: str = "p") -> Run:
    return run(engine, PrefillRequest(name, PREFIX, tuple(chunks), links=tuple(links)))[0]


def resident(engine: Engine) -> set[str]:
    return {key for key in engine._cache._pool.ready_keys() if not key.startswith(PREFIX_KEY)}


def ask(
    prompts: Prompts,
    chunks: Sequence[Chunk],
    links: Sequence[Chunk] = (),
    reuse: ReuseMode = ReuseMode.REORDERED,
) -> Any:
    request = prompts.request(prefix=PREFIX, chunks=(), reuse=reuse)
    return replace(request, chunks=tuple(chunks), links=tuple(links))


class TestEqualsTheOracle:
    """Laws 1, 2, 3 (``ape``) and 4, where a chunk's keys and values come from (prefix, chain, chunk)."""

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("family", FAMILIES)
    def test_chunks_of_two_documents_in_any_order(self, family: str, mode: ReuseMode) -> None:
        engine = engine_of(family, source=(shelf := Shelf()))
        prompts = Prompts(engine, seed=1)
        one, other = prompts.document(PREFIX, (5, 20, 33)), prompts.document(PREFIX, (17, 1, 40))
        prefill(engine, (*one[1:], *other), links=one[:1])
        placed = (other[2], one[1], other[0], one[2])
        asked = run(fresh := engine_of(family, source=shelf), ask(prompts, placed, (*one, *other), mode))[0]
        assert_equals_oracle(asked, oracle_model(family))
        if mode is ReuseMode.REORDERED:
            assert asked.done.usage.recomputed_tokens == 9
            assert fresh.stats().resident_chunk_ids

    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        lens=st.lists(st.integers(1, 50), min_size=1, max_size=6),
        header=st.booleans(),
        seed=st.integers(0, 99),
        stored=st.floats(0, 1),
        family=st.sampled_from(("qwen2", "llama3")),
    )
    def test_whatever_of_it_is_stored(
        self, lens: list[int], header: bool, seed: int, stored: float, family: str
    ) -> None:
        engine, rng = engine_of(family, source=(shelf := Shelf())), random.Random(seed)
        prompts = Prompts(engine, seed=seed)
        document = prompts.document(PREFIX, lens)
        links, chunks = (document[:1], document[1:]) if header and len(document) > 1 else ([], document)
        prefill(engine, chunks, links)
        for chunk_id in [i for i in shelf.kv if rng.random() > stored]:
            del shelf.kv[chunk_id]
        placed = rng.sample(chunks, rng.randint(1, len(chunks)))
        asked = run(engine_of(family, source=shelf), ask(prompts, placed, document))[0]
        assert_equals_oracle(asked, oracle_model(family))

    def test_full_does_not_look_at_chains(self) -> None:
        engine = engine_of("qwen2")
        prompts = Prompts(engine)
        chunk = prompts.document(PREFIX, (9, 12))[1]
        assert_equals_oracle(
            run(engine, ask(prompts, (chunk,), reuse=ReuseMode.FULL))[0], oracle_model("qwen2")
        )

    def test_all_tokens_computed_anew_are_full(self) -> None:
        engine = engine_of("qwen2")
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (9, 12, 20))
        request = ask(prompts, document[1:], document, ReuseMode.EPIC)
        anew = run(engine, replace(request, recompute=Recompute(1.0)))[0]
        full = run(engine, replace(request, request_id="full", reuse=ReuseMode.FULL))[0]
        assert_alike(anew.branch(), full.branch())


class TestTheSameKv:
    """Prefilled at once = in slices = computed again after a loss, bitwise under batch invariance."""

    @pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (4, 1)])
    def test_in_slices(self, sizes: Sequence[int]) -> None:
        at_once, sliced = Shelf(), Shelf()
        engine = engine_of("qwen2", source=at_once, batch_invariant=True)
        document = Prompts(engine).document(PREFIX, (6, 30, 64, 1, 47, 33))
        prefill(engine, document[1:], document[:1])
        begin = 1
        for i, size in enumerate(sizes):
            resumed = engine_of("qwen2", source=sliced, batch_invariant=True)
            prefill(resumed, document[begin : begin + size], document[:begin], name=f"p{i}")
            begin += size
        _assert_same_bits(at_once, sliced)

    def test_after_a_loss(self) -> None:
        shelf = Shelf()
        engine = engine_of("qwen2", source=shelf, batch_invariant=True)
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 30, 64, 20))
        prefill(engine, document[1:], document[:1])
        before = Shelf()
        before.kv = dict(shelf.kv)
        del shelf.kv[document[2].chunk_id]
        shelf.corrupt.add(document[3].chunk_id)
        again = run(
            engine_of("qwen2", source=shelf, batch_invariant=True), ask(prompts, document[1:], document)
        )[0]
        assert again.done.usage.recomputed_tokens == 64 + 20 + 9
        _assert_same_bits(before, shelf)

    def test_a_link_is_computed_once_and_not_stored(self) -> None:
        shelf = Shelf()
        engine = engine_of("qwen2", source=shelf)
        header, *chunks = Prompts(engine).document(PREFIX, (6, 30, 64))
        stored = [e for e in prefill(engine, chunks, [header]).events if isinstance(e, ChunkStoredEvent)]
        assert len(stored) == 2
        assert [chunk_id for chunk_id, _ in shelf.saves] == [chunk.chunk_id for chunk in chunks]

    def test_chunks_that_stand_behind_each_other_are_computed_once_and_stored(self) -> None:
        shelf = Shelf()
        engine = engine_of("qwen2", source=shelf)
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 30, 64, 20))
        asked = run(engine, ask(prompts, document[:0:-1], document))[0]
        assert_equals_oracle(asked, oracle_model("qwen2"))
        in_order = [(chunk.chunk_id, False) for chunk in document[1:]]
        engine.shut_down()
        assert shelf.saves == in_order
        assert resident(engine) == {LINK + document[0].chunk_id, *(chunk.chunk_id for chunk in document[1:])}
        assert asked.done.usage.chunk_origins == ("computed",) * 3

    def test_nothing_lossy_stands_in_a_chain(self) -> None:
        shelf = Shelf()
        shelf.encoding = "int8"
        engine = engine_of("qwen2", source=shelf)
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 30, 64))
        run(engine, ask(prompts, document, document))
        links = {LINK + chunk.chunk_id for chunk in document[:2]}
        assert resident(engine) == {*links, *(chunk.chunk_id for chunk in document)}

    def test_a_chunk_that_turns_out_to_be_lossy_leaves_the_chain(self) -> None:
        shelf = Shelf()
        engine = engine_of("qwen2", source=shelf)
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 30, 64))
        prefill(engine, document[:2])
        shelf.encodings = dict.fromkeys(shelf.kv, "int8")
        again = engine_of("qwen2", source=shelf)
        asked = run(again, ask(prompts, document, document))[0]
        assert_equals_oracle(asked, oracle_model("qwen2"))
        links = {LINK + chunk.chunk_id for chunk in document[:2]}
        assert resident(again) == {*links, *(chunk.chunk_id for chunk in document)}

    def test_two_requests_that_lack_the_same_chain(self) -> None:
        engine = engine_of("qwen2")
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 30, 64))
        runs = run(engine, *(ask(prompts, document[2:], document) for _ in range(3)))
        for one in runs:
            assert_equals_oracle(one, oracle_model("qwen2"))


class TestChainsFromTheSource:
    """Requests carry a chunk's parent, not all that is in front of it."""

    def test_the_source_is_asked_only_when_a_chunk_is_lost(self) -> None:
        shelf = Shelf()
        engine = engine_of("qwen2", source=shelf)
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 30, 64))
        prefill(engine, document[1:], document[:1])
        kept = run(engine_of("qwen2", source=shelf), ask(prompts, document[2:]))[0]  # shelf.chains is empty
        assert kept.done.usage.isolated_tokens == 0
        del shelf.kv[document[2].chunk_id]
        shelf.chains = {document[2].chunk_id: document[:2]}
        again = run(engine_of("qwen2", source=shelf), replace(kept.request, request_id="again"))[0]
        assert again.done.usage.isolated_tokens == 0
        assert again.done.usage.recomputed_tokens == 64 + 9
        assert_alike(again.branch(), kept.branch())

    def test_without_a_chain_it_is_isolated_for_this_request_and_stored_as_such(self) -> None:
        shelf = Shelf()
        engine = engine_of("qwen2", source=shelf)
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 30, 64))
        asked = run(engine, ask(prompts, (document[2], document[2])))[0]
        assert asked.done.usage.isolated_tokens == 64
        alone = replace(document[2], chunk_id=document[2].isolated_id, parent_id="")
        other = run(
            engine_of("qwen2"), replace(ask(prompts, (alone, alone)), questions=asked.request.questions)
        )[0]
        assert_alike(asked.branch(), other.branch())
        engine.shut_down()
        assert [chunk_id for chunk_id, _ in shelf.saves] == [document[2].isolated_id]

    def test_an_isolated_identity_need_not_be_given(self) -> None:
        engine = engine_of("qwen2")
        prompts = Prompts(engine)
        chunk = replace(prompts.document(PREFIX, (6, 64))[1], isolated_id="")
        assert run(engine, ask(prompts, (chunk,)))[0].done.usage.isolated_tokens == 64

    def test_isolated_kv_that_is_stored_already_is_loaded(self) -> None:
        shelf = Shelf()
        engine = engine_of("qwen2", source=shelf)
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 64))
        alone = Chunk(document[1].isolated_id, document[1].token_ids)
        prefill(engine, [alone])
        asked = run(engine, ask(prompts, (document[1], alone)))[0]
        usage = asked.done.usage
        assert (usage.isolated_tokens, usage.recomputed_tokens) == (64, 9)

    def test_a_source_that_fails_counts_as_one_that_does_not_know(self) -> None:
        class Failing(Shelf):
            def chain(self, chunk: Chunk, tenant: str, prefix_ids: tuple[int, ...]) -> Sequence[Chunk] | None:
                raise RuntimeError("no answer")

        engine = engine_of("qwen2", source=Failing())
        prompts = Prompts(engine)
        document = prompts.document(PREFIX, (6, 64))
        assert run(engine, ask(prompts, document[1:]))[0].done.usage.isolated_tokens == 64


class TestRefusals:
    def test_a_prefill_must_know_what_is_in_front(self) -> None:
        engine = engine_of("qwen2")
        document = Prompts(engine).document(PREFIX, (6, 30, 64))
        with pytest.raises(InvalidRequest, match=r"chunks\[0\].*in front.*context"):
            engine.submit(PrefillRequest("p", PREFIX, tuple(document[2:])), print)

    def test_a_chain_that_does_not_fit_the_model(self) -> None:
        engine = engine_of("qwen2", hf_model=tiny_model("qwen2", max_position_embeddings=100))
        document = Prompts(engine).document(PREFIX, (50, 40, 10))
        with pytest.raises(ContextTooLong, match="context"):
            engine.submit(PrefillRequest("p", PREFIX, tuple(document)), print)


def test_identities_form_a_merkle_chain() -> None:
    of = ("tenant", "model", (1, 2), (3, 4))
    first, second = chunk_identity(*of), chunk_identity(*of, "")
    assert first == second  # without a parent it is what it always was
    assert len({first, chunk_identity(*of, first), chunk_identity(*of, chunk_identity(*of, first))}) == 3


def _assert_same_bits(one: Shelf, other: Shelf) -> None:
    assert one.kv.keys() == other.kv.keys()
    for chunk_id, layers in one.kv.items():
        for ours, theirs in zip(layers, other.kv[chunk_id], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), chunk_id
