"""Selection through the service is the library's, and auxiliary KV is computed once and kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.selector.resident import Resident
from services.selector.service import SelectorService
from services.selector.worker_thread import Turn
from shared.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    ModelMismatch,
    StorageFull,
    Unavailable,
)
from shared.generation.selection import (
    Grouping,
    Reading,
    SelectedTokens,
    SelectionChunk,
    SelectionOrder,
)
from shared.identity import chunk_identity
from shared.kv_format import inspect_chunk
from shared.principals.principal import Principal
from shared.request import RequestContext
from shared.selection.auxiliary import Auxiliary
from tests.kv_directory import DirectoryStore
from tests.selector_runs import (
    PASSAGES,
    QUESTION,
    Document,
    by_the_library,
    chunks_of,
    context,
    encode,
    encode_all,
    engine_auxiliary,
    select,
    select_each,
    selecting,
    stock_auxiliary,
    told,
    with_template,
)
from tests.token_families import texts

pytestmark = pytest.mark.usefixtures("one_thread")

AUXILIARIES = {"of the engine": engine_auxiliary, "of stock transformers": stock_auxiliary}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


class TestSelection:
    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        auxiliary=st.sampled_from(list(AUXILIARIES)),
        passages=st.lists(st.one_of(texts, st.sampled_from(("", "7", PASSAGES[0], PASSAGES[1]))), max_size=4),
        questions=st.lists(st.sampled_from((QUESTION, "where?", "市長")), min_size=1, max_size=3),
        ratio=st.one_of(st.sampled_from((0.0, 0.2, 1.0)), st.floats(0, 1)),
        grouping=st.sampled_from(Grouping),
        reading=st.sampled_from(Reading),
    )
    def test_is_the_librarys_for_any_request(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        auxiliary: str,
        passages: list[str],
        questions: list[str],
        ratio: float,
        grouping: Grouping,
        reading: Reading,
    ) -> None:
        """With KV that was just computed, with what is in memory, and with what was stored."""
        model = AUXILIARIES[auxiliary]()
        expected = [
            by_the_library(model, passages, question, ratio, grouping, reading) for question in questions
        ]
        kv = DirectoryStore(tmp_path_factory.mktemp("kv"))

        async def told_twice() -> None:
            async with selecting(kv, model) as service:
                for _ in range(2):
                    selected = await select_each(service, passages, questions, ratio, grouping, reading)
                    assert [told(one) for one in selected] == expected

        asyncio.run(told_twice())
        asyncio.run(told_twice())

    async def test_says_where_the_time_went(self, store: DirectoryStore) -> None:
        async with selecting(store) as service:
            cold = (await select(service)).timings
            warm = (await select(service)).timings
        assert cold.load_s > 0 < cold.encode_s
        assert warm.load_s == warm.encode_s == 0 < warm.score_s
        assert cold.load_s + cold.encode_s + cold.score_s <= cold.total_s

    async def test_says_how_long_it_waited_while_the_model_worked_for_others(
        self, store: DirectoryStore
    ) -> None:
        async with selecting(store) as service:
            await select(service)
            other = threading.Event()
            working = asyncio.create_task(service._model.run(context(), Turn.QUESTION, other.wait))
            asked = asyncio.create_task(select(service))
            while not service._model.num_waiting:
                await asyncio.sleep(0)
            other.set()
            timings = (await asked).timings
            await working
        assert timings.wait_s > 0 < timings.score_s
        assert timings.wait_s + timings.score_s <= timings.total_s

    async def test_a_context_that_the_model_cannot_hold_is_read_chunk_by_chunk(
        self, store: DirectoryStore
    ) -> None:
        async with selecting(store, engine_auxiliary(max_position_embeddings=300)) as service:
            selected = await select(service)
            assert selected.reading is Reading.EACH
            with pytest.raises(ContextTooLong, match=r"chunks\[1\]"):
                await select(service, ["the mine", "the mayor " * 400])
            with pytest.raises(ContextTooLong, match=r"chunks\[1\]"):
                await encode(service, ["the mine", "the mayor " * 400])

    async def test_without_anything_to_choose_no_kv_is_needed(self, store: DirectoryStore) -> None:
        async with selecting(store) as service:
            num_tokens = sum(len(chunk.token_ids) for chunk in chunks_of(PASSAGES))
            assert (await select(service, ratio=1.0)).tokens == tuple(range(num_tokens))
            assert (await select(service, ratio=0.0)).tokens == ()
            assert (await select(service, [])).scores == ()
            assert service.kv.counts.encoded == 0
        assert store.calls == []

    @pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan"), float("inf")])
    async def test_a_ratio_that_is_none_is_refused(self, store: DirectoryStore, ratio: float) -> None:
        async with selecting(store) as service:
            for passages in (PASSAGES, []):
                with pytest.raises(InvalidRequest, match="recompute_ratio"):
                    await select(service, passages, ratio=ratio)

    async def test_what_is_wrong_with_a_request_is_named(self, store: DirectoryStore) -> None:
        async with selecting(store, max_chunks=4, max_questions=2) as service:
            for questions, named in (
                ([], "there is none"),
                (["who?", " "], r"questions\[1\]: is empty"),
                (["?"] * 3, "questions: 3"),
            ):
                for ratio in (0.0, 0.2, 1.0):
                    with pytest.raises(InvalidRequest, match=named):
                        await select_each(service, questions=questions, ratio=ratio)
            with pytest.raises(InvalidRequest, match="chunks: 5 are more than the 4"):
                await select(service, ["a"] * 5)
            other = SelectionChunk("the mayor", (1, 2))
            order = SelectionOrder((other,), (QUESTION,), 0.2, reading=Reading.EACH)
            with pytest.raises(ModelMismatch, match="other token ids"):
                await service.select(context(), order)


class TestKv:
    @pytest.mark.parametrize("auxiliary", AUXILIARIES)
    async def test_stored_at_ingestion_is_what_is_used_later(
        self, store: DirectoryStore, auxiliary: str
    ) -> None:
        model = AUXILIARIES[auxiliary]()
        async with selecting(store, model) as service:
            encoded = await encode(service)
            assert len(service.kv.resident) == 0  # memory is for questions
        assert [e.index for e in encoded] == list(range(len(PASSAGES)))
        assert store.chunk_ids() == {e.auxiliary_id for e in encoded}
        assert not any(e.existed for e in encoded)
        assert not any(store.write_back)
        header = inspect_chunk(store.path_of(encoded[0].auxiliary_id)).header
        assert header.model_fingerprint == model.scorer.fingerprint
        assert header.num_tokens == encoded[0].num_tokens
        async with selecting(store, model) as restarted:
            selected = await select(restarted)
            assert (restarted.kv.counts.encoded, restarted.kv.counts.loaded) == (0, len(PASSAGES))
            assert all(e.existed for e in await encode(restarted))
        assert told(selected) == by_the_library(
            model, PASSAGES, QUESTION, 0.2, Grouping.BUDGET, Reading.STITCHED
        )
        assert len(store.adopted) == len(PASSAGES)

    async def test_of_chunks_ingested_earlier_is_computed_once_and_written_back(
        self, store: DirectoryStore
    ) -> None:
        async with selecting(store) as service:
            await select(service)
            await select(service, PASSAGES[::-1])
            assert service.kv.counts.encoded == len(PASSAGES)
        assert len(store.chunk_ids()) == len(PASSAGES)
        assert all(store.write_back)
        async with selecting(store) as restarted:
            await select(restarted)
            assert (restarted.kv.counts.encoded, restarted.kv.counts.loaded) == (0, len(PASSAGES))

    @pytest.mark.parametrize("by", ["a question", "an ingestion"])
    async def test_that_is_damaged_is_computed_anew_and_replaced(
        self, store: DirectoryStore, by: str
    ) -> None:
        async with selecting(store) as service:
            lost, *others = [e.auxiliary_id for e in await encode(service)]
        flip(store.path_of(lost))
        async with selecting(store) as service:
            if by == "a question":
                assert told(await select(service)) == by_the_library(
                    engine_auxiliary(), PASSAGES, QUESTION, 0.2, Grouping.BUDGET, Reading.STITCHED
                )
            else:
                assert [e.existed for e in await encode(service)] == [False, *[True] * len(others)]
            assert service.kv.counts.encoded == 1
        assert store.adopted[-1] == (lost, True)
        async with selecting(store) as service:
            await select(service)
            assert service.kv.counts.encoded == 0

    async def test_is_each_tenants_own(self, store: DirectoryStore) -> None:
        async with selecting(store) as service:
            (ours,), (theirs,) = (
                await encode(service, PASSAGES[:1], "a"),
                await encode(service, PASSAGES[:1], "b"),
            )
            await select(service, PASSAGES[:1], ctx=context("c"))
            assert service.kv.counts.encoded == 3
        assert ours.auxiliary_id != theirs.auxiliary_id
        scorer, prefix_ids = engine_auxiliary().scorer, engine_auxiliary().prompts.prefix_ids
        token_ids = engine_auxiliary().tokenizer.tokenize(PASSAGES[0]).token_ids
        assert ours.auxiliary_id == chunk_identity("a", scorer.fingerprint, prefix_ids, token_ids)

    async def test_of_a_chunk_without_a_token_is_none(self, store: DirectoryStore) -> None:
        async with selecting(store) as service:
            (encoded,) = await encode(service, [""])
            assert (encoded.auxiliary_id, encoded.num_tokens, encoded.existed) == ("", 0, True)
            selected = await select(service, ["", PASSAGES[0], ""])
            assert told(selected) == by_the_library(
                engine_auxiliary(), ["", PASSAGES[0], ""], QUESTION, 0.2, Grouping.BUDGET, Reading.STITCHED
            )
        assert len(store.chunk_ids()) == 1

    async def test_in_memory_is_bounded_and_what_was_used_last_stays(self, store: DirectoryStore) -> None:
        model = engine_auxiliary()
        sizes = [
            model.scorer.encode([model.tokenizer.tokenize(text).token_ids])[0].num_bytes for text in PASSAGES
        ]
        async with selecting(store, resident_bytes=sizes[0] + max(sizes[1:])) as service:
            for other in (1, 2, 3):
                await select(service, [PASSAGES[0]])
                await select(service, [PASSAGES[other]])
                service.check_invariants()
            await select(service, [PASSAGES[0]])
            assert service.kv.counts.resident == 3
            assert service.kv.counts.encoded == len(PASSAGES)
            await select(service)  # more than the memory holds
            service.check_invariants()

    async def test_that_two_requests_want_at_once_is_computed_once(self, store: DirectoryStore) -> None:
        async with selecting(store) as service:
            several = await asyncio.gather(
                *(select(service, PASSAGES[::step]) for step in (1, -1, 1, -1)), encode(service)
            )
            assert service.kv.counts.encoded == len(PASSAGES)
        assert told(several[0]) == told(several[2])  # type: ignore[arg-type]

    async def test_a_store_that_does_not_answer_stops_no_question_but_an_ingestion(
        self, store: DirectoryStore
    ) -> None:
        store.failure = Unavailable("away")
        async with selecting(store) as service:
            selected = await select(service)
            with pytest.raises(Unavailable):
                await encode(service)
            store.failure = StorageFull("full")
            with pytest.raises(StorageFull):
                await encode(service)
        assert told(selected) == by_the_library(
            engine_auxiliary(), PASSAGES, QUESTION, 0.2, Grouping.BUDGET, Reading.STITCHED
        )
        assert store.staged() == []


class TestChains:
    """A chunk of a document: its KV stands behind the header and the chunks in front of it."""

    READ = (QUESTION, 0.2, Grouping.BUDGET, Reading.STITCHED)

    def expected(self, document: Document, auxiliary: Auxiliary) -> tuple[Any, ...]:
        texts = [with_template(text) for text in document.passages]
        return by_the_library(auxiliary, texts, *self.READ, document.segments(auxiliary))

    async def asked(self, service: SelectorService, chunks: Sequence[SelectionChunk]) -> SelectedTokens:
        question, *others = self.READ
        order = SelectionOrder(tuple(chunks), (question,), *others)
        (selected,) = await service.select(context(), order)
        return selected

    @pytest.mark.parametrize("header_len", [None, 4])
    async def test_a_selection_is_the_librarys_over_conditioned_kv(
        self, store: DirectoryStore, header_len: int | None
    ) -> None:
        """Named by context or by parent; just computed, in memory, and stored. The primary may have the
        beginning of a header only."""
        document, model = Document(header_len=header_len), engine_auxiliary()
        document.store_in(store)
        expected = self.expected(document, model)
        assert expected != by_the_library(model, [with_template(t) for t in PASSAGES], *self.READ)
        async with selecting(store) as service:
            for chunks in (document.by_parents(), document.by_parents(), document.by_context()):
                selected = await self.asked(service, chunks)
                assert told(selected) == expected
                assert selected.num_isolated == 0
            assert service.kv.counts.encoded == 1 + len(PASSAGES)  # the header once
        async with selecting(store) as service:
            assert told(await self.asked(service, document.by_parents())) == expected
            assert (service.kv.counts.encoded, service.kv.counts.loaded) == (0, len(PASSAGES))

    async def test_ingestion_stores_what_questions_use(self, store: DirectoryStore) -> None:
        document = Document()
        document.store_in(store)
        async with selecting(store) as service:
            encoded = await encode_all(service, document.by_context())
            assert len(service.kv.resident) == 0
            assert service.kv.counts.encoded == 1 + len(PASSAGES)
            assert store.calls.count("chain") == 0
            assert all(one.existed for one in await encode_all(service, document.by_context()))
        assert store.chunk_ids() == {one.auxiliary_id for one in encoded}  # no header
        async with selecting(store) as service:
            assert told(await self.asked(service, document.by_parents())) == self.expected(
                document, engine_auxiliary()
            )
            assert service.kv.counts.encoded == 0
            calls = store.calls.count("chain")
            await self.asked(service, document.by_parents()[::-1])
            assert store.calls.count("chain") == calls  # it is remembered

    @pytest.mark.parametrize("index", range(len(PASSAGES)))
    @pytest.mark.parametrize("damage", ["lost", "damaged"])
    async def test_a_lost_chunk_is_computed_with_its_chain(
        self, store: DirectoryStore, index: int, damage: str
    ) -> None:
        document = Document()
        document.store_in(store)
        async with selecting(store) as service:
            path = store.path_of((await encode_all(service, document.by_context()))[index].auxiliary_id)
        before = path.read_bytes()
        path.unlink() if damage == "lost" else flip(path)
        async with selecting(store) as service:
            selected = await self.asked(service, document.by_parents()[index : index + 1])
            assert service.kv.counts.encoded == 2  # with the header, which is stored nowhere
            assert selected.num_isolated == 0
        assert path.read_bytes() == before

    async def test_what_nobody_knows_or_belongs_to_others_is_isolated_and_told(
        self, store: DirectoryStore
    ) -> None:
        texts = [with_template(text) for text in PASSAGES[1:3]]
        expected = by_the_library(engine_auxiliary(), texts, *self.READ)

        async def check(document: Document) -> None:
            async with selecting(store) as service:
                selected = await self.asked(service, document.by_parents()[1:3])
                assert (told(selected), selected.num_isolated) == (expected, 2)

        theirs, ours = Document(tenant="other"), Document()
        await check(ours)
        theirs.store_in(store)
        await check(theirs)
        store.chains = {
            parent: replace(chain, tenant="default", links=chain.links[::-1])
            for parent, chain in store.chains.items()
        }
        await check(theirs)
        store.failure = Unavailable("away")
        await check(ours)

    async def test_a_document_that_is_deleted_meanwhile_leaves_isolated_kv_under_its_own_identity(
        self, store: DirectoryStore
    ) -> None:
        document = Document()
        document.store_in(store)
        async with selecting(store) as service:
            await encode_all(service, document.by_context())
        async with selecting(store) as service:
            await self.asked(service, document.by_parents()[:1])  # its parent is remembered
            service.kv.resident = Resident(service.kv.resident.capacity_bytes)
            store.chains.clear()
            for chunk_id in store.chunk_ids():
                store.path_of(chunk_id).unlink()
            selected = await self.asked(service, document.by_parents()[:1])
            assert selected.num_isolated == 1
        expected = by_the_library(engine_auxiliary(), [with_template(PASSAGES[0])], *self.READ)
        assert told(selected) == expected
        async with selecting(store) as service:
            assert told(await self.asked(service, chunks_of([with_template(PASSAGES[0])]))) == expected
            assert service.kv.counts.loaded == 1

    async def test_a_chain_that_the_model_cannot_hold_begins_anew_behind_its_header(
        self, store: DirectoryStore
    ) -> None:
        document, usual = Document(), engine_auxiliary()
        header, *texts = map(with_template, (document.header, *document.passages))
        header_ids, *ids = (usual.tokenizer.tokenize(text).token_ids for text in (header, *texts))
        room = len(header_ids) + max(map(len, ids))
        prefix_ids = usual.prompts.prefix_ids
        model = engine_auxiliary(max_position_embeddings=len(prefix_ids) + room)
        async with selecting(store, model) as service:
            encoded = await encode_all(service, document.by_context())
        of = ("default", model.scorer.fingerprint, prefix_ids)
        first = parent = chunk_identity(*of, header_ids)
        in_front, num_anew = len(header_ids), 0
        for one, token_ids in zip(encoded, ids, strict=True):
            if in_front + len(token_ids) > room:
                parent, in_front, num_anew = first, len(header_ids), num_anew + 1
            assert one.auxiliary_id == chunk_identity(*of, token_ids, parent)
            parent, in_front = one.auxiliary_id, in_front + len(token_ids)
        assert num_anew > 0

    async def test_a_context_that_is_not_what_the_ids_say_is_refused(self, store: DirectoryStore) -> None:
        chunk = Document().by_context()[0]
        other = replace(chunk, context=(replace(chunk.context[0], token_ids=(1, 2)),))
        async with selecting(store) as service:
            with pytest.raises(ModelMismatch, match="in front of a chunk"):
                await self.asked(service, [other])

    async def test_models_whose_keys_cannot_be_moved_read_chunks_alone(self, store: DirectoryStore) -> None:
        model, document = stock_auxiliary(), Document()
        async with selecting(store, model) as service:
            selected = await self.asked(service, document.by_context())
            assert not service.describe().chains
            assert selected.num_isolated == 0
        texts = [with_template(text) for text in document.passages]
        assert told(selected) == by_the_library(model, texts, *self.READ)
        assert store.calls.count("chain") == 0


class TestFingerprints:
    def test_of_models_beyond_the_engine_tell_weights_and_settings_apart(self) -> None:
        same, seeded, scaled = (
            stock_auxiliary(**kw).scorer.fingerprint
            for kw in ({}, {"seed": 1}, {"scale_attn_by_inverse_layer_idx": True})
        )
        assert same == stock_auxiliary.__wrapped__().scorer.fingerprint
        assert len({same, seeded, scaled}) == 3


class TestHurry:
    async def test_what_comes_too_late_is_not_computed(self, store: DirectoryStore) -> None:
        async with selecting(store) as service:
            with pytest.raises(DeadlineExceeded):
                await select(service, ctx=RequestContext("r", Principal.operator("t"), deadline_s=0.0))
            let_go = threading.Event()
            holder = asyncio.create_task(
                service._model.run(context(), Turn.QUESTION, lambda: let_go.wait(30))
            )
            with pytest.raises(DeadlineExceeded, match="selecting tokens"):
                await select(service, ctx=context(deadline_ms=50))
            waiting = asyncio.create_task(select(service))
            await _until(lambda: service._model.num_waiting == 1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            let_go.set()
            await holder
            assert service.kv.counts.encoded == 0
            assert (await select(service)).tokens

    async def test_a_question_does_not_wait_for_the_rest_of_an_ingestion(self, store: DirectoryStore) -> None:
        async with selecting(store) as service:
            ingestion = service.encode(context(), chunks_of([f"{text} again" for text in PASSAGES]))
            await anext(ingestion)
            await select(service)
            assert (await anext(ingestion)).index == 1
            await ingestion.aclose()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)
