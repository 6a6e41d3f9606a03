"""The services around ingestion, in memory, with the guarantees of the real ones; the caller can be made to
die at any step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from services.ingestion.calls import CallPolicy
from services.ingestion.config import IngestionConfig
from services.ingestion.formats.parse import parse
from services.ingestion.formats.reading import ParserSettings
from services.ingestion.recipe import Parse, Recipe
from services.ingestion.service import IngestionService
from services.ingestion.upsert import DocumentStore
from shared.documents import SourceDocument, Stage, UpsertProgress
from shared.errors import FailedPrecondition, KvquiltError, NotFound, StorageFull
from shared.generation.described import ModelDescription, PrefilledChunk
from shared.generation.pieces import Conditioned, Piece, ids_of
from shared.generation.selection import AuxiliaryDescription, EncodedChunk, SelectionChunk
from shared.identity import chunk_identity
from shared.kv_types import AlikeDocuments, KvContext, Manifest, ManifestPage
from shared.principals.principal import Principal, Role
from shared.prompt_template import PromptTemplate
from shared.readers import both, may_read, taken
from shared.request import RequestContext
from shared.search import CollectionInfo, IndexChange, IndexedDocument, IndexedIds
from shared.sharing import SharingScopes

CONTEXT_TOKENS = 64
_PARSERS = ParserSettings()


class Crash(BaseException):
    """The process dies here: nothing after it runs."""


class WordTokenizer:
    """A token per word."""

    prefix_ids = (7, 8)

    def __init__(self, salt: int = 0, chunk: str = "{text}\n") -> None:
        self._salt = salt
        self.template = PromptTemplate(prefix="P", chunk=chunk, question="{question}")

    @property
    def hash(self) -> str:
        return f"tokenizer-{self._salt}"

    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return tuple(int.from_bytes(word.encode()[:3], "little") + self._salt for word in text.split())


@dataclass
class Selector:
    """An auxiliary model for ingestion. ``failure`` is raised by every call while it is set; ``hangs``:
    nothing is answered; ``chains``: as an ``AuxiliaryDescription`` says."""

    kv: set[str]
    fingerprint: str = "auxiliary-a"
    failure: KvquiltError | None = None
    hangs: bool = False
    chains: bool = True
    calls: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)

    async def describe(self, ctx: RequestContext) -> AuxiliaryDescription:
        await self._called("describe")
        return AuxiliaryDescription(
            "aux",
            self.fingerprint,
            "tokenizer",
            *((1,), "{question}", 99, "float32", 1, "cpu", "primary"),
            chains=self.chains,
        )

    async def encode(
        self, ctx: RequestContext, chunks: Sequence[SelectionChunk]
    ) -> AsyncGenerator[EncodedChunk, None]:
        known: dict[str, str] = {}
        for i, chunk in enumerate(chunks):
            await self._called("encode")
            assert chunk.token_ids == WordTokenizer().encode_chunk(chunk.text)
            self.texts.append(chunk.text)
            of, parent_id = (ctx.tenant, self.fingerprint, (1,)), ""
            if chunk.parent_id:
                parent_id = known[chunk.parent_id]
            for link in chunk.context:
                words = WordTokenizer().encode_chunk(link.text)
                assert words[: len(link.token_ids)] == link.token_ids
                parent_id = chunk_identity(*of, words, parent_id)
            auxiliary_id = chunk_identity(*of, chunk.token_ids, parent_id)
            known[chunk.chunk_id] = auxiliary_id
            existed = auxiliary_id in self.kv
            self.calls["computed"] += not existed
            self.kv.add(auxiliary_id)
            yield EncodedChunk(i, auxiliary_id, len(chunk.token_ids), existed)

    async def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure


@dataclass
class World:
    """``step`` is called before and after every effect; tests make it fail or crash."""

    fingerprint: str = "model-a"
    salt: int = 0
    chunk_template: str = "{text}\n"
    kv: set[str] = field(default_factory=set)
    untold: set[str] = field(default_factory=set)
    """KV of documents that the caller may not read."""
    selector: Selector | None = None
    manifests: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)
    indexed: dict[tuple[str, str, str], IndexedDocument] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    num_prefilled: int = 0
    step: Callable[[str], None] = lambda name: None
    page_size: int = 2
    quota_bytes: float = float("inf")
    first_pause_s: float = 0.0
    kv_context: KvContext = KvContext.DOCUMENT
    scopes: SharingScopes = field(default_factory=SharingScopes)
    encodings: dict[str, str] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    """What the generator was asked for."""
    other_embedder: dict[str, dict[tuple[str, str, str], IndexedDocument]] = field(default_factory=dict)
    """Collections that were indexed with another embedder, and what was indexed anew of them."""

    def service(
        self, chunk_tokens: int = 16, parsers: ParserSettings = _PARSERS, parse: Parse = parse, **config: Any
    ) -> IngestionService:
        config = {"kv_context": self.kv_context} | config
        settings = IngestionConfig(model="none", chunk_tokens=chunk_tokens, **config)
        policy = CallPolicy(timeout_s=settings.step_timeout_s, first_pause_s=self.first_pause_s)
        store = DocumentStore(
            self, self, self, policy, settings.prefill_batch, self.selector, now=lambda: 1.0
        )
        tokenizer = WordTokenizer(self.salt, self.chunk_template)
        context_tokens = settings.kv_context_tokens or CONTEXT_TOKENS
        recipe = Recipe(tokenizer, chunk_tokens, parsers, settings.kv_context, context_tokens, parse)
        return IngestionService(settings, recipe, store)

    async def describe(self, ctx: RequestContext) -> ModelDescription:
        self._effect("describe")
        tokenizer = WordTokenizer(self.salt, self.chunk_template)
        return ModelDescription(
            "m",
            self.fingerprint,
            tokenizer.hash,
            tokenizer.prefix_ids,
            tokenizer.template.chunk,
            "{question}",
            4096,
            "float32",
            1,
            "cpu",
            (),
            kv_scope=self.scopes.of(ctx.tenant),
        )

    async def prefill(
        self, ctx: RequestContext, chunks: Sequence[Piece], *, encoding: str = ""
    ) -> AsyncGenerator[PrefilledChunk, None]:
        for i, chunk in enumerate(chunks):
            token_ids = ids_of(chunk)
            self._effect("prefill")
            self.pieces.append(chunk)
            of = (self.scopes.owner(ctx.tenant), self.fingerprint, WordTokenizer.prefix_ids)
            parent_id = chunk.parent_id if isinstance(chunk, Conditioned) else ""
            for link in chunk.context if isinstance(chunk, Conditioned) else ():
                parent_id = chunk_identity(*of, ids_of(link), parent_id)
            chunk_id = chunk_identity(*of, token_ids, parent_id)
            existed = chunk_id in self.kv
            self.num_prefilled += not existed
            self.kv.add(chunk_id)
            self.encodings[chunk_id] = encoding or self.encodings.get(chunk_id, "exact")
            self._effect("prefilled")
            yield PrefilledChunk(i, chunk_id, token_ids, existed)

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        self._effect("put_manifest")
        if not (self.kv - self.untold).issuperset(manifest.kv_ids):
            raise FailedPrecondition("chunks are not stored")
        key = (ctx.tenant, manifest.collection, manifest.document_id)
        old = self.manifests.get(key)
        self._check_whole(ctx, key)
        self.manifests[key] = manifest
        removed = self._drop_unreferenced(old)
        self._effect("manifest_put")
        return removed

    async def check_quota(self, ctx: RequestContext, manifest: Manifest, bytes_per_token: int) -> None:
        self._effect("check_quota")
        self._check_whole(ctx, (ctx.tenant, manifest.collection, manifest.document_id))
        num_tokens = sum(len(c.token_ids) for c in manifest.chunks if c.chunk_id not in self.kv)
        if num_tokens * bytes_per_token > self.quota_bytes:
            raise StorageFull(f"more than the {self.quota_bytes} bytes that are allowed")

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        self._effect("get_manifest")
        stored = self.manifests.get((ctx.tenant, collection, document_id))
        readable = stored and stored.readable_by(ctx.principal)
        if readable is None:
            raise NotFound("no such document")
        return readable

    async def manifest_page(
        self,
        ctx: RequestContext,
        collection: str = "",
        start_after: str = "",
        limit: int = 0,
        summary: bool = False,
        descending: bool = False,
    ) -> ManifestPage:
        assert not descending, "ingestion asks in order"
        self._effect("manifest_page")
        mine = [
            readable
            for (tenant, name, _), m in sorted(self.manifests.items())
            if tenant == ctx.tenant and collection in ("", name)
            if (readable := m.readable_by(ctx.principal)) is not None
        ]
        rest = [m for m in mine if m.cursor(collection) > start_after]
        size = limit or self.page_size
        page = [
            replace(m, chunks=tuple(replace(c, text="", token_ids=()) for c in m.chunks)) if summary else m
            for m in rest[:size]
        ]
        return ManifestPage(tuple(page), len(rest) > size)

    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]:
        self._effect("delete_manifest")
        old = await self.get_manifest(ctx, collection, document_id)
        if self.manifests[ctx.tenant, collection, document_id] != old:
            raise taken(document_id)
        del self.manifests[ctx.tenant, collection, document_id]
        removed = self._drop_unreferenced(old)
        self._effect("manifest_deleted")
        return removed

    async def count_documents(self, ctx: RequestContext) -> list[AlikeDocuments]:
        self._effect("count_documents")
        alike = Counter((m.collection, m.made_for) for m in self.manifests.values() if m.tenant == ctx.tenant)
        return [
            AlikeDocuments(
                *(name, num, made.fingerprint, made.prefix, made.template, made.kv_context, made.kv_scope)
            )
            for (name, made), num in alike.items()
        ]

    async def index(
        self, ctx: RequestContext, collection: str, document: IndexedDocument, anew: bool = False
    ) -> IndexChange:
        self._effect("index")
        key = (ctx.tenant, collection, document.document_id)
        changed = False
        for index in self._indexes(collection, anew):
            changed |= index.get(key) != document
            index[key] = document
        self._effect("indexed")
        foreign = any("nicht" in chunk.text for chunk in document.chunks)
        return IndexChange(changed, ("seems not to be English",) if changed and foreign else ())

    async def adopt(self, ctx: RequestContext, collection: str) -> int:
        self._effect("adopt")
        replaced = self.other_embedder.pop(collection, None)
        if replaced is not None:
            for key in [key for key in self.indexed if key[:2] == (ctx.tenant, collection)]:
                del self.indexed[key]
            self.indexed |= replaced
        self._effect("adopted")
        return int(replaced is not None)

    async def list_indexed(self, ctx: RequestContext, collection: str) -> IndexedIds:
        self._effect("list_indexed")
        found = sorted(d for t, c, d in self.indexed if (t, c) == (ctx.tenant, collection))
        return IndexedIds(tuple(found), collection in self.other_embedder)

    async def list_collections(self, ctx: RequestContext) -> list[CollectionInfo]:
        self._effect("list_collections")
        found = Counter(c for t, c, _ in self.indexed if t == ctx.tenant)
        return [CollectionInfo(name, found[name]) for name in sorted(found)]

    async def restrict(
        self, ctx: RequestContext, collection: str, document_id: str, readers: Sequence[str]
    ) -> int:
        self._effect("restrict")
        changed = 0
        for index in (self.indexed, self.other_embedder.get(collection, {})):
            if (old := index.get((ctx.tenant, collection, document_id))) is not None:
                chunks = tuple(replace(c, readers=both(c.readers, tuple(readers))) for c in old.chunks)
                changed += sum(a != b for a, b in zip(chunks, old.chunks, strict=True))
                index[ctx.tenant, collection, document_id] = replace(old, chunks=chunks)
        self._effect("restricted")
        return changed

    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        mine = [m for m in self.manifests.values() if m.tenant == ctx.tenant]
        shown = [readable for m in mine if (readable := m.readable_by(ctx.principal)) is not None]
        return [c for c in chunk_ids if any(c in m.kv_ids for m in shown)]

    async def unindex(self, ctx: RequestContext, collection: str, document_ids: Sequence[str]) -> int:
        self._effect("unindex")
        document_ids = [d for d in document_ids if self._may_unindex(ctx, collection, d)]
        removed = [self.indexed.pop((ctx.tenant, collection, d), None) for d in document_ids]
        for d in document_ids:
            self.other_embedder.get(collection, {}).pop((ctx.tenant, collection, d), None)
        self._effect("unindexed")
        return sum(len(d.chunks) for d in removed if d)

    def check_invariants(self) -> None:
        """Whatever can be found is made of durable chunks, and no document misses a chunk."""
        for manifest in self.manifests.values():
            assert self.kv.issuperset(manifest.kv_ids)

    def check_settled(self) -> None:
        """Nothing is left over or missing: index, manifests and KV tell the same."""
        self.check_invariants()
        assert self.indexed.keys() == self.manifests.keys()
        for key, manifest in self.manifests.items():
            assert [c.chunk_id for c in self.indexed[key].chunks] == [c.chunk_id for c in manifest.chunks]
            readers = [manifest.readers_of(i) for i in range(len(manifest.chunks))]
            assert [c.readers for c in self.indexed[key].chunks] == readers
            assert self.indexed[key].model_fingerprint == manifest.model_fingerprint
        assert self.kv == self._referenced()

    def texts(self, collection: str = "c", tenant: str = "default") -> dict[str, str]:
        """What can be found, by document."""
        return {
            d: " ".join(c.text for c in doc.chunks)
            for (t, c, d), doc in self.indexed.items()
            if (t, c) == (tenant, collection)
        }

    def _check_whole(self, ctx: RequestContext, key: tuple[str, str, str]) -> None:
        stored = self.manifests.get(key)
        if stored is not None and stored.readable_by(ctx.principal) != stored:
            raise taken(key[-1])

    def _may_unindex(self, ctx: RequestContext, collection: str, document_id: str) -> bool:
        found = self.indexed.get((ctx.tenant, collection, document_id))
        return found is None or any(may_read(ctx.principal, chunk.readers) for chunk in found.chunks)

    def _indexes(self, collection: str, anew: bool) -> list[dict[tuple[str, str, str], IndexedDocument]]:
        replacing = self.other_embedder.get(collection)
        if replacing is None:
            return [self.indexed]
        return [replacing] if anew else [replacing, self.indexed]

    def _effect(self, name: str) -> None:
        self.calls[name] += 1
        self.step(name)

    def _referenced(self) -> set[str]:
        return {kv_id for manifest in self.manifests.values() for kv_id in manifest.kv_ids}

    def _drop_unreferenced(self, old: Manifest | None) -> list[str]:
        gone = set(old.kv_ids) - self._referenced() if old else set()
        self.kv -= gone
        return sorted(gone)


def context(
    tenant: str = "default", deadline_ms: int = 0, groups: Sequence[str] | None = None
) -> RequestContext:
    """``groups``: of a writer; None: the operator asks."""
    writer = Principal("writer", tenant, frozenset([Role.WRITER]), frozenset(groups or ()))
    return RequestContext.create("r", tenant, deadline_ms, principal=None if groups is None else writer)


LONG = " ".join(f"Sentence number {i} has some words in it." for i in range(12))


CHAPTERS = {
    name: f"# {name}\n\n{' '.join(f'{name}{i}' for i in range(45))}" for name in ("One", "Two", "Three")
}


def book(**chapters: str) -> SourceDocument:
    return SourceDocument("book.md", "\n\n".join((CHAPTERS | chapters).values()).encode())


def text(document_id: str, content: str, **metadata: str) -> SourceDocument:
    return SourceDocument(document_id, content.encode(), metadata=metadata)


def fail_once(step: str, error: KvquiltError) -> Callable[[str], None]:
    left = [error]

    def fail(name: str) -> None:
        if name == step and left:
            raise left.pop()

    return fail


async def upsert(
    service: IngestionService,
    *documents: SourceDocument,
    collection: str = "c",
    tenant: str = "default",
    ctx: RequestContext | None = None,
) -> list[UpsertProgress]:
    return [event async for event in service.upsert(ctx or context(tenant), collection, documents)]


def outcome(events: list[UpsertProgress]) -> dict[str, Stage]:
    """How each document ended; each ends exactly once."""
    ended = [e for e in events if e.stage not in (Stage.PARSED, Stage.PREFILLED)]
    assert len({e.document_id for e in ended}) == len(ended)
    return {e.document_id: e.stage for e in ended}
