"""Routes questions to replicas by their chunks: Ray Serve's router in whoever has a handle of the generator.

Ray sends this module there by value and makes the class itself, so that there is nothing here but what needs
Ray; settings come as plain values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from services.generator.listening import Listener
from services.generator.replica_choice import ReplicaChoice
from shared.clients.agent_actor import NoticeCalls
from shared.config import load
from shared.metrics.config import MetricsConfig
from shared.routing.decision import RouteDecision
from shared.routing.settings import RoutingSettings
from shared.serving import metrics_of_routers


class ChunkRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # Ray's are untyped
    """Ranks the replicas for every question (``Generate``), of which Serve takes the first that has room;
    everything else goes to the shortest queue. Without ``FIFOMixin`` one request's parallel calls hang."""

    def initialize_state(
        self, metrics: dict[str, Any], listens: bool, settings: dict[str, Any], by_hash: bool
    ) -> None:
        """``listens``: nodes have agents that tell what replicas hold. ``by_hash``: rendezvous hashing with a
        load bound instead of costs."""
        choice = ReplicaChoice(
            load(RoutingSettings, settings),
            metrics=metrics_of_routers("generator", load(MetricsConfig, metrics)),
            ongoing=self._ongoing if by_hash else None,
        )
        self.follow(choice, Listener(choice, NoticeCalls().since) if listens else None)

    def follow(self, choice: ReplicaChoice, listener: Listener | None) -> None:
        """Before there are replicas."""
        self.choice, self._listener = choice, listener
        self._decided = WeakKeyDictionary[asyncio.Task[Any], tuple[PendingRequest, RouteDecision | None]]()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._follow_replicas()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._follow_replicas()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> Sequence[list[RunningReplica]]:
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # or a full cluster keeps this loop spinning
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        decision = self.choice.decide(
            pending_request.metadata.call_method, next(iter(pending_request.args), None), replicas
        )
        if (task := asyncio.current_task()) is not None:
            self._decided[task] = pending_request, decision
        if decision is None:
            return [candidate_replicas]
        if self._listener is not None:
            self._listener.wake()
        return [[replicas[name] for name in rank] for rank in decision.ranks]

    def _fulfill_next_pending_request(self, replica: RunningReplica, request_metadata: Any = None) -> None:
        """The request that was decided on gets the replica, and not whoever waits longest."""
        task = asyncio.current_task()
        pending, decision = (self._decided.pop(task, None) if task else None) or (None, None)
        if pending is None or pending.future.done():
            super()._fulfill_next_pending_request(replica, request_metadata)
            return
        if decision is not None:
            self.choice.sent(decision, replica.replica_id.unique_id, pending.args[0])
        self._record_queue_wait_time(pending)
        pending.future.set_result(replica)
        self._remove_pending_request_from_indices(pending)

    def _ongoing(self, name: str) -> int:
        """Questions that a replica has, as Serve knows it; 0: it does not."""
        ids = (replica_id for replica_id in self.curr_replicas if replica_id.unique_id == name)
        return sum(self.replica_queue_len_cache.get(replica_id) or 0 for replica_id in ids)

    def _follow_replicas(self) -> None:
        self.choice.set_replicas(
            {replica.replica_id.unique_id: replica.node_id for replica in self.curr_replicas.values()}
        )
