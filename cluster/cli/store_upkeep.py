"""`kvquilt store verify`, `repair` and `migrate`: what is asked of which service, in which order, with
progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cluster.cli.ingest_command import Summary, follow_all
from shared.clients.ingest import IngestClient
from shared.kv_reports import VerifyProgress
from shared.kv_stores import Store
from shared.request import RequestContext

_IDS_PER_CALL = 1000

Contexts = Callable[[str], RequestContext]
"""A context of a tenant (empty: of the one that was chosen)."""


def print_findings(console: Console, found: VerifyProgress) -> None:
    """Of a whole scrub."""
    from cluster.cli.store_console import damage_lines, record_lines

    console.print(
        f"{found.num_copies:,} copies of {found.num_bytes:,} bytes verified: {len(found.damaged)} damaged"
    )
    for line in (*damage_lines(found.damaged), *record_lines(found.damaged_records)):
        console.print(line, soft_wrap=True)
    for chunk_id in found.missing_chunk_ids:
        console.print(f"{chunk_id}  no durable good copy is left", style="red")


def print_seals(console: Console, found: VerifyProgress) -> None:
    """Of a whole scrub."""
    if found.num_sealed or found.num_sealed_documents:
        console.print(
            f"sealed with the installation's current key: {found.num_sealed:,} chunks, "
            f"{found.num_sealed_documents:,} documents"
        )
    if found.num_unsealed or found.num_unsealed_documents:
        console.print(
            f"{found.num_unsealed:,} chunks and {found.num_unsealed_documents:,} documents have no seal of "
            "the installation's current key: an earlier version or key stored them; "
            "`kvquilt store migrate` seals them",
            style="yellow",
            soft_wrap=True,
        )


async def verify(
    console: Console, store: Store, ctx: RequestContext, repair: bool, seal: bool = False
) -> VerifyProgress:
    """Returns the last that was told, with all damage."""
    found = VerifyProgress(0, 0)
    stats = await store.stats(ctx)
    tiers = [t for node in stats.nodes for t in node.tiers] + ([stats.objects] if stats.objects else [])
    with scrub_bar(console) as bar:
        doing = "repairing" if repair else "sealing" if seal else "verifying"
        task = bar.add_task(doing, total=sum(t.num_chunks for t in tiers))
        async with aclosing(store.verify(ctx, repair, seal)) as updates:
            async for now in updates:
                found = replace(
                    now,
                    damaged=found.damaged + now.damaged,
                    damaged_records=found.damaged_records + now.damaged_records,
                    num_unsealed_documents=found.num_unsealed_documents + now.num_unsealed_documents,
                    num_sealed_documents=found.num_sealed_documents + now.num_sealed_documents,
                )
                bar.update(task, completed=now.num_copies)
    return found


async def repair(
    out: Console,
    console: Console,
    store: Store,
    ingest: IngestClient,
    contexts: Contexts,
    tenant: str,
    findings: VerifyProgress,
) -> bool:
    """Computes what a repairing scrub could not restore, for ``tenant`` (empty: for all that have documents);
    whether everything is whole now."""
    missing = list(findings.missing_chunk_ids)
    tenants = (
        [tenant]
        if tenant
        else [t.tenant for t in (await store.stats(contexts(""))).tenants if t.num_documents]
    )
    for name in tenants:
        for begin in range(0, len(missing), _IDS_PER_CALL):
            batch = missing[begin : begin + _IDS_PER_CALL]
            summary = await follow_all(console, ingest.refresh(contexts(name), chunk_ids=batch))
            out.print(f"{name}: {summary.num_chunks - summary.num_chunks_reused} chunks computed anew")
            summary.print_failed(out)
        missing = await _absent(store, contexts(name), missing)
    for chunk_id in missing:
        out.print(f"{chunk_id}  could not be computed anew", style="red")
    for record in findings.damaged_records:
        if not record.restored:
            out.print(f"{record.name}  ingest or delete it again (pins: pin again)", style="red")
    return not missing and all(record.restored for record in findings.damaged_records)


async def migrate(
    out: Console, console: Console, ingest: IngestClient, contexts: Contexts, collection: str, encoding: str
) -> Summary:
    """Documents of another model are made anew for the one that is served; then all KV is brought into
    ``encoding``."""
    stale = sorted({d.collection async for d in ingest.list(contexts(""), collection) if not d.current})
    for name in stale:
        summary = await follow_all(console, ingest.re_encode(contexts(""), name))
        out.print(f"{name}: made anew for the model that is served")
        if summary.failed:
            return summary
    return await follow_all(console, ingest.refresh(contexts(""), collection, encoding=encoding))


def scrub_bar(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True)


async def _absent(store: Store, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
    stats = [
        s
        for begin in range(0, len(chunk_ids), _IDS_PER_CALL)
        for s in await store.stat(ctx, chunk_ids[begin : begin + _IDS_PER_CALL])
    ]
    return [s.chunk_id for s in stats if not s.exists]
