"""Makes the tables that `kvquilt store` prints: values in, rich renderables out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from shared.kv_reports import DamagedCopy, DamagedRecord, StoreStats, TierStats
from shared.kv_types import AlikeDocuments, KvContext
from shared.pinned import PinnedDocuments


def tiers_table(stats: StoreStats) -> Table:
    """Bytes to the last one; a capacity of 0 is none."""
    table = _table("node", "tier", *(f">{name}" for name in ("chunks", "bytes", "capacity", "pinned")))
    for node in stats.nodes:
        for tier in node.tiers:
            table.add_row(node.node_id[:12] + (" (home)" if node.home else ""), *_tier_cells(tier))
    if stats.objects is not None:
        table.add_row("", *_tier_cells(stats.objects))
    elif stats.objects_detail:
        table.add_row("", "objects", *["?"] * 4)
    return table


def tenants_table(stats: StoreStats) -> Table:
    table = _table("tenant", ">documents", ">bytes", ">items", ">their bytes", ">quota of both")
    for tenant in stats.tenants:
        documents = f"{tenant.num_documents:,}", f"{tenant.num_bytes:,}"
        items = f"{tenant.num_items:,}", f"{tenant.item_bytes:,}"
        table.add_row(tenant.tenant, *documents, *items, _limit(tenant.quota_bytes))
    return table


def principals_table(stats: StoreStats) -> Table:
    table = _table("tenant", "principal", ">documents", ">bytes", ">limit")
    for tenant in stats.tenants:
        for one in tenant.principals:
            counts = f"{one.num_documents:,}", f"{one.num_bytes:,}", _limit(one.limit_bytes)
            table.add_row(tenant.tenant, one.principal, *counts)
    return table


def collections_table(counts: Sequence[AlikeDocuments]) -> Table:
    """A collection with several lines mixes documents that were made differently."""
    table = _table("collection", ">documents", "kv_context", "model")
    for count in counts:
        table.add_row(
            count.collection,
            f"{count.num_documents:,}",
            count.kv_context or KvContext.NONE,
            count.model_fingerprint,
        )
    return table


def counters_table(stats: StoreStats) -> Table:
    """Summed over the nodes."""
    table = _table("since the agents started", ">")
    names = sorted({name for node in stats.nodes for name in node.counters})
    for name in names:
        table.add_row(name, f"{sum(node.counters.get(name, 0) for node in stats.nodes):,}")
    return table


def stats_values(stats: StoreStats, counts: Sequence[AlikeDocuments]) -> dict[str, object]:
    """For programs."""
    return dataclasses.asdict(stats) | {"collections": list(map(dataclasses.asdict, counts))}


def damage_lines(damaged: Sequence[DamagedCopy]) -> Iterator[Text]:
    """Not a table: what an operator wants to copy must not be cut to the width of the screen."""
    for d in damaged:
        state = Text("restored", "green") if d.restored else Text("damaged", "red")
        yield Text.assemble(f"{d.chunk_id}  {d.node_id[:12]}  {d.tier}  ", state, f"  {d.reason}")


def record_lines(damaged: Sequence[DamagedRecord]) -> Iterator[Text]:
    for d in damaged:
        state = Text("restored", "green") if d.restored else Text("damaged", "red")
        yield Text.assemble(f"{d.name}  ", state, f"  {d.reason}")


def pins_table(pins: Sequence[PinnedDocuments]) -> Table:
    table = _table("collection", "document", ">bytes")
    for pin in pins:
        table.add_row(pin.collection, pin.document_id or "(all)", f"{pin.num_bytes:,}")
    return table


def _tier_cells(tier: TierStats) -> list[str]:
    return [
        tier.tier,
        f"{tier.num_chunks:,}",
        f"{tier.num_bytes:,}",
        _limit(tier.capacity_bytes),
        f"{tier.pinned_bytes:,}",
    ]


def _limit(num_bytes: int) -> str:
    return f"{num_bytes:,}" if num_bytes else "none"


def _table(*columns: str) -> Table:
    """Columns whose names begin with ``>`` are numbers."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(
            name.removeprefix(">"), justify="right" if name.startswith(">") else "left", no_wrap=True
        )
    return table
