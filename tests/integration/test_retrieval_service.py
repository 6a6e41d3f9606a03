"""Retrieval behind a real gRPC server, on the embedded Milvus."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from protos.kvquilt.v1 import retrieval_pb2_grpc
from services.retrieval.config import RetrievalConfig
from services.retrieval.embedder import Embedder, EmbedderSettings, Vectors
from services.retrieval.embedders import Load
from services.retrieval.handlers import RetrievalHandlers
from services.retrieval.index import MilvusIndex
from services.retrieval.milvus import Lexical, Milvus, connect
from services.retrieval.reranker import Reranking
from services.retrieval.service import RetrievalService
from services.retrieval.transformer_embedder import TransformerEmbedder, load_embedder
from shared import config
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.retrieval import APPLICATION, SERVICE, RetrievalClient
from shared.errors import ConfigError, DeadlineExceeded, FailedPrecondition, InvalidRequest, NotFound
from shared.request import RequestContext
from shared.search import Filter, FilterOp, IndexedChunk, IndexedDocument, IndexedIds, SearchMode


class WordEmbedder:
    """Texts with the same words are near each other."""

    dim = 64
    languages: tuple[str, ...] = ("en",)

    def __init__(self, identity: str = "words") -> None:
        self.identity = identity
        self.num_embedded = 0

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        vectors = np.full((len(texts), self.dim), 1e-3, np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.lower().split():
                row[hashlib.blake2b(word.encode(), digest_size=1).digest()[0] % self.dim] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def num_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(text.split()) for text in texts)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.num_embedded += len(texts)
        return self.embed_queries(texts)


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Milvus]:
    opened = connect(str(tmp_path_factory.mktemp("milvus") / "index"), "", 5)
    yield opened
    opened.close()


@asynccontextmanager
async def _serving(
    embedder: Embedder, milvus: Milvus, load_other: Load | None = None, reranking: Reranking | None = None
) -> AsyncIterator[RetrievalClient]:
    borrowed = Milvus(milvus.client, milvus.version, milvus.embedded, milvus.lexical, lambda: None)
    index = MilvusIndex(borrowed, embedder.identity, embedder.dim, EmbedderSettings(embedder.identity))
    service = RetrievalService(embedder, index, 2, load_other, reranking=reranking)
    server = grpc.aio.server()
    retrieval_pb2_grpc.add_RetrievalServicer_to_server(RetrievalHandlers(service), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield RetrievalClient(GrpcTransport(channel, SERVICE, APPLICATION))
    await server.stop(0)
    service.close()


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
async def client(embedder: WordEmbedder, milvus: Milvus) -> AsyncIterator[RetrievalClient]:
    async with _serving(embedder, milvus) as connected:
        yield connected


@pytest.fixture
def ctx(request: pytest.FixtureRequest) -> RequestContext:
    """A tenant of its own for every test."""
    return RequestContext.create("r", hashlib.blake2b(request.node.name.encode(), digest_size=8).hexdigest())


def _document(document_id: str, *texts: str, **metadata: str) -> IndexedDocument:
    chunks = tuple(
        IndexedChunk(f"{document_id}-{i}", text, (i, 2**31), "Head", i, i + len(text))
        for i, text in enumerate(texts)
    )
    return IndexedDocument(document_id, f"About {document_id}", "model", chunks, metadata)


async def test_indexed_documents_are_listed_over_the_wire(
    client: RetrievalClient, ctx: RequestContext
) -> None:
    assert await client.list_indexed(ctx, "c") == IndexedIds()
    for name in ("b", "a"):
        await client.index(ctx, "c", _document(name, "text"))
    assert await client.list_indexed(ctx, "c") == IndexedIds(("a", "b"))


async def test_texts_become_the_vectors_that_searches_compare(
    client: RetrievalClient, ctx: RequestContext, embedder: WordEmbedder
) -> None:
    texts = [f"the fox number {i}" for i in range(20)]  # more than are embedded in one step
    embedded = await client.embed(ctx, texts)
    assert np.allclose(embedded.vectors, embedder.embed_documents(texts), atol=1e-7)
    assert (embedded.embedder, embedded.num_tokens) == ("words", 80)
    assert embedder.num_embedded == 40
    assert await client.embed(ctx, texts, queries=True) == embedded
    assert embedder.num_embedded == 40, "as queries are"
    for wrong in ([], ["a", " "]):
        with pytest.raises(InvalidRequest, match=r"texts"):
            await client.embed(ctx, wrong)


async def test_a_hit_is_what_was_indexed(client: RetrievalClient, ctx: RequestContext) -> None:
    document = _document("d", "the quick fox", lang="en")
    assert (await client.index(ctx, "c", document)).changed
    result = await client.search(ctx, "c", ["fox"])
    (hit,) = result.rankings[0]
    assert hit.chunk == document.chunks[0]
    assert (hit.document_id, hit.title, hit.model_fingerprint, hit.metadata) == (
        "d",
        "About d",
        "model",
        {"lang": "en"},
    )
    assert result.mode is SearchMode.HYBRID


@pytest.mark.parametrize("mode", [SearchMode.DENSE, SearchMode.BM25, SearchMode.HYBRID])
async def test_every_mode_ranks_the_matching_chunk_first(
    client: RetrievalClient, ctx: RequestContext, mode: SearchMode
) -> None:
    await client.index(
        ctx, "c", _document("d", "a red apple falls", "a blue whale swims", "a green frog jumps")
    )
    result = await client.search(ctx, "c", ["blue whale", "green frog", "red apple"], k=3, mode=mode)
    assert [ranking[0].chunk.text for ranking in result.rankings] == [
        "a blue whale swims",
        "a green frog jumps",
        "a red apple falls",
    ]
    assert result.mode is mode
    for ranking in result.rankings:
        assert [hit.score for hit in ranking] == sorted((hit.score for hit in ranking), reverse=True)


async def test_hybrid_finds_what_only_one_half_finds(client: RetrievalClient, ctx: RequestContext) -> None:
    await client.index(
        ctx, "c", _document("d", *(f"filler text number {i}" for i in range(20)), "the code is XK-4471")
    )
    result = await client.search(ctx, "c", ["XK-4471"], k=1)
    assert result.rankings[0][0].chunk.text == "the code is XK-4471"


async def test_k_limits_each_ranking_and_may_exceed_the_collection(
    client: RetrievalClient, ctx: RequestContext
) -> None:
    await client.index(ctx, "c", _document("d", *(f"text {i}" for i in range(5))))
    assert [len(r) for r in (await client.search(ctx, "c", ["text", "text 1"])).rankings] == [2, 2]
    assert [len(r) for r in (await client.search(ctx, "c", ["text"], k=10_000)).rankings] == [5]


async def test_indexing_the_same_again_embeds_nothing(
    client: RetrievalClient, embedder: WordEmbedder, ctx: RequestContext
) -> None:
    assert (await client.index(ctx, "c", _document("d", "one", "two"))).changed
    assert not (await client.index(ctx, "c", _document("d", "one", "two"))).changed
    assert embedder.num_embedded == 2
    assert (await client.index(ctx, "c", _document("d", "one"))).changed
    assert len((await client.search(ctx, "c", ["one"], k=9)).rankings[0]) == 1


async def test_filters_narrow_the_search(client: RetrievalClient, ctx: RequestContext) -> None:
    await client.index(ctx, "c", _document("d", "same text", lang='"en" or 1'))
    await client.index(ctx, "c", _document("e", "same text", lang="de"))
    for op, expected in ((FilterOp.EQ, "d"), (FilterOp.NE, "e")):
        result = await client.search(ctx, "c", ["same"], k=9, filters=[Filter("lang", op, ('"en" or 1',))])
        assert [hit.document_id for hit in result.rankings[0]] == [expected]


async def test_collections_are_listed_and_emptied(client: RetrievalClient, ctx: RequestContext) -> None:
    await client.index(ctx, "a.b-c_d", _document("d", "one", "two"))
    assert [(c.name, c.num_chunks) for c in await client.list_collections(ctx)] == [("a.b-c_d", 2)]
    assert await client.unindex(ctx, "a.b-c_d", ["d", "other"]) == 2
    assert await client.unindex(ctx, "a.b-c_d", ["d"]) == 0
    assert await client.list_collections(ctx) == []


async def test_unknown_collections_and_other_tenants_are_not_found(
    client: RetrievalClient, ctx: RequestContext
) -> None:
    await client.index(ctx, "mine", _document("d", "one"))
    with pytest.raises(NotFound, match="'other' does not exist; there are: mine"):
        await client.search(ctx, "other", ["one"])
    with pytest.raises(NotFound, match="there is none yet"):
        await client.search(RequestContext.create("r", "stranger"), "mine", ["one"])


@pytest.mark.parametrize(
    ("queries", "k", "collection", "names"),
    [
        ([], 1, "c", "queries"),
        (["fine", " \n"], 1, "c", r"queries\[1\]: is empty"),
        (
            ["x" * 70_000],
            1,
            "c",
            r"queries\[0\]: has 70000 bytes, more than the 65536 that limits.question_bytes",
        ),
        (["x"] * 257, 1, "c", "queries: 1 to 256"),
        (["x"], 20_000, "c", "k: at most"),
        (["x"], 1, 'c" or 1', "collection"),
    ],
)
async def test_searches_that_cannot_be_are_refused_by_name(
    client: RetrievalClient, ctx: RequestContext, queries: list[str], k: int, collection: str, names: str
) -> None:
    with pytest.raises(InvalidRequest, match=names):
        await client.search(ctx, collection, queries, k)


async def test_documents_that_cannot_be_are_refused_by_name(
    client: RetrievalClient, ctx: RequestContext
) -> None:
    for document, names in (
        (_document("", "x"), "document_id"),
        (_document("d"), "chunks"),
        (_document("d", "x" * 70_000), r"chunks\[0\].text"),
        (_document("d", "x", title="y"), "metadata"),
    ):
        with pytest.raises(InvalidRequest, match=names):
            await client.index(ctx, "c", document)
    with pytest.raises(NotFound):
        await client.search(ctx, "c", ["x"])


async def test_another_embedders_collection_is_searched_with_it_until_it_is_indexed_anew(
    client: RetrievalClient, milvus: Milvus, ctx: RequestContext
) -> None:
    await client.index(ctx, "c", _document("d", "a red apple falls", "a blue whale swims"))
    assert (await client.health(ctx)).detail == ""
    loaded: list[WordEmbedder] = []

    def load(settings: EmbedderSettings) -> WordEmbedder:
        loaded.append(WordEmbedder(settings.model))
        return loaded[-1]

    new = WordEmbedder("new")
    async with _serving(new, milvus, load) as later:

        async def found(query: str) -> str:
            result = await later.search(ctx, "c", [query], mode=SearchMode.DENSE)
            return result.rankings[0][0].chunk.text

        assert "kvquilt retrieval rebuild" in (await later.health(ctx)).detail
        assert await found("blue whale") == "a blue whale swims"
        assert [embedder.identity for embedder in loaded] == ["words"]
        assert (
            await later.index(ctx, "c", _document("e", "a green frog jumps"))
        ).changed  # meanwhile, by both
        assert (new.num_embedded, loaded[0].num_embedded) == (1, 1)
        assert await found("green frog") == "a green frog jumps"
        again = _document("d", "a red apple falls", "a blue whale swims")
        assert (await later.index(ctx, "c", again, anew=True)).changed
        assert (new.num_embedded, loaded[0].num_embedded) == (3, 1)
        assert (await later.list_indexed(ctx, "c")).other_embedder
        assert await later.adopt(ctx, "c") == 1
        for query, text in (("green frog", "a green frog jumps"), ("blue whale", "a blue whale swims")):
            assert await found(query) == text
        assert not (await later.list_indexed(ctx, "c")).other_embedder


@pytest.mark.parametrize("gone", [True, False])
async def test_an_embedder_that_is_gone_or_has_changed_is_told_with_what_helps(
    client: RetrievalClient, milvus: Milvus, ctx: RequestContext, gone: bool
) -> None:
    def load(settings: EmbedderSettings) -> WordEmbedder:
        if gone:
            raise ConfigError("embedder: nothing there")
        return WordEmbedder("has other weights now")

    await client.index(ctx, "c", _document("d", "one"))
    async with _serving(WordEmbedder("new"), milvus, load) as later:
        for call in (
            later.search(ctx, "c", ["one"]),
            later.index(ctx, "c", _document("e", "two")),
        ):
            with pytest.raises(FailedPrecondition, match="kvquilt retrieval rebuild -c c"):
                await call
        assert (await later.search(ctx, "c", ["one"], mode=SearchMode.BM25)).rankings[0]
        await later.index(ctx, "c", _document("d", "one"), anew=True)
        await later.adopt(ctx, "c")
        assert (await later.search(ctx, "c", ["one"])).rankings[0]


GERMAN = (
    "Der Hafenmeister und seine Leute sind nicht auf dem Schiff, wenn die Sonne untergeht. Sie werden mit "
    "dem "
    "Boot von der Insel geholt, und es ist für sie ein langer Tag, der auch in der Nacht nicht zu Ende "
    "ist. Das "
    "Haus am Ufer wird von einer Frau geführt."
)


async def test_documents_that_the_embedder_cannot_read_are_told(
    milvus: Milvus, tmp_path: Path, ctx: RequestContext
) -> None:
    own = connect(str(tmp_path / "index"), "", 5)
    async with _serving(WordEmbedder(), own) as client:
        english = await client.index(ctx, "c", _document("en", "The keeper of the house is in it. " * 9))
        assert (english.changed, english.warnings) == (True, ())
        assert (await client.health(ctx)).detail == ""
        (warning,) = (await client.index(ctx, "c", _document("de", GERMAN, GERMAN))).warnings
        assert warning.startswith("seems not to be English, which is all that the embedder reads")
        assert (await client.index(ctx, "c", _document("de", GERMAN, GERMAN))).warnings == ()
        detail = (await client.health(ctx)).detail
        assert detail.startswith("2 of 3 chunks seem not to be English")
        assert "retrieval.embedder" in detail
        (hit,) = (await client.search(ctx, "c", ["Hafenmeister"], k=1)).rankings[0]
        assert hit.metadata == {}
        multilingual = WordEmbedder()
        multilingual.languages = ("en", "de")
    async with _serving(multilingual, own) as client:
        await client.search(ctx, "c", ["Hafenmeister"])
        assert (await client.health(ctx)).detail == ""
        assert (await client.index(ctx, "c", _document("de", GERMAN))).warnings == ()
    own.close()


class ShortestFirst:
    identity = "shortest first"

    def __init__(self) -> None:
        self.read: list[tuple[str, list[str]]] = []

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        self.read.append((query, list(texts)))
        return [-float(len(text)) for text in texts]


@pytest.mark.parametrize("mode", [SearchMode.DENSE, SearchMode.BM25, SearchMode.HYBRID])
async def test_a_reranker_reads_more_than_is_asked_for_and_has_the_last_word(
    embedder: WordEmbedder, milvus: Milvus, ctx: RequestContext, mode: SearchMode
) -> None:
    by = ShortestFirst()
    async with _serving(embedder, milvus, reranking=Reranking(by, 3)) as client:
        texts = ("blue whale blue whale", "a blue whale swims", "whale", "nothing at all")
        await client.index(ctx, "c", _document("d", *texts))
        (hits,) = (await client.search(ctx, "c", ["blue whale"], k=2, mode=mode)).rankings
        assert [hit.chunk.text for hit in hits] == ["whale", "a blue whale swims"]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        ((query, read),) = by.read
        assert query == "blue whale"
        assert sorted(read) == sorted(f"About d\nHead\n\n{text}" for text in texts[:3])
        assert (await client.health(ctx)).facts["reranker"] == "shortest first"
        by.read.clear()
        assert len((await client.search(ctx, "c", ["whale", "blue"], k=4)).rankings[0]) == 4
        assert [len(read) for _, read in by.read] == [4, 4]


async def test_without_bm25_searches_are_dense_and_say_so(
    embedder: WordEmbedder, milvus: Milvus, ctx: RequestContext
) -> None:
    old_server = Milvus(milvus.client, "2.3.5", milvus.embedded, Lexical.NONE, lambda: None)
    async with _serving(embedder, old_server) as client:
        await client.index(ctx, "c", _document("d", "one", "two"))
        assert (await client.search(ctx, "c", ["one"])).mode is SearchMode.DENSE
        for mode in (SearchMode.BM25, SearchMode.HYBRID):
            with pytest.raises(FailedPrecondition, match=f"{mode.value} is not possible; use dense"):
                await client.search(ctx, "c", ["one"], mode=mode)
        assert (await client.health(ctx)).facts["bm25"].startswith("no")


async def test_a_deadline_that_passes_is_told(client: RetrievalClient) -> None:
    late = RequestContext.create("r", "late", 1)
    await asyncio.sleep(0.002)  # a server that answers within the millisecond would say NotFound
    with pytest.raises(DeadlineExceeded):
        await client.search(late, "c", ["x"])


async def test_health_tells_what_is_served(client: RetrievalClient, ctx: RequestContext) -> None:
    health = await client.health(ctx)
    assert (health.service, health.ready) == ("retrieval", True)
    assert health.facts["embedder"] == "words"
    assert "milvus_lite" in health.facts["milvus"]


async def test_minilm_finds_by_meaning_and_reads_to_the_end_of_long_text(
    milvus: Milvus, ctx: RequestContext
) -> None:
    embedder = load_embedder(EmbedderSettings("minilm"), num_threads=1)
    one, long = (
        embedder.embed_documents(["The harbour master keeps the keys."]),
        "The river is wide and slow. " * 60,
    )
    assert one.shape == (1, 384)
    assert np.linalg.norm(one[0]) == pytest.approx(1, abs=1e-3)
    padded = embedder.embed_documents(["short", "The harbour master keeps the keys.", long])
    assert float(padded[1] @ one[0]) > 0.999
    assert (
        float(embedder.embed_documents([long + "Zinc mines paid for the opera house."])[0] @ padded[2])
        < 0.995
    )
    async with _serving(embedder, milvus) as client:
        await client.index(
            ctx,
            "c",
            _document(
                "d", "A feline rested on the rug.", "Shares fell sharply on Monday.", "Rain is expected."
            ),
        )
        result = await client.search(
            ctx, "c", ["Where is the cat?", "stock market", "weather"], k=1, mode=SearchMode.DENSE
        )
        assert [hits[0].chunk.chunk_id for hits in result.rankings] == ["d-0", "d-1", "d-2"]


def test_a_path_without_a_model_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="embedder"):
        TransformerEmbedder(tmp_path / "nothing")
    (tmp_path / "modules.json").write_text(
        '[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]'
    )
    with pytest.raises(ConfigError, match=r"Dense of .* is not supported"):
        TransformerEmbedder(tmp_path)


def test_the_embedded_milvus_has_one_replica() -> None:
    with pytest.raises(ConfigError, match=r"deployment\.num_replicas"):
        config.load(RetrievalConfig, {"milvus_uri": "/data/index", "deployment": {"num_replicas": 2}})
    loaded = config.load(
        RetrievalConfig, {"milvus_uri": "http://milvus:19530", "deployment": {"num_replicas": 2}}
    )
    assert config.load(RetrievalConfig, config.to_dict(loaded)) == loaded
