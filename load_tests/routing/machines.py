"""Simulates replicas and their nodes: what each holds, how long a question really takes there, and what they
tell routers. Links serve one load after the other; an engine prefills one question after the other."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from load_tests.routing.plan import DayPlan
from load_tests.routing.workload import Scenario, scenario_of
from shared.routing.costs import ChunkKey, ReplicaLoad, RoutedQuestion, Tier, WantedChunk
from shared.routing.journal import HeldJournal
from shared.routing.reports import LaneName

_SPREAD = 0.2  # of how long a load takes: the standard deviation of its logarithm


@dataclass(slots=True)
class HeldKv:
    """Chunks, the least recently used ones first; what comes and goes is told to ``journal``."""

    capacity: int
    journal: HeldJournal
    gone: Callable[[ChunkKey], None] = lambda key: None
    ready_ms: OrderedDict[ChunkKey, float] = field(default_factory=OrderedDict)

    def use(self, key: ChunkKey) -> float | None:
        """Returns when it is there; None: never."""
        ready_ms = self.ready_ms.get(key)
        if ready_ms is not None:
            self.ready_ms.move_to_end(key)
        return ready_ms

    def put(self, key: ChunkKey, ready_ms: float) -> None:
        self.ready_ms[key] = ready_ms
        self.journal.add(key)
        while len(self.ready_ms) > self.capacity:
            oldest, _ = self.ready_ms.popitem(last=False)
            self.journal.remove(oldest)
            self.gone(oldest)


@dataclass(slots=True)
class LinkQueue:
    free_ms: float = 0.0


@dataclass(slots=True)
class SimulatedNode:
    node_id: str
    disk: HeldKv
    disk_link: LinkQueue = field(default_factory=LinkQueue)
    network: LinkQueue = field(default_factory=LinkQueue)

    def link(self, tier: Tier) -> LinkQueue:
        return self.disk_link if tier is Tier.DISK else self.network


@dataclass(slots=True)
class Replica:
    """``ongoing``: questions that were sent and are not answered; ``free_ms``: when its engine has prefilled
    what was sent to it."""

    replica_id: str
    place: int
    node: SimulatedNode
    pool: HeldKv
    free_ms: float = 0.0
    ongoing: int = 0

    def load(self, now_ms: float, age_ms: float) -> ReplicaLoad:
        """As routers are told of it, ``age_ms`` later."""
        loaded_ms = max(self.node.disk_link.free_ms, self.node.network.free_ms)
        wait_ms = max(0.0, self.free_ms - now_ms)
        return ReplicaLoad(wait_ms, max(0.0, loaded_ms - now_ms), self.ongoing, age_ms)


@dataclass(frozen=True, slots=True)
class Served:
    """``tiers``: where each chunk came from."""

    first_token_ms: float
    tiers: tuple[Tier, ...]


class Machines:
    """A ``place`` is where a replica runs; the one that follows another there has a name of its own."""

    def __init__(self, plan: DayPlan, scenario: Scenario | None = None) -> None:
        scenario = scenario or scenario_of(plan)
        self._plan, self._rates, self._draw = plan, scenario.rates, random.Random(plan.seed)
        self._on_disks: Counter[ChunkKey] = Counter()
        self._num_started: Counter[int] = Counter()
        self.nodes: list[SimulatedNode] = []
        for i in range(plan.num_nodes):
            journal = HeldJournal(LaneName(f"n{i}", Tier.DISK), 1)
            self.nodes.append(SimulatedNode(f"n{i}", HeldKv(plan.disk_chunks, journal, self._left_disk)))
        self._fill_disks(plan, scenario.before)
        self.replicas: dict[str, Replica] = {}
        for place in range(plan.num_replicas):
            self.start(place)

    def start(self, place: int) -> Replica:
        """With nothing in its pool; its node's disk keeps what it has."""
        self._num_started[place] += 1
        name = f"r{place}.{self._num_started[place]}"
        pool = HeldKv(self._plan.pool_chunks, HeldJournal(LaneName(name, Tier.RESIDENT), 1))
        replica = Replica(name, place, self.nodes[place // self._plan.replicas_per_node], pool)
        self.replicas[name] = replica
        return replica

    def at(self, place: int) -> Replica | None:
        return self.replicas.get(f"r{place}.{self._num_started[place]}")

    def stop(self, place: int) -> Replica | None:
        replica = self.at(place)
        return None if replica is None else self.replicas.pop(replica.replica_id)

    def serve(self, question: RoutedQuestion, replica: Replica, now_ms: float) -> Served:
        start_ms = max(now_ms, replica.free_ms)
        beside_ms, behind_ms = question.num_tokens * self._rates.prefill_ms, 0.0
        if replica.ongoing:  # it begins when all is there, and others do meanwhile
            beside_ms, behind_ms = behind_ms, beside_ms
        loaded_ms, tiers = now_ms, list[Tier]()
        for chunk in question.chunks:
            ready_ms = replica.pool.use(chunk.key)
            if ready_ms is not None:
                tiers.append(Tier.RESIDENT if ready_ms <= now_ms else Tier.ARRIVING)
                loaded_ms = max(loaded_ms, ready_ms)
                continue
            tier, ready_ms = self._bring(chunk, replica, now_ms, start_ms + beside_ms)
            if tier is Tier.COMPUTED:
                beside_ms = ready_ms - start_ms
            loaded_ms = max(loaded_ms, ready_ms)
            tiers.append(tier)
            replica.pool.put(chunk.key, ready_ms)
        replica.free_ms = start_ms + beside_ms + behind_ms
        pressure_ms = replica.ongoing * self._rates.branch_ms
        prefilled_ms = max(start_ms + beside_ms, loaded_ms) + behind_ms
        return Served(prefilled_ms + pressure_ms, tuple(tiers))

    def holders(self) -> Iterator[HeldKv]:
        """All that tell what they hold."""
        for node in self.nodes:
            yield node.disk
        for replica in self.replicas.values():
            yield replica.pool

    def check_invariants(self) -> None:
        on_disks = Counter(key for node in self.nodes for key in node.disk.ready_ms)
        assert on_disks == self._on_disks, "what is on disks"
        for held in self.holders():
            held.journal.check_invariants()
            assert held.journal.snapshot().added == held.ready_ms.keys(), "what is told is what is held"
            assert len(held.ready_ms) <= held.capacity, "capacity"

    def _bring(
        self, chunk: WantedChunk, replica: Replica, now_ms: float, prefilled_ms: float
    ) -> tuple[Tier, float]:
        """From the nearest tier; computed where the engine has nothing else to do and that ends first."""
        node = replica.node
        if (on_disk_ms := node.disk.use(chunk.key)) is not None:
            tier = Tier.DISK
        else:
            tier = Tier.PEER if self._on_disks[chunk.key] else Tier.OBJECTS
        link = node.link(tier)
        takes_ms = chunk.num_tokens * self._rates.link_ms[tier] * self._draw.lognormvariate(0, _SPREAD)
        ready_ms = max(now_ms, link.free_ms, on_disk_ms or 0.0) + takes_ms
        chain = sum(tokens for key, tokens in chunk.chain if key not in replica.pool.ready_ms)
        computed_ms = prefilled_ms + (chunk.num_tokens + chain) * self._rates.prefill_ms
        if replica.free_ms <= now_ms and computed_ms < ready_ms:
            return Tier.COMPUTED, computed_ms
        link.free_ms = ready_ms
        if tier is not Tier.DISK:
            self._on_disks[chunk.key] += 1
            node.disk.put(chunk.key, ready_ms)
        return tier, ready_ms

    def _fill_disks(self, plan: DayPlan, questions: Iterable[Sequence[WantedChunk]]) -> None:
        """With what questions left that went to any node."""
        most = 4 * plan.num_nodes * plan.disk_chunks // plan.chunks_per_question
        for i, chunks in zip(range(most), questions, strict=False):
            disk = self.nodes[i % plan.num_nodes].disk
            for chunk in chunks:
                if disk.use(chunk.key) is None:
                    self._on_disks[chunk.key] += 1
                    disk.put(chunk.key, 0.0)

    def _left_disk(self, key: ChunkKey) -> None:
        self._on_disks[key] -= 1
        if not self._on_disks[key]:
            del self._on_disks[key]
