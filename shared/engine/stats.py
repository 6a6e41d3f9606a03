"""A snapshot of an engine, for its owner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shared.engine.decoding.drafting import DraftCounts
from shared.engine.kv.conversations import ConversationCounts, Conversations
from shared.engine.kv.late_chunks import LateChunks, LateCounts
from shared.engine.kv.segment_cache import SegmentCache
from shared.engine.request_queue import RequestQueue


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. ``at_s``: when, an instant of ``time.monotonic()``. ``tokens_ahead``: of questions, those
    that are computed before another one's; during a step this is as of its beginning, all else as of the
    step before. ``resident_chunk_ids``: least recently used first. ``used_bytes``: of resident KV that
    requests refer to; ``capacity_bytes``: of KV that may be resident. ``num_pauses``, ``num_steps``: since
    the start, and ``drafts`` and ``late``. ``compute_s``: that a token's KV took lately, ``find_s``: that the
    chunks of a request took to be found, ``read_s``: that a byte of KV took from each tier; None, or not in
    it: not seen yet. ``loading_bytes``: of KV that is on its way, by the tier that it is read from; "" where
    it is not found yet. ``conversation_bytes``: of kept KV of earlier turns, ``conversation_chunk_ids``: what
    it stands on; ``conversations``: since the start."""

    at_s: float = 0.0
    tokens_ahead: int = 0
    resident_chunk_ids: tuple[str, ...] = ()
    resident_bytes: int = 0
    private_bytes: int = 0
    running: int = 0
    paused: int = 0
    waiting: int = 0
    num_steps: int = 0
    used_bytes: int = 0
    capacity_bytes: int = 0
    num_pauses: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    late: LateCounts = field(default_factory=LateCounts)
    compute_s: float | None = None
    find_s: float | None = None
    read_s: Mapping[str, float] = field(default_factory=dict)
    loading_bytes: Mapping[str, int] = field(default_factory=dict)
    conversation_bytes: int = 0
    conversation_chunk_ids: tuple[str, ...] = ()
    conversations: ConversationCounts = field(default_factory=ConversationCounts)

    @property
    def ahead_ms(self) -> float | None:
        """For how long, as of ``at_s``, the next question waits for others to be computed; None: not known
        yet."""
        return None if self.compute_s is None else self.tokens_ahead * self.compute_s * 1e3


def snapshot(
    requests: RequestQueue,
    cache: SegmentCache,
    conversations: Conversations,
    drafts: DraftCounts,
    late: LateChunks,
    num_steps: int,
) -> EngineStats:
    """Made by the engine's thread, between steps."""
    branches = [branch for job in requests.admitted() for branch in job.branches()]
    reading = ((tier, read.mean) for tier, read in late.estimates.reading.items())
    return EngineStats(
        at_s=time.monotonic(),
        tokens_ahead=requests.num_to_prefill,
        resident_chunk_ids=cache.chunk_ids(),
        resident_bytes=cache.num_bytes,
        private_bytes=sum(branch.segment.num_bytes for branch in branches),
        running=len(requests.running) + len(requests.prefilling),
        paused=len(requests.paused),
        waiting=requests.num_waiting,
        num_steps=num_steps,
        used_bytes=cache.used_bytes,
        capacity_bytes=cache.capacity_bytes,
        num_pauses=requests.num_pauses,
        drafts=replace(drafts),
        late=replace(late.counts),
        compute_s=late.estimates.computing.mean,
        find_s=late.estimates.finding.mean,
        read_s={tier: mean for tier, mean in reading if mean is not None},
        loading_bytes=cache.loading_bytes(),
        conversation_bytes=conversations.num_bytes,
        conversation_chunk_ids=conversations.chunk_ids,
        conversations=replace(conversations.counts),
    )
