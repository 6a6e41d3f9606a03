"""The replicas as one router sees them: who holds what, how busy they are, and what a question costs at
each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.routing.costs import ReplicaCost, ReplicaLoad, RoutedQuestion, Tier, WantedChunk, replica_cost
from shared.routing.recent import LoadView, RecentDecisions
from shared.routing.reports import ReportOutcome, lane_of, read_report
from shared.routing.residency import Residency
from shared.routing.settings import FleetReplica, RoutingSettings


@dataclass(slots=True)
class _Member:
    replica: FleetReplica
    slot: int
    load: LoadView


@dataclass(frozen=True, slots=True)
class ChunkHolders:
    """Of a chunk, a bit per replica. ``held``: those of the rest together; ``chain``: holders of what is in
    front of it, with its tokens."""

    resident: int
    arriving: int
    memory: int
    disk: int
    held: int
    chain: Sequence[tuple[int, int]]


class Fleet:
    """A replica is a bit (``slot``) of the masks here; that of one that has gone is given to another."""

    def __init__(self, settings: RoutingSettings) -> None:
        self.all = 0
        self.residency = Residency(settings.lease_ms)
        self._kept_ms = settings.kept_ms
        self._recent = RecentDecisions(settings.kept_ms)
        self._members: dict[str, _Member] = {}
        self._by_slot: dict[int, _Member] = {}

    @property
    def names(self) -> Iterable[str]:
        return self._members.keys()

    def slot(self, replica_id: str) -> int | None:
        """None: there is no such replica."""
        member = self._members.get(replica_id)
        return None if member is None else member.slot

    def set_replicas(self, replicas: Iterable[FleetReplica]) -> None:
        """
        Raises:
            InvalidRequest: two have the same id.
        """
        wanted: dict[str, FleetReplica] = {}
        for replica in replicas:
            if replica.replica_id in wanted:
                raise InvalidRequest(f"replicas: {replica.replica_id!r} is there twice")
            wanted[replica.replica_id] = replica
        for replica_id, member in list(self._members.items()):
            now = wanted.get(replica_id)
            if now is None or now.node_id != member.replica.node_id:
                self._leave(member)
            else:
                member.replica = now
        for replica in wanted.values():
            if replica.replica_id not in self._members:
                self._join(replica)

    def told(self, message: Mapping[str, object], now_ms: float) -> ReportOutcome:
        try:
            return self.residency.apply(read_report(message), now_ms)
        except InvalidRequest:
            self._distrust(message)
            return ReportOutcome.MALFORMED

    def load_told(self, replica_id: str, load: ReplicaLoad, now_ms: float) -> None:
        if (member := self._members.get(replica_id)) is not None:
            member.load.told(load, now_ms)

    def sent(self, question: RoutedQuestion, cost: ReplicaCost, now_ms: float) -> None:
        member = self._members[cost.replica_id]
        self._recent.send(member.slot, (chunk.key for chunk in question.chunks), now_ms)
        member.load.sent(cost, question.branches, now_ms)

    def expire(self, now_ms: float) -> None:
        self.residency.expire(now_ms)
        self._recent.expire(now_ms)

    def holders(self, chunk: WantedChunk) -> ChunkHolders:
        held_in = self.residency.holders
        resident, arriving = held_in(Tier.RESIDENT, chunk.key), self._recent.holders(chunk.key)
        memory, disk = held_in(Tier.MEMORY, chunk.key), held_in(Tier.DISK, chunk.key)
        chain = [(held_in(Tier.RESIDENT, key), num_tokens) for key, num_tokens in chunk.chain]
        return ChunkHolders(resident, arriving, memory, disk, resident | arriving | memory | disk, chain)

    def cost(
        self, question: RoutedQuestion, holders: Sequence[ChunkHolders], slot: int, now_ms: float
    ) -> ReplicaCost:
        member, bit = self._by_slot[slot], 1 << slot
        replica, links = member.replica, member.replica.rates.link_ms
        tiers = [_tier(of_chunk, bit, links) for of_chunk in holders]
        chains = [
            sum(num_tokens for resident, num_tokens in of_chunk.chain if not resident & bit)
            for of_chunk in holders
        ]
        load = member.load.at(now_ms)
        return replica_cost(replica.replica_id, question, tiers, chains, replica.rates, load)

    def check_invariants(self) -> None:
        self.residency.check_invariants()
        self._recent.check_invariants()
        assert sum(1 << member.slot for member in self._members.values()) == self.all, "slots"
        assert {member.slot: member for member in self._members.values()} == self._by_slot, "slots"

    def _join(self, replica: FleetReplica) -> None:
        slot = (~self.all & (self.all + 1)).bit_length() - 1  # the lowest that is free
        member = _Member(replica, slot, LoadView(self._kept_ms))
        self._members[replica.replica_id] = self._by_slot[slot] = member
        self.all |= 1 << slot
        self.residency.join(replica.replica_id, replica.node_id, slot)

    def _leave(self, member: _Member) -> None:
        del self._members[member.replica.replica_id], self._by_slot[member.slot]
        self.all &= ~(1 << member.slot)
        self.residency.leave(member.replica.replica_id)
        self._recent.leave(member.slot)

    def _distrust(self, message: Mapping[str, object]) -> None:
        try:
            self.residency.retire(lane_of(message))
        except InvalidRequest:
            return


def _tier(holders: ChunkHolders, bit: int, links: Mapping[Tier, float]) -> Tier:
    """Where it would come from: a node looks at its own tiers first, then asks others, then the object
    store."""
    if holders.held & bit:
        if holders.resident & bit:
            return Tier.RESIDENT
        if holders.arriving & bit:
            return Tier.ARRIVING
        if holders.memory & bit and Tier.MEMORY in links:
            return Tier.MEMORY
        if holders.disk & bit and Tier.DISK in links:
            return Tier.DISK
    elif Tier.PEER in links and (holders.memory or holders.disk):
        return Tier.PEER  # what a node holds counts for all its replicas: this one's does not
    return Tier.OBJECTS if Tier.OBJECTS in links else Tier.COMPUTED
