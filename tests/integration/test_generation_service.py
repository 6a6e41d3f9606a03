"""The Generation service as its callers see it: over gRPC, with model directories that ``transformers``
wrote."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from protos.kvquilt.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from protos.kvquilt.v1.recompute_pb2 import Ape, Recompute
from services.generator.service import Generator
from shared.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    KvquiltError,
    StorageFull,
    Unavailable,
)
from shared.generation.asked import Beams, Decoding, SamplingParams
from shared.generation.described import PrefilledChunk
from shared.generation.pieces import Conditioned, Piece
from shared.generation.told import BranchDoneEvent, DoneEvent, GenerationEvent, TokenEvent
from shared.identity import chunk_identity
from shared.kv_format import ChunkFile, inspect_chunk, verify_chunk
from shared.kv_types import Chain
from tests.generation_server import Served, context, order_of, save_byte_tokenizer, serving
from tests.kv_directory import DirectoryStore
from tests.oracles import ORACLES, VOCAB, Chained, Generated, assert_same_generation, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

Ids = tuple[int, ...]
MODES = ["full", "reordered", "composite"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """qwen2 and llama3 without a tokenizer, talking with one."""
    root = tmp_path_factory.mktemp("models")
    tiny_model("qwen2").save_pretrained(root / "qwen2")
    tiny_model("llama3", seed=3).save_pretrained(root / "llama3")
    tiny_model("qwen2", seed=5, vocab_size=300).save_pretrained(root / "talking")
    save_byte_tokenizer(root / "talking")
    return root


@pytest.fixture(scope="module")
def stock(models: Path) -> dict[str, Any]:
    return {
        name: AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float32).eval()
        for name in ("qwen2", "llama3", "talking")
    }


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "kv")


def ids(seed: int, num_tokens: int) -> Ids:
    draw = random.Random(seed)
    return tuple(draw.randrange(3, VOCAB) for _ in range(num_tokens))


async def generate(
    served: Served,
    chunks: Sequence[Piece],
    questions: Sequence[Piece],
    reuse: str | None = None,
    prefix: Piece | None = (),
    deadline_ms: int = 60_000,
    tenant: str = "",
    **sampling: Any,
) -> list[GenerationEvent]:
    chosen = SamplingParams(**{"max_tokens": 5, "top_logprobs": 5, "ignore_eos": True} | sampling)
    order = order_of(chunks, questions, reuse, sampling=chosen, prefix=prefix)
    stream = served.client.generate(context(deadline_ms, tenant), order)
    async with aclosing(stream):
        return [event async for event in stream]


async def prefill(
    served: Served, chunks: Sequence[Piece], prefix: Piece | None = (), tenant: str = ""
) -> list[PrefilledChunk]:
    stream = served.client.prefill(context(tenant=tenant), chunks, prefix)
    async with aclosing(stream):
        return [chunk async for chunk in stream]


def tokens(events: Sequence[GenerationEvent], question: int = 0, sample: int = 0) -> Generated:
    mine = [e for e in events if isinstance(e, TokenEvent) and (e.question, e.sample) == (question, sample)]
    return Generated(
        tuple(e.token_id for e in mine), tuple(e.logprob for e in mine), tuple(e.top_logprobs for e in mine)
    )


def text(events: Sequence[GenerationEvent], question: int = 0) -> str:
    return "".join(
        e.text for e in events if isinstance(e, (TokenEvent, BranchDoneEvent)) and e.question == question
    )


def done(events: Sequence[GenerationEvent]) -> DoneEvent:
    assert isinstance(events[-1], DoneEvent)
    assert sum(isinstance(e, DoneEvent) for e in events) == 1
    return events[-1]


def assert_oracle(
    model: Any,
    mode: str,
    events: Sequence[GenerationEvent],
    prefix: Ids,
    chunks: Sequence[Ids],
    questions: Sequence[Ids],
) -> None:
    """Acceptance: greedy tokens until a near-tie, and top log-probabilities within 1e-3."""
    for index, question in enumerate(questions):
        ours = tokens(events, index)
        assert len(ours.token_ids) == 5
        assert_same_generation(
            ours, ORACLES[mode](model, prefix, chunks, question, ours.token_ids), tolerance=1e-3
        )


class TestConversations:
    CHUNKS = (ids(70, 20), ids(71, 33))
    SAID = ids(72, 64)

    async def turn(self, served: Served, tenant: str = "", **options: Any) -> list[GenerationEvent]:
        question = self.SAID + ids(73, 9)
        order = order_of(self.CHUNKS, [question], "reordered", prefix=(), **{"conversation": True} | options)
        sampling = SamplingParams(max_tokens=5, top_logprobs=5, ignore_eos=True)
        stream = served.client.generate(context(tenant=tenant), replace(order, sampling=sampling))
        async with aclosing(stream):
            return [event async for event in stream]

    async def test_a_later_turn_says_what_was_kept_and_answers_alike(
        self, models: Path, store: DirectoryStore
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            alone = await self.turn(served, conversation=False)
            first, later = await self.turn(served), await self.turn(served)
        usages = [done(events).usage for events in (alone, first, later)]
        assert [usage.conversation_tokens for usage in usages] == [0, 0, 64]
        assert (usages[-1].reused_tokens, usages[-1].recomputed_tokens) == (53 + 64, 9)
        assert tokens(later).token_ids == tokens(alone).token_ids
        assert tokens(later).logprobs == pytest.approx(tokens(alone).logprobs, abs=1e-4)

    async def test_a_tenant_never_uses_anothers(self, models: Path, store: DirectoryStore) -> None:
        async with serving(models / "qwen2", store) as served:
            told = [await self.turn(served, tenant) for tenant in ("ann", "bob", "ann")]
        assert [done(events).usage.conversation_tokens for events in told] == [0, 0, 64]

    async def test_what_is_deleted_goes_from_conversations_that_stand_on_it(
        self, models: Path, store: DirectoryStore
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            assert isinstance(served.generator, Generator)
            chunk_ids = done(await self.turn(served)).chunk_ids
            assert set(chunk_ids) <= set(served.generator.resident_chunk_ids())
            served.generator.forget(chunk_ids[:1])
            assert done(await self.turn(served)).usage.conversation_tokens == 0


class TestAnswersEqualTheOracles:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("name", ["qwen2", "llama3"])
    async def test_chunks_of_any_length_in_any_number(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore, name: str, mode: str
    ) -> None:
        async with serving(models / name, store) as served:
            for case, (prefix_len, lengths) in enumerate(
                [
                    (0, ()),
                    (9, ()),
                    (0, (1,)),
                    (4, (1, 1, 1)),
                    (7, (700,)),
                    (12, (512, 3, 129)),
                    (5, tuple(range(1, 25))),
                ]
            ):
                prefix, question = ids(case, prefix_len), ids(case + 100, 11)
                chunks = [ids(case * 50 + i + 200, n) for i, n in enumerate(lengths)]
                events = await generate(served, chunks, [question], mode, prefix)
                assert_oracle(stock[name], mode, events, prefix, chunks, [question])

    @pytest.mark.parametrize("mode", MODES)
    async def test_many_long_chunks(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore, mode: str
    ) -> None:
        prefix, question = ids(1, 20), ids(2, 30)
        chunks = [ids(10 + i, 1 + (i * 89) % 400) for i in range(24)]
        async with serving(models / "qwen2", store) as served:
            events = await generate(served, chunks, [question], mode, prefix)
        assert_oracle(stock["qwen2"], mode, events, prefix, chunks, [question])

    @pytest.mark.parametrize("mode", MODES)
    async def test_any_order_the_same_chunk_twice_and_several_questions(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore, mode: str
    ) -> None:
        prefix, questions = ids(1, 6), [ids(2, 9), ids(3, 1), ids(4, 25)]
        a, b, c = ids(5, 40), ids(6, 3), ids(7, 90)
        async with serving(models / "llama3", store) as served:
            await prefill(served, [a, b, c], prefix)
            for chunks in ([a, b, c], [c, a, b], [b, b], [a, c, a]):
                events = await generate(served, chunks, questions, mode, prefix)
                assert_oracle(stock["llama3"], mode, events, prefix, chunks, questions)

    @pytest.mark.parametrize("mode", ["reordered", "composite"])
    async def test_stored_kv_answers_like_computed_kv_after_a_restart(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore, mode: str
    ) -> None:
        prefix, question = ids(1, 6), ids(2, 9)
        chunks = [ids(3, 40), ids(4, 1), ids(5, 66)]
        async with serving(models / "qwen2", store) as served:
            assert [c.existed for c in await prefill(served, chunks, prefix)] == [False] * 3
        async with serving(models / "qwen2", store) as served:
            events = await generate(served, chunks, [question], mode, prefix)
            assert [c.existed for c in await prefill(served, chunks, prefix)] == [True] * 3
        assert_oracle(stock["qwen2"], mode, events, prefix, chunks, [question])
        usage = done(events).usage
        assert usage.reused_tokens >= 107
        assert usage.prompt_tokens == usage.reused_tokens + usage.recomputed_tokens == 6 + 107 + 9
        assert usage.loaded_tokens == 107
        assert usage.generated_tokens == 5


class TestTextAndIds:
    async def test_text_answers_like_the_ids_it_stands_for(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore
    ) -> None:
        async with serving(models / "talking", store) as served:
            model = await served.client.describe(context())
            stored = await prefill(served, ["The river rises.", "Bread is brown."], prefix=None)
            by_text = await generate(
                served, ["The river rises.", "Bread is brown."], ["What rises?"], "reordered", prefix=None
            )
            chunk_ids = [c.token_ids for c in stored]
            question_ids = tuple(_byte_ids(model.question_template.replace("{question}", "What rises?")))
            by_ids = await generate(served, chunk_ids, [question_ids], "reordered", prefix=model.prefix_ids)
        assert tokens(by_text) == tokens(by_ids)
        assert done(by_text).chunk_ids == done(by_ids).chunk_ids == tuple(c.chunk_id for c in stored)
        assert chunk_ids[0] == tuple(_byte_ids(model.chunk_template.replace("{text}", "The river rises.")))
        assert model.prefix_ids[0] == 256, "the prefix begins with BOS"
        assert_oracle(stock["talking"], "reordered", by_text, model.prefix_ids, chunk_ids, [question_ids])

    async def test_the_streamed_text_is_the_decoded_text_and_stop_strings_cut_it(
        self, models: Path, store: DirectoryStore
    ) -> None:
        async with serving(models / "talking", store) as served:
            events = await generate(
                served, [], ["Say something."], prefix=None, max_tokens=40, temperature=1.0, seed=4
            )
            whole = text(events)
            assert served.generator.tokenizer.decode(tokens(events).token_ids) == whole  # type: ignore[union-attr]
            stop = whole[8:10]
            cut = await generate(
                served,
                [],
                ["Say something."],
                prefix=None,
                max_tokens=40,
                temperature=1.0,
                seed=4,
                stop=(stop,),
            )
        assert text(cut) == whole[: whole.index(stop)]
        ends = [e for e in cut if isinstance(e, BranchDoneEvent)]
        assert [e.finish_reason for e in ends] == ["stop"]

    async def test_the_services_own_stop_strings_end_answers_of_requests_that_name_none(
        self, models: Path, store: DirectoryStore
    ) -> None:
        async def said(served: Served, stop: tuple[str, ...] = ()) -> str:
            options = {"max_tokens": 40, "temperature": 1.0, "seed": 4, "stop": stop}
            return text(await generate(served, [], ["Say something."], prefix=None, **options))

        async with serving(models / "talking", store) as served:
            whole = await said(served)
        stop = whole[8:10]
        async with serving(models / "talking", store, stop=(stop,)) as served:
            assert await said(served) == whole[: whole.index(stop)]
            assert await said(served, stop=("no such text",)) == whole
            beams = order_of([], ["Say something."], None, sampling=SamplingParams(max_tokens=5))
            beams = replace(beams, prefix=None, decoding=Decoding(beams=Beams(2)))
            async with aclosing(served.client.generate(context(), beams)) as stream:
                assert [e async for e in stream if isinstance(e, DoneEvent)]
        async with serving(models / "qwen2", store, stop=(stop,)) as served:
            assert tokens(await generate(served, [], [ids(2, 5)], prefix=None)).token_ids

    async def test_answers_end_before_what_they_said_already_where_that_is_configured(
        self, models: Path, store: DirectoryStore
    ) -> None:
        order = replace(order_of([], ["Say something."], None), prefix=None)
        others = (
            replace(order, sampling=SamplingParams(ignore_eos=True)),
            replace(order, decoding=Decoding(beams=Beams(2))),
        )
        for configured in (True, False):
            async with serving(models / "talking", store, stop_repeated=configured) as served:
                assert isinstance(served.generator, Generator)
                plan = served.generator.plan
                assert (await plan(context(), order)).request.sampling.stop_repeated is configured
                for other in others:
                    assert not (await plan(context(), other)).request.sampling.stop_repeated

    async def test_a_model_without_a_tokenizer_serves_ids_and_refuses_text(
        self, models: Path, store: DirectoryStore
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            model = await served.client.describe(context())
            assert (model.tokenizer_hash, model.prefix_ids, model.question_template) == ("", (), "")
            assert text(await generate(served, [ids(1, 5)], [ids(2, 5)], prefix=None)) == ""
            with pytest.raises(InvalidRequest, match=r"questions\[0\]\.text: this model has no tokenizer"):
                await generate(served, [], ["hello"])
            with pytest.raises(InvalidRequest, match=r"chunks\[0\]\.text"):
                await prefill(served, ["hello"])
            with pytest.raises(InvalidRequest, match=r"sampling\.stop"):
                await generate(served, [], [ids(2, 5)], stop=("x",))

    async def test_the_model_is_described(self, models: Path, store: DirectoryStore) -> None:
        async with serving(models / "talking", store) as served:
            model = await served.client.describe(context())
            health = await served.client.health(context())
        assert (model.model, model.dtype, model.device, model.max_positions) == (
            str(models / "talking"),
            "float32",
            "cpu",
            20000,
        )
        assert model.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
        assert len(model.tokenizer_hash) == 32
        assert model.eos_ids == (2,)
        assert (health.service, health.ready, health.facts["fingerprint"]) == (
            "generator",
            True,
            model.fingerprint,
        )


class TestChunkIdentity:
    async def test_it_is_derived_from_tenant_model_prefix_and_ids_whatever_the_caller_claims(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore
    ) -> None:
        prefix, a, b, question = ids(1, 6), ids(2, 30), ids(3, 30), ids(4, 9)
        async with serving(models / "qwen2", store) as served:
            model = await served.client.describe(context())
            stored_a, stored_b = await prefill(served, [a, b], prefix)
            assert stored_a.chunk_id == chunk_identity("default", model.fingerprint, prefix, a)
            events = await generate(served, [a], [question], "reordered", prefix)
            assert done(events).chunk_ids == (stored_a.chunk_id,)
            assert_oracle(stock["qwen2"], "reordered", events, prefix, [a], [question])
            (other_tenant,) = await prefill(served, [a], prefix, tenant="other")
            (other_prefix,) = await prefill(served, [a], prefix[1:])
        assert not other_tenant.existed
        assert not other_prefix.existed
        assert len({stored_a.chunk_id, stored_b.chunk_id, other_tenant.chunk_id, other_prefix.chunk_id}) == 4
        header = inspect_chunk(store.path_of(stored_a.chunk_id)).header
        assert (header.token_ids, header.model_fingerprint) == (a, model.fingerprint)

    async def test_a_prefill_answers_in_order_even_for_the_same_chunk_twice(
        self, models: Path, store: DirectoryStore
    ) -> None:
        a, b = ids(1, 300), ids(2, 4)
        async with serving(models / "qwen2", store) as served:
            stored = await prefill(served, [a, b, a])
        assert [c.index for c in stored] == [0, 1, 2]
        assert [c.token_ids for c in stored] == [a, b, a]
        assert stored[0].chunk_id == stored[2].chunk_id
        assert len(store.chunk_ids()) == 2

    async def test_an_empty_prefill_is_answered_at_once(self, models: Path, store: DirectoryStore) -> None:
        async with serving(models / "qwen2", store) as served:
            assert await prefill(served, []) == []


class TestFaults:
    @pytest.mark.parametrize("damage", ["truncated", "flipped", "deleted"])
    async def test_damaged_kv_is_detected_recomputed_and_rewritten(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore, damage: str
    ) -> None:
        prefix, question = ids(1, 6), ids(2, 9)
        chunks = [ids(3, 40), ids(4, 66)]
        async with serving(models / "qwen2", store) as served:
            stored = await prefill(served, chunks, prefix)
            before = await generate(served, chunks, [question], "reordered", prefix)
        path = store.path_of(stored[1].chunk_id)
        good = path.read_bytes()
        _damage(path, damage)
        async with serving(models / "qwen2", store) as served:
            after = await generate(served, chunks, [question], "reordered", prefix)
            assert tokens(after).token_ids == tokens(before).token_ids
            assert_oracle(stock["qwen2"], "reordered", after, prefix, chunks, [question])
            for _ in range(3000):  # written back after the answer
                if (
                    path.exists()
                    and path.stat().st_size == len(good)
                    and path.read_bytes() != _damaged(good, damage)
                ):
                    break
                await asyncio.sleep(0.01)
        assert verify_chunk(path).header.token_ids == chunks[1]

    async def test_prefill_finds_a_flipped_bit_and_writes_the_chunk_again(
        self, models: Path, store: DirectoryStore
    ) -> None:
        chunk = ids(3, 40)
        async with serving(models / "qwen2", store) as served:
            (stored,) = await prefill(served, [chunk])
        path = store.path_of(stored.chunk_id)
        _damage(path, "flipped")
        async with serving(models / "qwen2", store) as served:
            (again,) = await prefill(served, [chunk])
        assert not again.existed
        verify_chunk(path)

    async def test_without_a_kv_store_answers_go_on_and_prefill_says_why_it_cannot(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore
    ) -> None:
        chunk, question = ids(1, 40), ids(2, 9)
        store.failure = Unavailable("kv_store is not available; retry")
        async with serving(models / "qwen2", store) as served:
            events = await generate(served, [chunk], [question], "reordered")
            assert_oracle(stock["qwen2"], "reordered", events, (), [chunk], [question])
            with pytest.raises(Unavailable, match="kv_store"):
                await prefill(served, [ids(3, 40)])
            store.failure = StorageFull("no space left")
            with pytest.raises(StorageFull):
                await prefill(served, [ids(4, 40)])

    async def test_a_client_that_goes_away_in_mid_stream_frees_what_it_held(
        self, models: Path, store: DirectoryStore
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            sampling = SamplingParams(max_tokens=8000, ignore_eos=True)
            stream = served.client.generate(
                context(),
                order_of([ids(1, 50)], [ids(2, 9), ids(3, 9)], "reordered", sampling=sampling, prefix=()),
            )
            async for event in stream:
                assert isinstance(event, TokenEvent)
                break
            assert (await served.client.health(context())).facts["running_requests"] == "1"
            await stream.aclose()
            assert isinstance(served.generator, Generator)
            for _ in range(3000):
                facts = (await served.client.health(context())).facts
                if facts["running_requests"] == facts["private_bytes"] == "0":
                    break
                await asyncio.sleep(0.01)
            assert (facts["running_requests"], facts["private_bytes"]) == ("0", "0")

    async def test_a_deadline_ends_an_answer_with_its_error(
        self, models: Path, store: DirectoryStore
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            with pytest.raises(DeadlineExceeded):
                await generate(served, [], [ids(1, 9)], deadline_ms=300, max_tokens=8000)
            assert done(await generate(served, [], [ids(1, 9)]))

    async def test_many_requests_at_once_answer_as_each_does_alone(
        self, models: Path, store: DirectoryStore
    ) -> None:
        prefix, shared_chunk = ids(1, 6), ids(2, 60)
        async with serving(models / "qwen2", store) as served:

            async def ask(i: int) -> list[GenerationEvent]:
                return await generate(
                    served, [shared_chunk, ids(10 + i, 5 + i)], [ids(40 + i, 9)], MODES[i % 3], prefix
                )

            alone = [await ask(i) for i in range(9)]
        async with serving(models / "qwen2", store) as served:
            together = await asyncio.gather(*(ask(i) for i in range(9)))
        assert [tokens(e).token_ids for e in together] == [tokens(e).token_ids for e in alone]

    @pytest.mark.parametrize("kind", ["absent", "not causal", "absolute positions", "not a model"])
    async def test_a_model_that_cannot_be_served_is_explained_by_health_and_by_every_call(
        self, tmp_path: Path, kind: str
    ) -> None:
        path = tmp_path / "model"
        if kind == "not causal":
            tiny_model("qwen2").model.save_pretrained(path)
        elif kind == "absolute positions":
            config = GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=1, n_head=4, n_positions=128)
            AutoModelForCausalLM.from_config(config).save_pretrained(path)
        elif kind == "not a model":
            path.mkdir()
            (path / "readme.txt").write_text("nothing")
        async with serving(path) as served:
            health = await served.client.health(context())
            assert not health.ready
            assert health.detail
            with pytest.raises(KvquiltError) as refusal:
                await generate(served, [], [ids(1, 5)])
            assert refusal.value.detail == health.detail
            words = {
                "absent": "no directory",
                "not causal": "causal",
                "absolute positions": "gpt2",
                "not a model": "configuration",
            }
            assert words[kind] in health.detail


_IDS = generation_pb2.Piece(token_ids=generation_pb2.TokenIds(ids=[5, 6]))
_BAD = {
    "questions: at least one": {},
    "questions[0]: neither text nor token_ids": {"questions": [generation_pb2.Piece()]},
    "questions[0]: is empty": {"questions": [generation_pb2.Piece(token_ids=generation_pb2.TokenIds())]},
    "questions[1].token_ids[0]: 257": {
        "questions": [_IDS, generation_pb2.Piece(token_ids=generation_pb2.TokenIds(ids=[VOCAB]))]
    },
    "chunks[0]: neither": {"questions": [_IDS], "chunks": [generation_pb2.Piece()]},
    "chunks: 5 are more than": {"questions": [_IDS], "chunks": [_IDS] * 5},
    "questions: 4 are more than": {"questions": [_IDS] * 4},
    "reuse: 'magic' is not one of full, reordered": {"questions": [_IDS], "reuse": "magic"},
    "recompute.tokens: mode reordered": {"questions": [_IDS], "recompute": Recompute(tokens=[0])},
    "recompute.ratio: nan": {
        "questions": [_IDS],
        "reuse": "epic",
        "recompute": Recompute(ratio=float("nan")),
    },
    "recompute.ratio: 1.5": {
        "questions": [_IDS],
        "reuse": "epic",
        "recompute": Recompute(ratio=1.5),
    },
    "recompute.ratio: -0.1": {
        "questions": [_IDS],
        "reuse": "cacheblend",
        "recompute": Recompute(ratio=-0.1),
    },
    "recompute.ratio: mode reordered": {"questions": [_IDS], "recompute": Recompute(ratio=0.5)},
    "recompute.tokens: 3 is out of range": {
        "questions": [_IDS],
        "reuse": "tokens",
        "recompute": Recompute(tokens=[3]),
    },
    "recompute.tokens: 1 is there more than once": {
        "questions": [_IDS],
        "reuse": "tokens",
        "recompute": Recompute(tokens=[1, 1]),
    },
    "recompute.grouping: 9 is not known": {"questions": [_IDS], "recompute": Recompute(grouping=9)},
    "recompute.reading: 9 is not known": {"questions": [_IDS], "recompute": Recompute(reading=9)},
    "recompute.grouping: mode reordered": {
        "questions": [_IDS],
        "recompute": Recompute(grouping="GROUPING_PAPER"),
    },
    "recompute, ape: mode auto": {
        "questions": [_IDS],
        "reuse": "auto",
        "recompute": Recompute(ratio=0.5),
    },
    "ape.temperature: 0.0": {"questions": [_IDS], "reuse": "ape", "ape": Ape(temperature=0)},
    "ape.scale: nan": {"questions": [_IDS], "reuse": "ape", "ape": Ape(scale=float("nan"))},
    "sampling.temperature: nan": {
        "questions": [_IDS],
        "sampling": common_pb2.Sampling(temperature=float("nan")),
    },
    "sampling.temperature: -1": {"questions": [_IDS], "sampling": common_pb2.Sampling(temperature=-1)},
    "sampling.top_p": {"questions": [_IDS], "sampling": common_pb2.Sampling(top_p=1.5)},
    "sampling.n": {"questions": [_IDS], "sampling": common_pb2.Sampling(n=65)},
    "sampling.top_logprobs": {"questions": [_IDS], "sampling": common_pb2.Sampling(top_logprobs=65)},
    "sampling.max_tokens: 70 is more": {"questions": [_IDS], "sampling": common_pb2.Sampling(max_tokens=70)},
    "beams.width: 0": {"questions": [_IDS], "decoding": common_pb2.Decoding(beams=common_pb2.Beams(width=0))},
    "beams.length_penalty: 99": {
        "questions": [_IDS],
        "decoding": common_pb2.Decoding(beams=common_pb2.Beams(width=2, length_penalty=99)),
    },
    "decoding.choose.rule: is not set": {
        "questions": [_IDS],
        "decoding": common_pb2.Decoding(choose=common_pb2.Choice()),
    },
    "meta.tenant": {"questions": [_IDS], "meta": common_pb2.RequestMeta(tenant="a/b")},
}


class TestBadRequests:
    async def test_each_is_refused_with_the_name_of_the_field(self, models: Path) -> None:
        limits = {"max_chunks": 4, "max_questions": 3, "max_tokens_limit": 60, "max_tokens": 20}
        async with (
            serving(models / "qwen2", **limits) as served,
            grpc.aio.insecure_channel(served.address) as channel,
        ):
            stub = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
            for words, fields in _BAD.items():
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    [_ async for _ in stub.Generate(generation_pb2.GenerateRequest(**fields))]
                assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT, words
                assert words in (refusal.value.details() or "")

    async def test_a_prompt_beyond_the_positions_is_refused_and_the_default_length_takes_the_room_there_is(
        self, models: Path
    ) -> None:
        async with serving(models / "qwen2") as served:
            with pytest.raises(ContextTooLong):
                await generate(served, [ids(1, 19_990)], [ids(2, 20)])
            events = await generate(served, [ids(1, 19_900)], [ids(2, 95)], max_tokens=None)
        assert len(tokens(events).token_ids) == 6, "the last token needs no position"


def _byte_ids(text: str) -> list[int]:
    from tokenizers import pre_tokenizers

    order = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    (encoded,) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return [order[c] for c in encoded[0]]


def _damage(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(_damaged(data, damage))


def _damaged(data: bytes, damage: str) -> bytes:
    if damage == "truncated":
        return data[: len(data) // 2]
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :] if damage == "flipped" else b""


def checksums(store: DirectoryStore, chunk_id: str) -> tuple[int, ...]:
    """Of the keys and values of each layer."""
    with closing(ChunkFile.open(store.path_of(chunk_id))) as file:
        return file.seal.layer_checksums


class TestChains:
    """Chunks computed behind their own documents, as callers say it."""

    PREFIX = ids(1, 9)
    DOCUMENT = tuple(ids(20 + i, n) for i, n in enumerate((6, 130, 40, 77)))

    def conditioned(self, index: int) -> Conditioned:
        return Conditioned(self.DOCUMENT[index], self.DOCUMENT[:index])

    def chained(self, index: int) -> Chained:
        return Chained.of(self.DOCUMENT[index], self.DOCUMENT[:index])

    @pytest.mark.parametrize("mode", ["reordered", "ape", "epic", "full"])
    async def test_by_context(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore, mode: str
    ) -> None:
        placed, question = (3, 1, 2), ids(3, 11)
        async with serving(models / "qwen2", store) as served:
            for _ in ("computed", "resident"):
                events = await generate(
                    served, [self.conditioned(i) for i in placed], [question], mode, self.PREFIX
                )
                chunks = [self.chained(i) for i in placed]
                assert_oracle(stock["qwen2"], mode, events, self.PREFIX, chunks, [question])

    async def test_prefilled_in_order_and_asked_by_parent(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            stream = served.client.prefill(context(), self.DOCUMENT, self.PREFIX, chained=True)
            stored = [chunk.chunk_id async for chunk in stream]
        async with serving(models / "qwen2", store) as served:
            pieces = [Conditioned(self.DOCUMENT[i], parent_id=stored[i - 1]) for i in (2, 3)]
            events = await generate(served, pieces, [ids(3, 11)], "reordered", self.PREFIX)
            assert list(done(events).chunk_ids) == [stored[2], stored[3]]
            usage = done(events).usage
            assert (usage.recomputed_tokens, usage.isolated_tokens) == (11, 0)
            chunks = [self.chained(i) for i in (2, 3)]
            assert_oracle(stock["qwen2"], "reordered", events, self.PREFIX, chunks, [ids(3, 11)])

    async def test_a_parent_may_be_a_piece_of_the_same_call(
        self, models: Path, store: DirectoryStore
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            stream = served.client.prefill(context(), self.DOCUMENT, self.PREFIX, chained=True)
            stored = [chunk.chunk_id async for chunk in stream]
        for chunk_id in stored:
            store.path_of(chunk_id).unlink()
        pieces: list[Piece] = [self.conditioned(2), Conditioned(self.DOCUMENT[3], parent_id=stored[2])]
        async with serving(models / "qwen2", store) as served:
            prefilled = await prefill(served, pieces, self.PREFIX)
        assert [chunk.chunk_id for chunk in prefilled] == stored[2:]
        assert store.chunk_ids() == set(stored[2:])

    async def test_a_parent_that_nobody_knows(
        self, models: Path, stock: dict[str, Any], store: DirectoryStore
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            pieces = [Conditioned(self.DOCUMENT[1], parent_id="ab" * 20), self.DOCUMENT[2]]
            events = await generate(served, pieces, [ids(3, 11)], "reordered", self.PREFIX)
            assert done(events).usage.isolated_tokens == len(self.DOCUMENT[1])
            assert_oracle(stock["qwen2"], "reordered", events, self.PREFIX, self.DOCUMENT[1:3], [ids(3, 11)])

    @pytest.mark.parametrize("encoding", ["exact", "int8"])
    async def test_behind_another_prefix_its_chain_stands_behind_that_one_too(
        self, store: DirectoryStore, tmp_path: Path, encoding: str
    ) -> None:
        """As with `--no-prefix`: a parent is named as the document has it. What is computed then is not taken
        for the document's own chain afterwards. (Of two layers the first knows no context, and the
        second only that one of the chain.)"""
        tiny_model("qwen2", num_hidden_layers=3).save_pretrained(model := tmp_path / "model")
        settings: dict[str, Any] = {"kv_encoding": encoding, "engine": {"batch_invariant": True}}
        async with serving(model, store, **settings) as served:
            assert isinstance(served.generator, Generator)
            of = ("default", served.generator.model.fingerprint)
            stream = served.client.prefill(context(), self.DOCUMENT, self.PREFIX, chained=True)
            stored = [chunk.chunk_id async for chunk in stream]
            (alone,) = await prefill(served, [self.conditioned(2)])
        store.chains[stored[1]] = Chain(*of, self.PREFIX, self.DOCUMENT[:2])
        behind = {
            prefix: chunk_identity(*of, prefix, self.DOCUMENT[2], stored[1]) for prefix in ((), self.PREFIX)
        }
        as_it_was = {(): checksums(store, alone.chunk_id), self.PREFIX: checksums(store, stored[2])}
        for chunk_id in (stored[0], stored[2]):
            store.path_of(chunk_id).unlink()
        asked = [Conditioned(self.DOCUMENT[2], parent_id=stored[1])]
        async with serving(model, store, **settings) as served:
            for prefix in ((), self.PREFIX):
                events = await generate(served, asked, [ids(3, 11)], "reordered", prefix)
                assert done(events).usage.isolated_tokens == 0
        for prefix, chunk_id in behind.items():
            assert checksums(store, chunk_id) == as_it_was[prefix]
            _, origin = store.origins[chunk_id]
            assert origin is not None
            assert (origin.prefix_ids, origin.parent_id) == (prefix, stored[1])

    @pytest.mark.parametrize(
        ("piece", "message"),
        [
            (Conditioned((5,), parent_id="no identity"), r"chunks\[0\]\.parent_id.*40 hex digits"),
            (Conditioned((5,), ((VOCAB,),)), r"chunks\[0\]\.context\[0\]"),
        ],
    )
    async def test_what_is_no_context_is_refused(
        self, models: Path, store: DirectoryStore, piece: Piece, message: str
    ) -> None:
        async with serving(models / "qwen2", store) as served:
            with pytest.raises(InvalidRequest, match=message):
                await generate(served, [piece], [ids(3, 11)])

    @pytest.mark.parametrize("encoding", ["exact", "int8"])
    async def test_prefilled_in_slices_it_is_the_same_to_the_byte(
        self, models: Path, tmp_path: Path, encoding: str
    ) -> None:
        """Nothing lossy stands in a chain, so what int8 loses of one chunk is not felt by the next."""
        settings: dict[str, Any] = {"kv_encoding": encoding, "engine": {"batch_invariant": True}}
        at_once, sliced = DirectoryStore(tmp_path / "at once"), DirectoryStore(tmp_path / "sliced")
        async with serving(models / "qwen2", at_once, **settings) as served:
            stream = served.client.prefill(context(), self.DOCUMENT, self.PREFIX, chained=True)
            stored = [chunk.chunk_id async for chunk in stream]
        for i in range(len(self.DOCUMENT)):
            async with serving(models / "qwen2", sliced, **settings) as served:
                piece = self.conditioned(i) if i else self.DOCUMENT[0]
                assert [chunk.chunk_id for chunk in await prefill(served, [piece], self.PREFIX)] == [
                    stored[i]
                ]
        for chunk_id in stored:
            assert at_once.path_of(chunk_id).read_bytes() == sliced.path_of(chunk_id).read_bytes()
