"""Values about the whole KV store: what its tiers hold, what verification and garbage collection found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TierStats:
    """``tier``: memory, disk, pending (durable here, not yet in the object store) or objects.
    ``capacity_bytes`` 0: no limit."""

    tier: str
    num_chunks: int
    num_bytes: int
    capacity_bytes: int = 0
    pinned_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeStats:
    """``counters``: since the agent started."""

    node_id: str
    home: bool
    tiers: tuple[TierStats, ...]
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrincipalStats:
    """``num_bytes`` of the distinct chunks of the documents that it stored; ``limit_bytes`` 0: no limit."""

    principal: str
    num_documents: int
    num_bytes: int
    limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TenantStats:
    """``num_bytes`` of the distinct chunks that its documents refer to; ``quota_bytes`` 0: no limit.
    ``principals``: whoever stored some of them, by name; of what earlier versions stored nobody knows.
    ``num_items``, ``item_bytes``: of what front doors keep (``shared.kv_items``); they count towards the
    quota, too."""

    tenant: str
    num_documents: int
    num_bytes: int
    quota_bytes: int = 0
    principals: tuple[PrincipalStats, ...] = ()
    num_items: int = 0
    item_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """``objects`` None: no object store is configured, or it did not answer; ``objects_detail`` says then
    why. ``num_unreachable``: nodes that did not answer."""

    nodes: tuple[NodeStats, ...]
    objects: TierStats | None = None
    tenants: tuple[TenantStats, ...] = ()
    num_unreachable: int = 0
    objects_detail: str = ""


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """A copy that is not what was stored. ``restored``: a good one took its place."""

    chunk_id: str
    node_id: str
    tier: str
    reason: str
    restored: bool = False


@dataclass(frozen=True, slots=True)
class DamagedRecord:
    """A copy of a document's manifest (``name``: tenant/collection/document) or of the pins, or an item
    (tenant/kind/id). ``restored``: by the other copy; an item has none."""

    name: str
    reason: str
    restored: bool = False


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """Copies and bytes verified so far, damage found since the last message. Missing, in the last one: chunks
    that documents refer to and of which no good copy is left; in it also the chunks whose copies have no seal
    of the current key, summed over the nodes, and those that were given one."""

    num_copies: int
    num_bytes: int
    damaged: tuple[DamagedCopy, ...] = ()
    missing_chunk_ids: tuple[str, ...] = ()
    damaged_records: tuple[DamagedRecord, ...] = ()
    num_unsealed: int = 0
    num_sealed: int = 0
    num_unsealed_documents: int = 0
    num_sealed_documents: int = 0


@dataclass(frozen=True, slots=True)
class CollectedGarbage:
    """``num_kept``: unreferenced ones that are too young, or being read."""

    num_chunks: int
    num_bytes: int
    num_kept: int
