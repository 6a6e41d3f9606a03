"""Tells what a node's part of the store holds and has done, for metrics: of counts that are kept anyway."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping

from services.kv_store.documents.documents import Documents
from services.kv_store.node.chunks import NodeTiers
from shared.kv_reports import TierStats
from shared.metrics import table
from shared.metrics.recorder import MetricReading

SOURCES = ("object", "peer")
"""As ``fetching.sources`` names them."""
EVENTS = (
    "prefetches",
    "coalesced",
    "direct_opens",
    "failed_fetches",
    "promotions",
    "uploads",
    "damaged_objects",
    "damaged_peers",
)


def node_readings(tiers: NodeTiers, documents: Documents, is_home: bool) -> Iterator[MetricReading]:
    """Blocks on the disk for a moment."""
    held, counters = tiers.stats()
    yield from _of_tiers(held)
    yield from _of_counters(counters, [tier.tier for tier in held])
    yield MetricReading(table.STORE_ROOM, tiers.disk.room_bytes())
    yield MetricReading(table.STORE_DISK, shutil.disk_usage(tiers.disk.staging.directory).total)
    if is_home:
        yield MetricReading(table.STORE_DOCUMENTS, documents.num_documents)
        yield MetricReading(table.STORE_DAMAGED, documents.num_damaged)
        yield MetricReading(table.STORE_SURE, float(documents.failure is None))


def _of_tiers(tiers: tuple[TierStats, ...]) -> Iterator[MetricReading]:
    for tier in tiers:
        of = {"tier": tier.tier}
        yield MetricReading(table.STORE_CHUNKS, tier.num_chunks, of)
        yield MetricReading(table.STORE_BYTES, tier.num_bytes, of)
        yield MetricReading(table.STORE_CAPACITY, tier.capacity_bytes, of)
        yield MetricReading(table.STORE_PINNED, tier.pinned_bytes, of)


def _of_counters(counters: Mapping[str, int], tiers: list[str]) -> Iterator[MetricReading]:
    """From 0 on, so that a first time shows in a rate."""
    yield MetricReading(table.CHUNK_OPENS, counters.get("opens", 0))
    for tier in tiers:
        yield MetricReading(table.CHUNK_HITS, counters.get(f"{tier}_hits", 0), {"tier": tier})
    for source in SOURCES:
        yield MetricReading(table.CHUNK_FETCHES, counters.get(f"{source}_fetches", 0), {"source": source})
        yield MetricReading(table.CHUNK_FETCHED_BYTES, counters.get(f"{source}_bytes", 0), {"source": source})
    for event in EVENTS:
        yield MetricReading(table.CHUNK_EVENTS, counters.get(event, 0), {"event": event})
    yield MetricReading(table.EVICTIONS, counters.get("evictions", 0))
