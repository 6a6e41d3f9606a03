"""The replicas as one router sees them: who holds what, how busy they are, and what a question costs at
each."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from shared.errors import InvalidRequest
from shared.routing.costs import ReplicaCost, ReplicaLoad, RoutedQuestion, Tier, WantedChunk, replica_cost
from shared.routing.recent import Backlog, LoadView, RecentDecisions
from shared.routing.reports import ReportOutcome, lane_of, read_report
from shared.routing.residency import Residency
from shared.routing.settings import FleetReplica, RoutingSettings
from shared.routing.shortlist import slots_of


@dataclass(slots=True)
class _Member:
    replica: FleetReplica
    slot: int
    load: LoadView


@dataclass(frozen=True, slots=True)
class ChunkHolders:
    """Of a chunk, a bit per replica. ``held``: those of the rest together; ``chain``: holders of what is in
    front of it, with its tokens, and ``chain_held``, ``chain_tokens``: those together."""

    resident: int
    arriving: int
    memory: int
    disk: int
    held: int
    chain: Sequence[tuple[int, int]]
    chain_held: int
    chain_tokens: int

    def chain_missing(self, bit: int) -> int:
        """Returns how many tokens of the chain that replica lacks."""
        if not self.chain_held & bit:
            return self.chain_tokens
        return sum(num_tokens for resident, num_tokens in self.chain if not resident & bit)


class Fleet:
    """A replica is a bit (``slot``) of the masks here; that of one that has gone is given to another."""

    def __init__(self, settings: RoutingSettings) -> None:
        self.all = 0
        self.residency = Residency(settings.lease_ms)
        self._settings = settings
        self._recent = RecentDecisions(settings.kept_ms)
        self._members: dict[str, _Member] = {}
        self._by_slot: dict[int, _Member] = {}
        self._links = WeakValueDictionary[str, Backlog]()  # by node; its replicas' views keep it
        self._vacant: dict[str, int] = {}  # slots that nodes keep, as ``Residency.vacant`` says

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
        for replica in wanted.values():  # before others leave, so that what their nodes told stays
            member = self._members.get(replica.replica_id)
            if member is not None and member.replica.node_id == replica.node_id:
                member.replica = replica
                continue
            if member is not None:
                self._leave(member)
            self._join(replica)
        for replica_id in self._members.keys() - wanted.keys():
            self._leave(self._members[replica_id])

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
        held, chain_held, chain_tokens = resident | arriving | memory | disk, 0, 0
        for mask, num_tokens in chain:
            chain_held, chain_tokens = chain_held | mask, chain_tokens + num_tokens
        return ChunkHolders(resident, arriving, memory, disk, held, chain, chain_held, chain_tokens)

    def cost(
        self, question: RoutedQuestion, holders: Sequence[ChunkHolders], slot: int, now_ms: float
    ) -> ReplicaCost:
        member, bit = self._by_slot[slot], 1 << slot
        replica, links = member.replica, member.replica.rates.link_ms
        tiers = [_tier(of_chunk, bit, links) for of_chunk in holders]
        chains = [0 if of_chunk.resident & bit else of_chunk.chain_missing(bit) for of_chunk in holders]
        load = member.load.at(now_ms)
        return replica_cost(replica.replica_id, question, tiers, chains, replica.rates, load)

    def check_invariants(self) -> None:
        self.residency.check_invariants()
        self._recent.check_invariants()
        assert sum(1 << member.slot for member in self._members.values()) == self.all, "slots"
        assert {member.slot: member for member in self._members.values()} == self._by_slot, "slots"
        for node_id, mask in self._vacant.items():
            assert mask == self.residency.vacant(node_id) != 0, f"{node_id}: slots that it keeps"
            assert not mask & self.all, f"{node_id}: keeps a slot that somebody has"

    def _join(self, replica: FleetReplica) -> None:
        slot = self._free_slot(replica.node_id)
        links = self._links.setdefault(replica.node_id, self._backlog())
        member = _Member(replica, slot, LoadView(self._backlog(), links))
        self._members[replica.replica_id] = self._by_slot[slot] = member
        self.all |= 1 << slot
        self.residency.join(replica.replica_id, replica.node_id, slot)
        self._keep_vacant(replica.node_id)

    def _leave(self, member: _Member) -> None:
        del self._members[member.replica.replica_id], self._by_slot[member.slot]
        self.all &= ~(1 << member.slot)
        self.residency.leave(member.replica.replica_id)
        self._recent.leave(member.slot)
        self._keep_vacant(member.replica.node_id)

    def _backlog(self) -> Backlog:
        return Backlog(self._settings.kept_ms, self._settings.lease_ms)

    def _keep_vacant(self, node_id: str) -> None:
        self._vacant.pop(node_id, None)
        if mask := self.residency.vacant(node_id):
            self._vacant[node_id] = mask

    def _free_slot(self, node_id: str) -> int:
        """One that another of its node had, or else the lowest that nobody has and no node keeps."""
        if mask := self._vacant.get(node_id, 0):
            return next(slots_of(mask))
        taken = functools.reduce(operator.or_, self._vacant.values(), self.all)
        return next(slots_of(~taken & (taken + 1)))

    def _distrust(self, message: Mapping[str, object]) -> None:
        try:
            self.residency.retire(lane_of(message))
        except InvalidRequest:
            return


def _tier(holders: ChunkHolders, bit: int, links: Mapping[Tier, float]) -> Tier:
    """Returns the tier that it would come from: a node looks at its own tiers first, then asks others, then
    the object store."""
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
