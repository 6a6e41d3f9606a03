"""Nobody learns of what he may not read, whatever he calls: ingestion, store, retrieval and gateway together
in this process, over random documents, sections, readers and callers.

Every passage has a word of its own; whatever a caller is told must hold no word that is not his to read.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gateway.config import FeedbackConfig, GatewayConfig
from services.gateway.feedback import FeedbackKeeper
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.gateway.ratings import readable_ratings
from services.ingestion.calls import CallPolicy
from services.ingestion.config import IngestionConfig
from services.ingestion.recipe import Recipe
from services.ingestion.service import IngestionService
from services.ingestion.upsert import DocumentStore
from services.kv_store.node.cluster_store import ClusterStore
from services.retrieval.embedder import EmbedderSettings, Vectors
from services.retrieval.index import MilvusIndex
from services.retrieval.milvus import connect
from services.retrieval.service import RetrievalService
from shared.answer import AnswerEvent, Inquiry, RetrievalOptions
from shared.documents import SourceDocument, Stage
from shared.errors import DocumentTaken, KvquiltError, NotFound
from shared.feedback import Feedback, Rating
from shared.generation.described import ModelDescription, PrefilledChunk
from shared.generation.orders import GenerationOrder
from shared.generation.pieces import Conditioned, Piece, ids_of
from shared.generation.told import BranchDoneEvent, DoneEvent, FinishReason, GenerationEvent, Timings, Usage
from shared.identity import chunk_identity
from shared.kv_types import KvContext
from shared.principals.principal import Principal, Role
from shared.readers import SectionReaders, may_read
from shared.request import RequestContext
from shared.search import SearchMode
from tests.ingestion_world import WordTokenizer
from tests.kv_chunks import chunk_bytes
from tests.kv_stores import KnownNodes, agent_on, in_pieces
from tests.unit.kv_store.disks import QuickDisk

GROUPS = ("a", "b", "c")
MODES = (SearchMode.DENSE, SearchMode.BM25, SearchMode.HYBRID)
_tenants = (f"tenant-{i}" for i in itertools.count())


class Words:
    """An embedder: a direction per word, by its hash."""

    identity, dim, languages = "words", 32, ()

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        vectors = np.full((len(texts), self.dim), 1e-3, np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.split():
                row[hashlib.blake2b(word.encode(), digest_size=1).digest()[0] % self.dim] += 1
        normed: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return normed

    def num_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(text.split()) for text in texts)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return self.embed_queries(texts)


@dataclass
class Repeating:
    """A generator that puts something in the store for every chunk, and answers with all that it reads."""

    store: ClusterStore

    async def describe(self, ctx: RequestContext) -> ModelDescription:
        tokenizer = WordTokenizer()
        of = (tokenizer.prefix_ids, tokenizer.template.chunk, "{question}", 4096, "float32", 1, "cpu", ())
        return ModelDescription("m", "f" * 32, tokenizer.hash, *of)

    async def prefill(
        self, ctx: RequestContext, chunks: Sequence[Piece], *, encoding: str = ""
    ) -> AsyncGenerator[PrefilledChunk, None]:
        operator = RequestContext.create(tenant=ctx.tenant)
        for i, piece in enumerate(chunks):
            of = (ctx.tenant, "f" * 32, WordTokenizer.prefix_ids)
            parent_id = piece.parent_id if isinstance(piece, Conditioned) else ""
            for link in piece.context if isinstance(piece, Conditioned) else ():
                parent_id = chunk_identity(*of, ids_of(link), parent_id)
            chunk_id = chunk_identity(*of, ids_of(piece), parent_id)
            data = chunk_bytes(chunk_id)
            existed = await self.store.put(operator, chunk_id, len(data), in_pieces(data))
            yield PrefilledChunk(i, chunk_id, ids_of(piece), existed)

    async def suspend(self, ctx: RequestContext, verdict: str, reason: str) -> bool:
        return False

    async def generate(
        self, ctx: RequestContext, order: GenerationOrder
    ) -> AsyncGenerator[GenerationEvent, None]:
        yield BranchDoneEvent(0, 0, FinishReason.STOP, repr(order.chunks), 1)
        yield DoneEvent(Usage(1, 0, 1, 1), Timings())


@dataclass(frozen=True)
class Doc:
    """``sections``: their readers, none: the document's."""

    name: str
    collection: str
    readers: tuple[str, ...]
    sections: tuple[tuple[str, ...], ...]

    def word(self, section: int) -> str:
        """Begins with three characters of its own, which is all that the tokenizer reads."""
        return f"{self.name}{'ZAB'[section + 1]}-secret"

    @property
    def source(self) -> SourceDocument:
        parts = [f"Common words with {self.word(-1)} and more."]
        parts += [f"# Part{i}\n\nCommon words with {self.word(i)} here." for i in range(len(self.sections))]
        rules = tuple(SectionReaders(f"Part{i}", of) for i, of in enumerate(self.sections) if of)
        content = "\n\n".join(parts).encode()
        return SourceDocument(f"{self.name}.md", content, readers=self.readers, sections=rules)

    def words(self, who: Principal) -> set[str]:
        """Those that ``who`` may be told."""
        if not may_read(who, self.readers):
            return set()
        shown = {i for i, of in enumerate(self.sections) if may_read(who, of or self.readers)}
        return {self.word(-1), *(self.word(i) for i in shown)}


@dataclass
class Everything:
    """All services. ``loop``: the one that they live on."""

    directory: Path
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __post_init__(self) -> None:
        self.run(self._build())

    async def _build(self) -> None:
        nodes = KnownNodes()
        agent_on(self.directory / "home", "home", nodes, QuickDisk())
        self.store = ClusterStore(nodes, "home")
        milvus = connect(str(self.directory / "index"), "", 5)
        index = MilvusIndex(milvus, Words.identity, Words.dim, EmbedderSettings("words"))
        self.retrieval = RetrievalService(Words(), index, 8)
        generator = Repeating(self.store)
        documents = DocumentStore(generator, self.store, self.retrieval, CallPolicy(), 8, None)
        recipe = Recipe(WordTokenizer(), 16, context=KvContext.DOCUMENT, context_tokens=64)
        self.ingestion = IngestionService(IngestionConfig("none", 16), recipe, documents)
        self.feedback = FeedbackKeeper(FeedbackConfig(str(self.directory / "feedback")))
        config = GatewayConfig(max_k=64)
        self.gateway = Pipeline(self.retrieval, generator, config, Prefetching(self.store), self.feedback)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def answer(self, ctx: RequestContext, collection: str) -> list[AnswerEvent]:
        inquiry = Inquiry(collection, ("common words",), retrieval=RetrievalOptions(k=64))
        return [event async for event in self.gateway.answer(ctx, inquiry)]

    def close(self) -> None:
        self.ingestion.close()
        self.retrieval.close()
        self.loop.close()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    built = Everything(tmp_path_factory.mktemp("everything"))
    yield built
    built.close()


groups = st.lists(st.sampled_from(GROUPS), unique=True, max_size=2).map(lambda g: tuple(sorted(g)))


@st.composite
def docs(draw: st.DrawFn) -> list[Doc]:
    found = []
    for i in range(draw(st.integers(1, 3))):
        readers = draw(groups)
        among = st.lists(st.sampled_from(readers or GROUPS), unique=True, max_size=1).map(tuple)
        sections = draw(st.lists(among, max_size=2).map(tuple))
        found.append(Doc(f"W{i}", draw(st.sampled_from(["one", "two"])), readers, sections))
    return found


async def told(call: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    """All that a caller is told."""
    try:
        return repr(await call())
    except KvquiltError as error:
        return error.detail


@given(documents=docs(), mine=groups, role=st.sampled_from([Role.READER, Role.WRITER, Role.ADMIN]))
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_nobody_is_told_of_what_he_may_not_read(
    everything: Everything, documents: list[Doc], mine: tuple[str, ...], role: Role
) -> None:
    everything.run(_check(everything, documents, mine, role))


async def _check(e: Everything, documents: list[Doc], mine: tuple[str, ...], role: Role) -> None:
    tenant = next(_tenants)
    operator = RequestContext.create("rated", tenant)
    who = Principal("somebody", tenant, frozenset([role]), frozenset(mine))
    ctx = RequestContext.create("asked", principal=who)
    collections = sorted({d.collection for d in documents})
    for name in collections:
        sources = [d.source for d in documents if d.collection == name]
        ended = [event async for event in e.ingestion.upsert(operator, name, sources)]
        assert not [event.error for event in ended if event.error]
        await e.answer(operator, name)
        e.feedback.rate(tenant, Feedback("rated", Rating.GOOD))
    stored = [m for name in collections async for m in _manifests(e, operator, name)]
    all_words = {d.word(i) for d in documents for i in range(-1, len(d.sections))}
    own_words = {word for d in documents for word in d.words(who)}
    ids = {c.chunk_id: {word for word in all_words if word in c.text} for m in stored for c in m.chunks}
    assert all(words <= own_words or not words & own_words for words in ids.values())
    shown_ids = {chunk_id for chunk_id, words in ids.items() if words & own_words}
    hidden_names = {d.name for d in documents if not may_read(who, d.readers)}
    hidden = (all_words - own_words) | (ids.keys() - shown_ids) | {f"{name}.md" for name in hidden_names}

    said: list[str] = []
    for name in collections:
        here = {word for d in documents if d.collection == name for word in d.words(who)}
        for mode, query in itertools.product(MODES, ["common words", *sorted(all_words - own_words)[:1]]):
            if not here:
                with pytest.raises(NotFound, match=f"collection '{name}' does not exist") as refused:
                    await e.retrieval.search(ctx, name, [query], 64, mode)
                said.append(refused.value.detail)
                continue
            (hits,) = (await e.retrieval.search(ctx, name, [query], 64, mode)).rankings
            said.append(repr(hits))
            found = {word for hit in hits for word in ids[hit.chunk.chunk_id]}
            assert found == here if query == "common words" else found <= here
            (best,) = (await e.retrieval.search(ctx, name, ["common words"], 1, mode)).rankings
            assert len(best) == 1
        said.append(await told(lambda name=name: e.answer(ctx, name)))  # type: ignore[misc]
        said.append(repr(await e.retrieval.list_indexed(ctx, name)))
        said.append(await told(lambda name=name: e.ingestion.list_documents(ctx, name, "", 0)))  # type: ignore[misc]
        said.append(repr([m async for m in _manifests(e, ctx, name)]))
    listed = await e.retrieval.list_collections(ctx)
    assert sum(info.num_chunks for info in listed) == len(shown_ids)
    assert {info.name for info in listed} == {d.collection for d in documents if d.words(who)}
    counts = await e.store.count_documents(ctx)
    assert sum(alike.num_documents for alike in counts) == len(documents) - len(hidden_names)
    assert set(await e.store.readable(ctx, sorted(ids))) == shown_ids
    stats = await e.store.stat(ctx, sorted(ids))
    assert {stat.chunk_id for stat in stats if stat.exists} == shown_ids
    said += map(repr, await readable_ratings(ctx, e.feedback.ratings(tenant), e.store))
    for d in documents:
        if d.name in hidden_names:
            assert await told(lambda d=d: e.store.get_manifest(ctx, d.collection, f"{d.name}.md")) == (  # type: ignore[misc]
                f"document '{d.name}.md': not in collection {d.collection!r}"
            )
            deleted = await e.ingestion.delete(ctx, d.collection, [f"{d.name}.md"], everything=False)
            assert deleted.not_found == (f"{d.name}.md",)
        if d.words(who) != d.words(operator.principal):
            own = SourceDocument(f"{d.name}.md", b"others of my own")
            ended = [event async for event in e.ingestion.upsert(ctx, d.collection, [own])]
            assert ended[-1].stage is Stage.FAILED
            assert ended[-1].error_code == DocumentTaken.code
            assert not any(word in ended[-1].error for word in all_words)
    everything_said = " ".join(said)
    assert not [word for word in hidden if word in everything_said]
    assert [m for name in collections async for m in _manifests(e, operator, name)] == stored


async def _manifests(e: Everything, ctx: RequestContext, collection: str) -> AsyncGenerator[Any, None]:
    for manifest in (await e.store.manifest_page(ctx, collection)).manifests:
        yield manifest
