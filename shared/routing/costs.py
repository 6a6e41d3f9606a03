"""Estimates what an answer costs at one replica, in milliseconds: waiting and loading side by side, then
prefill, then the pressure of what decodes there.

    cost = max(wait, Σ missing bytes per link ÷ the link's rate) + prefill of what must be computed + pressure

An engine that has something else to do begins with a question when all its chunks are there; one that has not
begins with their first layers, so that loading and prefill go side by side as well.

What is missing is loaded or, where nobody waits for the engine, computed, a chunk with what is missing of its
chain, so that both sides end as early as they can: computing is a miss's upper bound, and an engine without
a queue is worth the more the longer links are busy. The optimum may split one chunk between the two; that
makes it monotone: nothing becomes cheaper because something is missing.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from shared.generation.ranges import check_range

ChunkKey = int
"""64 bits of a chunk's identity: what reports and the router's view hold of it."""
MOST_KEYS = 2**64
MOST_MS = 86_400_000.0
"""Longer than anything here takes; sums of such times are finite."""


class Tier(enum.StrEnum):
    """Place that a chunk's KV comes from. ``RESIDENT``: in the replica's engine; ``ARRIVING``: on its way
    there, for a question that was sent before; ``MEMORY``, ``DISK``: its node's own; ``PEER``: another
    node's; ``OBJECTS``: the object store; ``COMPUTED``: nowhere."""

    RESIDENT = "resident"
    ARRIVING = "arriving"
    MEMORY = "memory"
    DISK = "disk"
    PEER = "peer"
    OBJECTS = "objects"
    COMPUTED = "computed"


IN_ENGINE = (Tier.RESIDENT, Tier.ARRIVING)


def chunk_key(chunk_id: str) -> ChunkKey:
    return int.from_bytes(hashlib.blake2b(chunk_id.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class WantedChunk:
    """``chain``: keys and token counts of the chunks in front of it, behind which it would be computed.

    Raises:
        InvalidRequest: a number is out of range.
    """

    key: ChunkKey
    num_tokens: int
    chain: tuple[tuple[ChunkKey, int], ...] = ()

    def __post_init__(self) -> None:
        for key, num_tokens in ((self.key, self.num_tokens), *self.chain):
            check_range("chunks.key", key, type(key) is int and 0 <= key < MOST_KEYS, "a 64-bit number")
            check_range("chunks.num_tokens", num_tokens, _is_count(num_tokens), "a number of tokens")


@dataclass(frozen=True, slots=True)
class RoutedQuestion:
    """``num_tokens``: what is prefilled wherever it goes, its own and those that are recomputed;
    ``branches``: how many answers decode at once.

    Raises:
        InvalidRequest: a number is out of range.
    """

    chunks: tuple[WantedChunk, ...]
    num_tokens: int
    branches: int = 1

    def __post_init__(self) -> None:
        check_range("num_tokens", self.num_tokens, _is_count(self.num_tokens), "a number of tokens")
        check_range("branches", self.branches, _is_count(self.branches), "a number of branches")


@dataclass(frozen=True, slots=True)
class ReplicaRates:
    """``link_ms``: milliseconds that a token's KV takes from each tier, as fast as whoever shares that link
    lets it; a tier that is not in it does not exist there. ``prefill_ms``: that computing a token takes;
    ``branch_ms``: by how much every answer that decodes there delays a first token; ``find_ms``: that a
    question's missing chunks take to be found, or not, all at once, before the first is read.

    Raises:
        InvalidRequest: a number is negative or none, or a tier is no link.
    """

    link_ms: Mapping[Tier, float]
    prefill_ms: float
    branch_ms: float = 0.0
    find_ms: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "link_ms", MappingProxyType(dict(self.link_ms)))
        for tier, token_ms in self.link_ms.items():
            check_range("link_ms", tier, tier in _LINKS, f"one of {', '.join(_LINKS)}")
            check_time(f"link_ms.{tier}", token_ms)
        check_time("prefill_ms", self.prefill_ms)
        check_time("branch_ms", self.branch_ms)
        check_time("find_ms", self.find_ms)


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Load of a replica, as it says itself. ``wait_ms``: until it would begin to prefill another question;
    ``loading_ms``: until its links have brought what was asked of them; ``branches``: answers that decode;
    ``age_ms``: how long ago that was so.

    Raises:
        InvalidRequest: a number is negative or none.
    """

    wait_ms: float = 0.0
    loading_ms: float = 0.0
    branches: int = 0
    age_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in ("wait_ms", "loading_ms", "age_ms"):
            check_time(name, getattr(self, name))
        check_range("branches", self.branches, _is_count(self.branches), "a number of answers")


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """``tiers``: where each of the question's chunks would come from, in its order. ``backlog_ms``: for how
    long the links bring what others asked for, after the engine's turn comes. ``loads_ms``, ``prefill_ms``:
    for how long they and the engine are busy with this question; ``loaded_ms``: when what it waits for is
    there.

    ``work_ms``: what it adds to what is done there, ``delay_ms``: what it waits for others and until chunks
    are found, which both together are ``total_ms``."""

    replica_id: str
    wait_ms: float
    backlog_ms: float
    loads_ms: float
    loaded_ms: float
    prefill_ms: float
    pressure_ms: float
    work_ms: float
    total_ms: float
    tiers: tuple[Tier, ...] = field(repr=False)

    @property
    def delay_ms(self) -> float:
        return self.total_ms - self.work_ms


def replica_cost(
    replica_id: str,
    question: RoutedQuestion,
    tiers: Sequence[Tier],
    chain_tokens: Sequence[int],
    rates: ReplicaRates,
    load: ReplicaLoad,
) -> ReplicaCost:
    """``tiers``: where each chunk is, ``chain_tokens``: how many of its chain would have to be computed with
    it."""
    misses: list[tuple[float, float]] = []
    own_ms, arriving_ms = question.num_tokens * rates.prefill_ms, 0.0
    for chunk, tier, more in zip(question.chunks, tiers, chain_tokens, strict=True):
        if tier is Tier.ARRIVING:
            arriving_ms = load.loading_ms
        elif tier is not Tier.RESIDENT:
            computed_ms = (chunk.num_tokens + more) * rates.prefill_ms
            if tier is Tier.COMPUTED:
                own_ms += computed_ms
            else:
                misses.append((chunk.num_tokens * rates.link_ms[tier], computed_ms))
    found_ms = 0.0 if all(tier in IN_ENGINE for tier in tiers) else rates.find_ms
    begins_ms, not_loaded_ms = max(load.loading_ms, found_ms), max(arriving_ms, found_ms)
    loaded_ms = begins_ms if misses else not_loaded_ms
    # what the engine computes while links load, and when they have
    beside_ms, behind_ms = (0.0, own_ms) if load.wait_ms > 0 or load.branches > 0 else (own_ms, 0.0)
    if load.wait_ms > 0:
        loaded_ms += sum(load_ms for load_ms, _ in misses)
    elif misses:
        all_beside_ms = beside_ms + sum(compute_ms for _, compute_ms in misses)
        loaded_ms, beside_ms = balanced(misses, loaded_ms, beside_ms)
        if max(not_loaded_ms, all_beside_ms) < loaded_ms:  # who loads nothing does not queue for links
            loaded_ms, beside_ms, misses = not_loaded_ms, all_beside_ms, []
    loads_ms = loaded_ms - begins_ms if misses else 0.0
    pressure_ms = load.branches * rates.branch_ms
    return ReplicaCost(
        replica_id,
        load.wait_ms,
        max(0.0, load.loading_ms - load.wait_ms),
        loads_ms,
        loaded_ms,
        beside_ms + behind_ms,
        pressure_ms,
        max(loads_ms, beside_ms) + behind_ms,
        max(load.wait_ms, loaded_ms, beside_ms) + behind_ms + pressure_ms,
        tuple(tiers),
    )


def balanced(
    misses: Collection[tuple[float, float]], loaded_ms: float, prefill_ms: float
) -> tuple[float, float]:
    """Returns when loading and prefill end if some of ``misses`` (loading it takes, computing it takes) are
    computed so that the later one ends as early as possible. ``loaded_ms``, ``prefill_ms``: what comes before
    them."""
    loaded_ms += sum(load_ms for load_ms, _ in misses)
    if loaded_ms <= prefill_ms:
        return loaded_ms, prefill_ms
    for load_ms, compute_ms in sorted(misses, key=lambda miss: miss[1] / miss[0] if miss[0] else math.inf):
        if loaded_ms <= prefill_ms:
            break
        if (both_ms := load_ms + compute_ms) == 0:
            continue
        share = min(1.0, (loaded_ms - prefill_ms) / both_ms)
        loaded_ms, prefill_ms = loaded_ms - share * load_ms, prefill_ms + share * compute_ms
    return loaded_ms, prefill_ms


def check_time(name: str, value: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    ok = number and 0 <= value <= MOST_MS  # no NaN is
    check_range(name, value, ok, "a number of milliseconds, 0 to a day's")


_LINKS = (Tier.MEMORY, Tier.DISK, Tier.PEER, Tier.OBJECTS)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31
