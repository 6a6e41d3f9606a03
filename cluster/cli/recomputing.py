"""`kvquilt store verify`, with random chunks of the documents there are computed once more, and the sealing
that is a part of `kvquilt store migrate`."""

from __future__ import annotations

import random
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Protocol

from rich.console import Console

from cluster.cli.session import LONG_DEADLINE_MS, Session
from cluster.cli.store_upkeep import Contexts, print_findings, print_seals, scrub_bar, verify
from shared.clients.doors import generation_client, store_client
from shared.clients.generation import GenerationClient
from shared.clients.kv_store import KvStoreClient
from shared.errors import NotFound
from shared.generation.described import ModelDescription
from shared.generation.pieces import Conditioned, Piece
from shared.kv_reports import VerifyProgress
from shared.kv_types import Manifest


async def verify_store(session: Session, num_recomputed: int) -> bool:
    """Whether everything is whole, and what was computed once more is what is stored."""
    contexts = partial(session.context, LONG_DEADLINE_MS)
    async with session.connect(store_client) as store:
        findings = await verify(session.err, store, contexts(""), repair=False)
        print_findings(session.out, findings)
        print_seals(session.out, findings)
        whole = not (findings.damaged or findings.missing_chunk_ids or findings.damaged_records)
        if not whole:
            session.out.print("make it whole: kvquilt store repair", style="dim")
        same: bool | None = None
        if num_recomputed:
            async with session.connect(generation_client) as generation:
                same = await recompute_sample(
                    session.out, session.err, store, generation, contexts, session.tenant, num_recomputed
                )
        session.tell(asdict(findings) | {"whole": whole, "recomputed_alike": same})
        return whole and same is not False


async def seal_store(session: Session) -> VerifyProgress:
    """Gives everything a seal of the installation's current key."""
    async with session.connect(store_client) as store:
        ctx = session.context(LONG_DEADLINE_MS)
        found = await verify(session.err, store, ctx, repair=False, seal=True)
        print_seals(session.out, found)
        return found


class Random(Protocol):
    def randrange(self, stop: int, /) -> int: ...


async def recompute_sample(
    out: Console,
    console: Console,
    store: KvStoreClient,
    generation: GenerationClient,
    contexts: Contexts,
    tenant: str,
    number: int,
    rng: Random | None = None,
) -> bool:
    """Of ``tenant`` (empty: of all that have documents), as many as there are. Tells what is not what the
    model makes of its tokens; whether there was nothing such."""
    model = await generation.describe(contexts(""))
    tenants = [tenant] if tenant else [t.tenant for t in (await store.stats(contexts(""))).tenants]
    sample = [
        (name, chosen)
        for name in tenants
        for chosen in await _drawn(store, contexts, name, model, number, rng or random.Random())
    ]
    drawn = (rng or random.Random()).randrange
    while len(sample) > number:
        sample.pop(drawn(len(sample)))
    num_forged = num_gone = 0
    with scrub_bar(console) as bar:
        task = bar.add_task("computing again", total=len(sample))
        for name, (chunk_id, prefix_ids, piece) in sample:
            try:
                async with aclosing(generation.recompute(contexts(name), [piece], prefix_ids)) as compared:
                    async for found in compared:
                        if found.forged:
                            num_forged += 1
                            out.print(
                                f"{chunk_id}  {name}: its KV is not what the model makes of its tokens "
                                f"(deviation {found.deviation:.3g}, {found.encoding} explains "
                                f"{found.tolerance:g}); delete the document and ingest it again",
                                style="red",
                                soft_wrap=True,
                            )
            except NotFound:  # deleted meanwhile, or missing, which is told already
                num_gone += 1
            bar.advance(task)
    out.print(f"{len(sample) - num_gone} chunks computed again: {num_forged} are not what is stored")
    return not num_forged


async def _drawn(
    store: KvStoreClient, contexts: Contexts, tenant: str, model: ModelDescription, number: int, rng: Random
) -> list[tuple[str, Piece, Piece]]:
    """Identity, prefix and tokens of ``number`` chunks of the tenant, each as likely as any other (reservoir
    sampling). Documents of another model than the one that is served cannot be computed again."""
    chosen: list[tuple[str, Piece, Piece]] = []
    seen = 0
    async with aclosing(store.list_manifests(contexts(tenant))) as manifests:
        async for manifest in manifests:
            if manifest.model_fingerprint != model.fingerprint:
                continue
            for index in range(len(manifest.chunks)):
                seen += 1
                place = len(chosen) if len(chosen) < number else rng.randrange(seen)
                if place < number:
                    chosen[place : place + 1] = [_piece_of(manifest, index)]
    return chosen


def _piece_of(manifest: Manifest, index: int) -> tuple[str, Piece, Piece]:
    chunk, links = manifest.chunks[index], manifest.links_of(index)
    piece: Piece = Conditioned(chunk.token_ids, links) if links else chunk.token_ids
    return chunk.chunk_id, manifest.prefix_ids, piece
