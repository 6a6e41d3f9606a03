"""Documents with chains, and a store that tells each caller of what it may read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from shared.errors import NotFound, Unavailable
from shared.identity import chunk_identity
from shared.kv_types import KvContext, Manifest, ManifestChunk
from shared.readers import EVERYBODY, Readers
from shared.request import RequestContext
from tests.unit.gateway.fakes import FINGERPRINT


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def document(
    name: str,
    texts: Sequence[str],
    title: str = "",
    tenant: str = "default",
    readers: Readers = EVERYBODY,
    fingerprint: str = FINGERPRINT,
) -> Manifest:
    """One block, each chunk behind the one in front of it; ``title`` not empty: behind a header as well."""
    of = (tenant, fingerprint, ())
    header_ids = ids_of(title)
    parent_id = chunk_identity(*of, header_ids) if title else ""
    chunks = []
    for text in texts:
        chunk_id = chunk_identity(*of, ids_of(text), parent_id)
        chunks.append(
            ManifestChunk(
                chunk_id,
                ids_of(text),
                text=text,
                parent_id=parent_id,
                header_ids=() if chunks else header_ids,
            )
        )
        parent_id = chunk_id
    return Manifest(
        tenant,
        "docs",
        name,
        title,
        f"{hash(tuple(texts))}",
        fingerprint,
        chunks=tuple(chunks),
        kv_context=KvContext.DOCUMENT,
        readers=readers,
    )


@dataclass
class FakeDocuments:
    """``read``: names of documents that were fetched whole; ``listed``: how often they were listed."""

    manifests: list[Manifest] = field(default_factory=list)
    away: bool = False
    read: list[str] = field(default_factory=list)
    listed: list[bool] = field(default_factory=list)

    async def list_manifests(
        self, ctx: RequestContext, collection: str = "", summary: bool = False
    ) -> AsyncGenerator[Manifest, None]:
        if self.away:
            raise Unavailable("kv_store: is away; retry")
        self.listed.append(summary)
        for manifest in self._readable(ctx):
            chunks = tuple(replace(c, text="", token_ids=()) for c in manifest.chunks)
            yield replace(manifest, chunks=chunks) if summary else manifest

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        if self.away:
            raise Unavailable("kv_store: is away; retry")
        self.read.append(document_id)
        for manifest in self._readable(ctx):
            if (manifest.collection, manifest.document_id) == (collection, document_id):
                return manifest
        raise NotFound(f"document {document_id!r}: not there")

    def _readable(self, ctx: RequestContext) -> list[Manifest]:
        of_tenant = (one for one in self.manifests if one.tenant == ctx.tenant)
        return [shown for one in of_tenant if (shown := one.readable_by(ctx.principal)) is not None]
