"""KV in every encoding, through the generator's service and on the demo model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest

from cluster.paths import DEMO_MODEL
from load_tests.encodings.__main__ import bench_of, compare, top1_agreement
from protos.kvquilt.v1 import generation_pb2, generation_pb2_grpc
from shared.generation.asked import SamplingParams
from shared.generation.told import DoneEvent, GenerationEvent, TokenEvent
from shared.kv_buffers import ENCODINGS
from shared.kv_format import inspect_chunk
from tests.generation_server import Served, context, order_of, serving
from tests.kv_directory import DirectoryStore

pytestmark = pytest.mark.usefixtures("one_thread")

PASSAGES = (
    "Brenholm is a small town on the river Ald. It was founded in 1612. Market day in Brenholm is Friday.",
    "The Silver Otter is a ship of three masts. Its captain is Mara Tolin. It was built in 1871.",
    "Dorn Mine lies in the north. It was opened in 1840. Copper is mined there.",
)
QUESTION = "Who is the captain of the Silver Otter?"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "kv")


async def ask(served: Served, passages: Sequence[str] = PASSAGES) -> list[GenerationEvent]:
    sampling = SamplingParams(max_tokens=24, top_logprobs=5)
    async with aclosing(
        served.client.generate(context(), order_of(passages, [QUESTION], "reordered", sampling=sampling))
    ) as events:
        return [event async for event in events]


def tokens(events: Sequence[GenerationEvent]) -> list[TokenEvent]:
    return [event for event in events if isinstance(event, TokenEvent)]


def recomputed(events: Sequence[GenerationEvent]) -> int:
    assert isinstance(events[-1], DoneEvent)
    return events[-1].usage.recomputed_tokens


async def prefill(
    served: Served, encoding: str, passages: Sequence[str] = PASSAGES
) -> list[generation_pb2.PrefillResponse]:
    chunks = [generation_pb2.Piece(text=text) for text in passages]
    async with grpc.aio.insecure_channel(served.address) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
        return [
            r async for r in stub.Prefill(generation_pb2.PrefillRequest(chunks=chunks, encoding=encoding))
        ]


def encodings_in(store: DirectoryStore) -> list[str]:
    return sorted(inspect_chunk(store.path_of(chunk_id)).header.encoding for chunk_id in store.chunk_ids())


@pytest.mark.parametrize("encoding", ["int8", "int4"])
async def test_the_answer_that_had_to_recompute_and_the_one_that_loads_are_the_same(
    store: DirectoryStore, encoding: str
) -> None:
    async with serving(DEMO_MODEL, store, kv_encoding=encoding) as served:
        first = await ask(served)
        while len(store.adopted) < len(PASSAGES):  # written back after the answer
            await asyncio.sleep(0.01)
    assert encodings_in(store) == [encoding] * 3
    assert store.write_back == [True] * 3
    async with serving(DEMO_MODEL, store, kv_encoding=encoding) as served:
        second = await ask(served)
    assert recomputed(second) < recomputed(first)
    assert [t.token_id for t in tokens(second)] == [t.token_id for t in tokens(first)]
    assert [t.logprob for t in tokens(second)] == pytest.approx([t.logprob for t in tokens(first)], abs=1e-4)
    assert "captain of the Silver Otter is Mara" in "".join(t.text for t in tokens(first))


async def test_a_store_of_mixed_encodings_answers(store: DirectoryStore) -> None:
    for passage, encoding in zip(PASSAGES, ENCODINGS, strict=True):
        async with serving(DEMO_MODEL, store, kv_encoding=encoding) as served:
            await prefill(served, "", [passage])
    assert encodings_in(store) == sorted(ENCODINGS)
    async with serving(DEMO_MODEL, store) as served:
        assert [r.existed for r in await prefill(served, "")] == [True] * 3
        answer = await ask(served)
    assert encodings_in(store) == sorted(ENCODINGS)
    assert recomputed(answer) < 30  # the question's own
    assert "captain of the Silver Otter is Mara" in "".join(t.text for t in tokens(answer))


async def test_a_prefill_brings_all_chunks_to_the_encoding_it_names(store: DirectoryStore) -> None:
    async with serving(DEMO_MODEL, store) as served:
        await prefill(served, "", PASSAGES[:1])
        await prefill(served, "int4", PASSAGES[1:2])
        assert encodings_in(store) == ["exact", "int4"]
        responses = await prefill(served, "int8")
        assert encodings_in(store) == ["int8"] * 3
        assert [r.existed for r in responses] == [True, False, False]  # converted, computed again, new
        store.adopted.clear()
        assert [r.existed for r in await prefill(served, "int8")] == [True] * 3
        assert store.adopted == []
        assert [r.existed for r in await prefill(served, "exact")] == [False] * 3
        assert encodings_in(store) == ["exact"] * 3


async def test_the_models_description_says_how_kv_is_stored_and_files_name_the_tokenizer(
    store: DirectoryStore,
) -> None:
    async with serving(DEMO_MODEL, store, kv_encoding="int8") as served:
        async with grpc.aio.insecure_channel(served.address) as channel:
            stub = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
            described = await stub.DescribeModel(generation_pb2.DescribeModelRequest())
        (response,) = await prefill(served, "", PASSAGES[:1])
    assert described.kv_encoding == "int8"
    assert (
        inspect_chunk(store.path_of(response.chunk_id)).header.tokenizer_hash
        == described.tokenizer_hash
        != ""
    )


async def test_an_unknown_encoding_is_refused_by_name(store: DirectoryStore) -> None:
    async with serving(DEMO_MODEL, store) as served:
        with pytest.raises(
            grpc.aio.AioRpcError, match="encoding: 'fp3' is not one of exact, int8, int4"
        ) as refused:
            await prefill(served, "fp3")
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_top_tokens_agree_with_the_exact_encodings_on_the_demo_model() -> None:
    with bench_of(str(DEMO_MODEL), 24) as bench:
        agreements = compare(bench, ["int8", "int4"])
    assert top1_agreement(agreements["exact"]) == 1
    assert top1_agreement(agreements["int8"]) >= 0.99
    assert top1_agreement(agreements["int4"]) >= 0.97
    assert [a.tokens for a in agreements["int8"]] == [a.tokens for a in agreements["exact"]]
    mean_kl = {
        e: sum(sum(a.kl) for a in of_e) / sum(len(a.kl) for a in of_e) for e, of_e in agreements.items()
    }
    assert 0 == mean_kl["exact"] < mean_kl["int8"] < mean_kl["int4"] < 0.01
