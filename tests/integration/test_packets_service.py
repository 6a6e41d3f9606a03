"""Chunks between packets as the Generation service's callers see them: over gRPC, stored in files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.generator.service import Generator
from shared.engine import wrap_model
from shared.engine.model.packets import Packets, write_packets
from shared.errors import ConfigError, InvalidRequest, ModelMismatch
from shared.generation.asked import SamplingParams
from shared.generation.pieces import Piece
from shared.generation.told import DoneEvent, GenerationEvent, TokenEvent
from shared.kv_format import verify_chunk
from tests.generation_server import Served, context, order_of, save_byte_tokenizer, serving
from tests.kv_directory import DirectoryStore
from tests.oracles import Generated, assert_same_generation, reordered, tiny_model
from tests.soft_packets import knowing, random_packets

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ("the cat ", "sat on the mat ")
NUM_PACKETS = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "talking"
    tiny_model("qwen2", seed=5, vocab_size=300).save_pretrained(directory)
    save_byte_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def packets() -> Packets:
    drawn = random_packets(wrap_model(tiny_model("qwen2", seed=5, vocab_size=300)))
    return replace(drawn, facts=replace(drawn.facts, vocab_size=300))


@pytest.fixture(scope="module")
def folder(packets: Packets, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("packets")
    write_packets(packets, directory)
    return str(directory)


async def asked(served: Served, chunks: tuple[Piece, ...], reuse: str) -> list[GenerationEvent]:
    sampling = SamplingParams(max_tokens=5, top_logprobs=5, ignore_eos=True)
    order = order_of(chunks, ["where?"], reuse, sampling=sampling)
    return [event async for event in served.client.generate(context(), order)]


def generated(events: list[GenerationEvent]) -> Generated:
    told = [event for event in events if isinstance(event, TokenEvent)]
    return Generated(
        tuple(e.token_id for e in told), tuple(e.logprob for e in told), tuple(e.top_logprobs for e in told)
    )


def done(events: list[GenerationEvent]) -> DoneEvent:
    assert isinstance(events[-1], DoneEvent)
    return events[-1]


async def test_chunks_are_stored_and_read_between_packets(
    model: Path, packets: Packets, folder: str, tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path / "kv")
    async with serving(model, store, prompt={"packets": folder}) as served:
        assert isinstance(served.generator, Generator)
        prompts = served.generator.prompts
        stored = [chunk async for chunk in served.client.prefill(context(), TEXTS)]
        for chunk in stored:
            path = store.path_of(chunk.chunk_id)
            assert verify_chunk(path).header.token_ids == chunk.token_ids
            assert len(chunk.token_ids) == len(packets.facts.ids.plain(chunk.token_ids)) + NUM_PACKETS
        ours = await asked(served, TEXTS, "reordered")
        assert done(ours).usage.loaded_tokens == sum(len(chunk.token_ids) for chunk in stored)
        oracle = reordered(
            knowing(tiny_model("qwen2", seed=5, vocab_size=300), packets),
            prompts.default_prefix_ids,
            [chunk.token_ids for chunk in stored],
            prompts.question("q", "where?"),
            generated(ours).token_ids,
        )
        assert_same_generation(generated(ours), oracle, tolerance=1e-3)
        by_ids = tuple(chunk.token_ids for chunk in stored)
        assert generated(await asked(served, by_ids, "reordered")) == generated(ours)
        full = await asked(served, by_ids, "full")
        with pytest.raises(InvalidRequest, match="reuse: epic computes tokens anew"):
            await asked(served, TEXTS, "epic")
        assert served.generator.facts()["packets"] == "3 + 2 vectors per chunk"
    async with serving(model, DirectoryStore(tmp_path / "other")) as plain:
        assert isinstance(plain.generator, Generator)
        without = await asked(plain, TEXTS, "full")
        assert generated(full) == generated(without)
        assert done(full).usage == done(without).usage
        described = await plain.client.describe(context())
        assert described.tokenizer_hash != served.generator.describe().tokenizer_hash
        assert described.fingerprint != served.generator.describe().fingerprint


async def test_packets_that_do_not_fit_are_refused_by_name(model: Path, folder: str, tmp_path: Path) -> None:
    tiny_model("qwen2", seed=6, vocab_size=300).save_pretrained(tmp_path / "other")
    save_byte_tokenizer(tmp_path / "other")
    async with serving(tmp_path / "other", prompt={"packets": folder}) as served:
        assert isinstance(served.generator, ModelMismatch)
        assert served.generator.detail.startswith("packets: fingerprint: ")
    async with serving(model, prompt={"packets": "/nowhere"}) as served:
        assert isinstance(served.generator, ConfigError)
        assert "/nowhere/quilt.packets.json is not there" in served.generator.detail
