"""The Selection service as its callers see it: over gRPC, with model directories that ``transformers`` wrote,
and beside the other services, with a real store of one node."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from transformers import PreTrainedTokenizerFast

from protos.kvquilt.v1 import common_pb2, selection_pb2, selection_pb2_grpc
from services.ingestion.calls import CallPolicy
from services.ingestion.config import IngestionConfig
from services.ingestion.recipe import Recipe
from services.ingestion.service import IngestionService
from services.ingestion.upsert import DocumentStore
from services.kv_store.node.agent import Agent
from services.selector.config import SelectorConfig
from services.selector.handlers import SelectionServicer
from services.selector.loading import load_selector
from services.selector.service import SelectorService
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport, error_of
from shared.clients.selection import APPLICATION, SERVICE, SelectionClient
from shared.config import load
from shared.documents import Stage
from shared.engine_config import EngineConfig
from shared.errors import DeadlineExceeded, InvalidRequest, KvquiltError, ModelMismatch
from shared.generation.selection import Grouping, Reading, SelectionChunk, SelectionOrder
from shared.kv_stores import NodeFiles
from shared.kv_types import KvContext
from shared.limits import RequestLimits
from shared.principals.principal import Principal
from shared.prompt import PromptTokenizer
from shared.request import RequestContext
from shared.selection.auxiliary import load_auxiliary
from shared.selection.selector import Selector
from shared.selection.spans import SpanTokenizer
from tests.generation_server import context, serving
from tests.ingestion_world import World, outcome, text, upsert
from tests.kv_directory import DirectoryStore
from tests.kv_stores import KnownNodes, agent_on
from tests.oracles import tiny_model
from tests.selector_runs import PASSAGES, QUESTION
from tests.token_families import tokenizer_of

pytestmark = pytest.mark.usefixtures("one_thread")

LARGE = 20_000_000
MAY_STAY_BYTES = 400 << 20
LONG = " ".join(f"The mayor of town {i} is the founder of mine {i * 7}." for i in range(12))


def save(directory: Path, family: str, tokenizer: str) -> None:
    backend = tokenizer_of(tokenizer)
    tiny_model(family, vocab_size=backend.get_vocab_size()).save_pretrained(directory)
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>").save_pretrained(directory)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A primary, an auxiliary with a tokenizer of another family, and a model without a tokenizer."""
    root = tmp_path_factory.mktemp("models")
    save(root / "primary", "qwen2", "byte-level BPE")
    save(root / "auxiliary", "llama3", "Unigram")
    tiny_model("qwen2").save_pretrained(root / "mute")
    return root


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "kv")


def order_of(
    chunks: Sequence[SelectionChunk], question: str = QUESTION, ratio: float = 0.2
) -> SelectionOrder:
    return SelectionOrder(tuple(chunks), (question,), ratio)


@dataclass
class Served:
    client: SelectionClient
    stub: Any
    service: SelectorService | KvquiltError


@asynccontextmanager
async def selecting(models: Path, store: NodeFiles | None, **settings: Any) -> AsyncIterator[Served]:
    """A server over the auxiliary model; one that cannot be loaded is served as the application does it."""
    paths = {"model": str(models / "auxiliary"), "primary": str(models / "primary"), "dtype": "float32"}
    service: SelectorService | KvquiltError
    try:
        service = load_selector(
            load(SelectorConfig, paths | settings), store, "node", asyncio.get_running_loop()
        )
    except KvquiltError as error:
        service = error
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    selection_pb2_grpc.add_SelectionServicer_to_server(SelectionServicer(service), server)  # type: ignore[no-untyped-call]
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stub = selection_pb2_grpc.SelectionStub(channel)  # type: ignore[no-untyped-call]
            yield Served(SelectionClient(GrpcTransport(channel, SERVICE, APPLICATION)), stub, service)
    finally:
        await server.stop(None)
        if isinstance(service, SelectorService):
            service.check_invariants()
            await service.close()


def chunks_of(models: Path, *texts: str) -> list[SelectionChunk]:
    """As the primary's prompts have them."""
    prompts = PromptTokenizer.of_model(str(models / "primary"))
    assert prompts is not None
    return [
        SelectionChunk(prompts.template.chunk.replace("{text}", t), prompts.encode_chunk(t)) for t in texts
    ]


def library(models: Path) -> Selector:
    auxiliary = load_auxiliary(str(models / "auxiliary"), EngineConfig(dtype="float32"))
    prompts = PromptTokenizer.of_model(str(models / "primary"))
    assert prompts is not None
    return Selector(auxiliary, SpanTokenizer(prompts, "primary"))


async def encode(client: SelectionClient, chunks: list[SelectionChunk]) -> list[tuple[int, bool]]:
    async with aclosing(client.encode(context(), chunks)) as encoded:
        return [(one.index, one.existed) async for one in encoded]


@pytest.mark.parametrize("grouping", list(Grouping))
@pytest.mark.parametrize("reading", list(Reading))
async def test_what_comes_back_is_what_the_library_says(
    models: Path, store: DirectoryStore, grouping: Grouping, reading: Reading
) -> None:
    chunks, selector = chunks_of(models, *PASSAGES), library(models)
    paired = [selector.pair(chunk.text, chunk.token_ids) for chunk in chunks]
    segments = [selector.encode([chunk])[0] for chunk in paired]
    ratio = 0.5
    asked = [QUESTION, "where?"]
    async with selecting(models, store) as served:
        told = await served.client.select(
            context(), SelectionOrder(tuple(chunks), tuple(asked), ratio, grouping, reading)
        )
    assert len(told) == len(asked)
    for question, selected in zip(asked, told, strict=True):
        expected = selector.select(paired, segments, question, ratio, grouping, reading)
        flat = [chosen for mask in expected.chosen for chosen in mask.tolist()]
        assert selected.tokens == tuple(i for i, chosen in enumerate(flat) if chosen)
        assert selected.scores == tuple(score for scores in expected.scores for score in scores.tolist())
        assert (selected.reading, selected.num_picked, selected.num_grouped) == (
            reading,
            expected.num_picked,
            expected.num_grouped,
        )
        assert len(selected.tokens) > 0 < selected.timings.encode_s


async def test_kv_outlives_the_service(models: Path, store: DirectoryStore) -> None:
    chunks = chunks_of(models, *PASSAGES)
    async with selecting(models, store) as served:
        assert await encode(served.client, chunks[:2]) == [(0, False), (1, False)]
        (first,) = await served.client.select(context(), order_of(chunks))
        facts = (await served.client.health(context())).facts
        assert (facts["loaded_chunks"], facts["encoded_chunks"]) == ("2", str(len(chunks)))
    async with selecting(models, store) as served:
        (again,) = await served.client.select(context(), order_of(chunks))
        facts = (await served.client.health(context())).facts
        assert (facts["loaded_chunks"], facts["encoded_chunks"]) == (str(len(chunks)), "0")
        assert await encode(served.client, chunks) == [(i, True) for i in range(len(chunks))]
    assert (again.tokens, again.scores) == (first.tokens, first.scores)


async def test_it_says_what_it_is(models: Path, store: DirectoryStore) -> None:
    async with selecting(models, store) as served:
        described = await served.client.describe(context())
        health = await served.client.health(context())
    auxiliary, primary = (PromptTokenizer.of_model(str(models / name)) for name in ("auxiliary", "primary"))
    assert auxiliary is not None
    assert primary is not None
    assert (described.tokenizer_hash, described.primary_tokenizer_hash) == (auxiliary.hash, primary.hash)
    assert (described.prefix_ids, described.dtype, described.device) == (
        auxiliary.prefix_ids,
        "float32",
        "cpu",
    )
    assert (
        described.fingerprint == library(models).auxiliary.scorer.fingerprint == health.facts["fingerprint"]
    )
    assert described.kv_bytes_per_token > 0 < described.max_positions
    assert (health.service, health.ready) == ("selector", True)


async def test_errors_cross_the_wire(models: Path, store: DirectoryStore) -> None:
    (chunk,) = chunks_of(models, PASSAGES[0])
    async with selecting(models, store) as served:
        for ratio, says in (
            (-0.1, "recompute_ratio"),
            (1.5, "recompute_ratio"),
            (float("nan"), "ratio: nan"),
        ):
            with pytest.raises(InvalidRequest, match=says):
                await served.client.select(context(), order_of([chunk], ratio=ratio))
        with pytest.raises(InvalidRequest, match=r"questions\[0\]: is empty"):
            await served.client.select(context(), order_of([chunk], ""))
        other = SelectionChunk(f"{chunk.text} more", chunk.token_ids)
        with pytest.raises(ModelMismatch):
            await served.client.select(context(), order_of([other]))
        with pytest.raises(ModelMismatch):
            await encode(served.client, [chunk, other])
        with pytest.raises(DeadlineExceeded):
            await served.client.select(RequestContext("r", Principal.operator("t"), 0.0), order_of([chunk]))


async def test_what_a_caller_leaves_out_is_the_default_and_what_nobody_knows_is_refused(
    models: Path, store: DirectoryStore
) -> None:
    (chunk,) = chunks_of(models, PASSAGES[0])
    async with selecting(models, store) as served:
        (named,) = await served.client.select(
            context(),
            SelectionOrder((chunk,), (QUESTION,), 0.2, Grouping.BUDGET, Reading.STITCHED),
        )
        pb_chunk = selection_pb2.SelectionChunk(text=chunk.text, token_ids=chunk.token_ids)
        request = selection_pb2.SelectRequest(chunks=[pb_chunk], questions=[QUESTION], ratio=0.2)
        response = await served.stub.Select(request)
        (told,) = response.questions
        assert tuple(told.tokens) == named.tokens
        assert told.reading == selection_pb2.READING_STITCHED
        for field in ("grouping", "reading"):
            unknown = selection_pb2.SelectRequest(**{field: 77})  # type: ignore[arg-type]
            with pytest.raises(grpc.aio.AioRpcError, match=f"{field}: 77 is not known; use one of "):
                await served.stub.Select(unknown)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": "/does/not/exist"}, "no directory"),
        ({"model": ""}, "name an auxiliary model"),
        ({"model": "mute"}, "an auxiliary model reads text"),
        ({"primary": "mute"}, "has no tokenizer"),
    ],
)
async def test_a_model_that_cannot_be_used_is_told_by_every_call(
    models: Path, settings: dict[str, str], reason: str
) -> None:
    settings = {name: str(models / value) if value == "mute" else value for name, value in settings.items()}
    async with selecting(models, None, **settings) as served:
        health = await served.client.health(context())
        assert not health.ready
        assert reason in health.detail
        with pytest.raises(KvquiltError, match=reason):
            await served.client.select(context(), order_of([]))
        with pytest.raises(KvquiltError, match=reason):
            await encode(served.client, [])


class Ingesting:
    """Ingestion with a real generator, selector and store; the index is in memory."""

    def __init__(self, models: Path, agent: Agent) -> None:
        self.models, self.agent, self.world = models, agent, World()

    @asynccontextmanager
    async def running(
        self, selector: SelectionClient | None = None, kv_context: KvContext = KvContext.NONE
    ) -> AsyncIterator[IngestionService]:
        settings = IngestionConfig(str(self.models / "primary"), chunk_tokens=64)
        tokenizer = PromptTokenizer.of_model(settings.model)
        assert tokenizer is not None
        async with serving(self.models / "primary", self.agent) as generating:
            store = DocumentStore(
                generating.client, self.agent, self.world, CallPolicy(), settings.prefill_batch, selector
            )
            recipe = Recipe(tokenizer, settings.chunk_tokens, context=kv_context, context_tokens=512)
            service = IngestionService(settings, recipe, store)
            try:
                yield service
            finally:
                service.close()

    async def kv_ids(self) -> set[str]:
        return {chunk.chunk_id for chunk in (await self.agent.list_page(context())).chunks}


@pytest.fixture
async def ingesting(models: Path, tmp_path: Path) -> AsyncIterator[Ingesting]:
    agent = agent_on(tmp_path, "node", KnownNodes())
    yield Ingesting(models, agent)
    agent.check_invariants()
    await agent.close()


async def test_a_document_comes_with_its_auxiliary_kv_keeps_it_and_takes_it_along(
    models: Path, ingesting: Ingesting
) -> None:
    async with selecting(models, ingesting.agent) as served, ingesting.running(served.client) as service:
        assert outcome(await upsert(service, text("a.txt", LONG))) == {"a.txt": Stage.STORED}
        manifest = await ingesting.agent.get_manifest(context(), "c", "a.txt")
        assert manifest.auxiliary == (await served.client.describe(context())).identity
        assert await ingesting.kv_ids() == set(manifest.kv_ids)
        assert len(manifest.kv_ids) == 2 * len(manifest.chunks) > 4
        assert (await ingesting.agent.collect_garbage(context(), grace_s=0)).num_chunks == 0
    async with selecting(models, ingesting.agent) as served, ingesting.running(served.client) as service:
        (selected,) = await served.client.select(
            context(), order_of(chunks_of(models, *(c.text for c in manifest.chunks)))
        )
        assert isinstance(served.service, SelectorService)
        counts = served.service.kv.counts
        assert (counts.encoded, counts.loaded, len(selected.tokens) > 0) == (0, len(manifest.chunks), True)
        assert outcome(await upsert(service, text("a.txt", LONG))) == {"a.txt": Stage.UNCHANGED}
        await service.delete(context(), "c", ["a.txt"], everything=False)
        assert await ingesting.kv_ids() == set()


async def test_auxiliary_kv_of_a_document_stands_behind_its_chain_at_ingestion_and_by_its_manifest(
    models: Path, ingesting: Ingesting
) -> None:
    async with (
        selecting(models, ingesting.agent) as served,
        ingesting.running(served.client, KvContext.DOCUMENT) as service,
    ):
        await upsert(service, text("a.md", f"# The towns\n\n{LONG}"))
    manifest = await ingesting.agent.get_manifest(context(), "c", "a.md")
    assert all(c.parent_id for c in manifest.chunks)
    chunks = [
        replace(told, parent_id=c.parent_id)
        for told, c in zip(
            chunks_of(models, *(c.text for c in manifest.chunks)), manifest.chunks, strict=True
        )
    ]
    async with selecting(models, ingesting.agent) as served:
        (stored,) = await served.client.select(context(), order_of(chunks[::-1]))
        assert isinstance(served.service, SelectorService)
        counts = served.service.kv.counts
        assert (counts.encoded, counts.loaded, stored.num_isolated) == (0, len(chunks), 0)
    async with selecting(models, None) as served:
        (isolated,) = await served.client.select(context(), order_of(chunks[::-1]))
    assert isolated.num_isolated == len(chunks)
    assert isolated.scores != stored.scores


async def test_a_document_of_before_gets_it_by_a_question_or_when_it_is_ingested_again(
    models: Path, ingesting: Ingesting
) -> None:
    async with ingesting.running() as service:
        await upsert(service, text("a.txt", LONG))
    manifest = await ingesting.agent.get_manifest(context(), "c", "a.txt")
    chunks = chunks_of(models, *(c.text for c in manifest.chunks))
    async with selecting(models, ingesting.agent) as served:
        await served.client.select(context(), order_of(chunks))
    written_back = await ingesting.kv_ids() - set(manifest.kv_ids)
    assert len(written_back) == len(chunks)
    async with selecting(models, ingesting.agent) as served, ingesting.running(served.client) as service:
        assert outcome(await upsert(service, text("a.txt", LONG))) == {"a.txt": Stage.STORED}
        assert isinstance(served.service, SelectorService)
        assert served.service.kv.counts.encoded == 0
    renewed = await ingesting.agent.get_manifest(context(), "c", "a.txt")
    assert set(renewed.kv_ids) == set(manifest.kv_ids) | written_back
    assert (await ingesting.agent.collect_garbage(context(), grace_s=0)).num_chunks == 0


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_texts_of_20_mb_to_the_selector_take_no_memory(models: Path) -> None:
    large = selection_pb2.SelectRequest(
        meta=common_pb2.RequestMeta(),
        questions=[QUESTION],
        chunks=[selection_pb2.SelectionChunk(text="word " * (LARGE // 5))],
    )
    async with selecting(models, None) as served:
        before = 0
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await served.stub.Select(large)
            error = error_of(refused.value)
            assert isinstance(error, InvalidRequest)
            assert (
                f"has {large.ByteSize()} bytes, more than the {RequestLimits().message_bytes}" in error.detail
            )
            before = before or resident_bytes()
        assert resident_bytes() - before < MAY_STAY_BYTES
        order = order_of(chunks_of(models, "The mayor of the town is the founder."))
        (selected,) = await served.client.select(context(), order)
        assert selected.tokens
