"""Values of the KV store as messages, both ways."""

from __future__ import annotations

from protos.kvquilt.v1 import kv_store_pb2 as pb
from shared.kv_types import (
    ChunkStat,
    DamagedCopy,
    Manifest,
    ManifestChunk,
    NodeStats,
    StoreStats,
    TenantStats,
    TierStats,
)


def stat_to_pb(s: ChunkStat) -> pb.ChunkStat:
    return pb.ChunkStat(
        chunk_id=s.chunk_id, exists=s.exists, size_bytes=s.size_bytes, modified_s=s.modified_s
    )


def stats_to_pb(stats: StoreStats) -> pb.StatsResponse:
    return pb.StatsResponse(
        nodes=[
            pb.NodeStats(
                node_id=n.node_id, home=n.home, tiers=[tier_to_pb(t) for t in n.tiers], counters=n.counters
            )
            for n in stats.nodes
        ],
        objects=tier_to_pb(stats.objects) if stats.objects else None,
        tenants=[
            pb.TenantStats(
                tenant=t.tenant,
                num_documents=t.num_documents,
                num_bytes=t.num_bytes,
                quota_bytes=t.quota_bytes,
            )
            for t in stats.tenants
        ],
        num_unreachable=stats.num_unreachable,
        objects_detail=stats.objects_detail,
    )


def tier_to_pb(t: TierStats) -> pb.TierStats:
    return pb.TierStats(
        tier=t.tier,
        num_chunks=t.num_chunks,
        num_bytes=t.num_bytes,
        capacity_bytes=t.capacity_bytes,
        pinned_bytes=t.pinned_bytes,
    )


def stat_from_pb(c: pb.ChunkStat) -> ChunkStat:
    return ChunkStat(c.chunk_id, c.exists, c.size_bytes, c.modified_s)


def stats_from_pb(r: pb.StatsResponse) -> StoreStats:
    return StoreStats(
        nodes=tuple(
            NodeStats(n.node_id, n.home, tuple(tier_from_pb(t) for t in n.tiers), dict(n.counters))
            for n in r.nodes
        ),
        objects=tier_from_pb(r.objects) if r.HasField("objects") else None,
        tenants=tuple(TenantStats(t.tenant, t.num_documents, t.num_bytes, t.quota_bytes) for t in r.tenants),
        num_unreachable=r.num_unreachable,
        objects_detail=r.objects_detail,
    )


def tier_from_pb(t: pb.TierStats) -> TierStats:
    return TierStats(t.tier, t.num_chunks, t.num_bytes, t.capacity_bytes, t.pinned_bytes)


def damaged_to_pb(d: DamagedCopy) -> pb.DamagedCopy:
    return pb.DamagedCopy(
        chunk_id=d.chunk_id, node_id=d.node_id, tier=d.tier, reason=d.reason, restored=d.restored
    )


def damaged_from_pb(d: pb.DamagedCopy) -> DamagedCopy:
    return DamagedCopy(d.chunk_id, d.node_id, d.tier, d.reason, d.restored)


def manifest_to_pb(m: Manifest) -> pb.Manifest:
    return pb.Manifest(
        tenant=m.tenant,
        collection=m.collection,
        document_id=m.document_id,
        title=m.title,
        source_hash=m.source_hash,
        model_fingerprint=m.model_fingerprint,
        prefix_ids=m.prefix_ids,
        chunks=[
            pb.ManifestChunk(
                chunk_id=c.chunk_id,
                token_ids=c.token_ids,
                char_start=c.char_start,
                char_end=c.char_end,
                text=c.text,
                heading=c.heading,
                auxiliary_id=c.auxiliary_id,
            )
            for c in m.chunks
        ],
        metadata=m.metadata,
        created_s=m.created_s,
        auxiliary=m.auxiliary,
    )


def manifest_from_pb(m: pb.Manifest) -> Manifest:
    return Manifest(
        tenant=m.tenant,
        collection=m.collection,
        document_id=m.document_id,
        title=m.title,
        source_hash=m.source_hash,
        model_fingerprint=m.model_fingerprint,
        prefix_ids=tuple(m.prefix_ids),
        chunks=tuple(
            ManifestChunk(
                c.chunk_id, tuple(c.token_ids), c.char_start, c.char_end, c.text, c.heading, c.auxiliary_id
            )
            for c in m.chunks
        ),
        metadata=dict(m.metadata),
        created_s=m.created_s,
        auxiliary=m.auxiliary,
    )
