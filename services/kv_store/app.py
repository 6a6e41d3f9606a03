"""The ``kv_store`` application on Ray: one agent actor on every node, and the Serve ingress in front of
them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from services.kv_store.config import KvStoreConfig
from services.kv_store.documents.sync import keep_synced
from services.kv_store.fetching.flight import FlightReader, FlightServer
from services.kv_store.handlers import StoreHandlers
from services.kv_store.node.builder import build_node
from services.kv_store.node.cluster_store import ClusterStore
from services.kv_store.node.handlers import FileHandlers, start_server
from services.kv_store.node.housekeeping import Housekeeping, every
from services.kv_store.node.notices import NodeNotices
from services.kv_store.s3.bucket import ObjectBlobs
from shared import log as logs
from shared.audited import recorder_of
from shared.clients.agent_actor import NAMESPACE, actor_name
from shared.clients.grpc_transport import CHANNEL_OPTIONS
from shared.clients.kv_node import AgentClient
from shared.errors import KvquiltError, NotFound, Unavailable
from shared.locks import Locks
from shared.principals.authentication import callers_of, identity_of
from shared.principals.credentials import Credentials
from shared.principals.services import credentials_of
from shared.private_files import keep_private
from shared.request import RequestContext
from shared.routing.settings import RoutingSettings
from shared.seals import seal_keys_of
from shared.serving import ByGrpcAlone, metrics_of_process, metrics_of_replica
from shared.tracing.provider import start_tracing

log = logging.getLogger(__name__)

AGENT = "kv_store_agent"
"""What its spans call it."""
DIRECTORY_VARIABLE = "KVQUILT_KV_STORE__DIRECTORY"
_HEAD_RESOURCE = "node:__internal_head__"
_START_TIMEOUT_S = 30.0
_GRACE_S = 60.0
_TIDY_S = 30.0
_STOP_S = 2.0
FindAgent = Callable[[str], Any]
"""Handle of the agent actor of a node. Raises ``ValueError`` or ``RayError`` when there is none."""
LookAtNodes = Callable[[], Mapping[str, Collection[str]]]
"""The living nodes of the Ray cluster, and the resources of each."""


class KvStoreFront(StoreHandlers, FileHandlers, ByGrpcAlone):
    """The Serve ingress. It owns the agents: they end with the replica that started them, and another
    replica's next look at the nodes starts them again. What they hold is on disk or in the object store."""

    def __init__(self, config: KvStoreConfig) -> None:
        logs.configure(self.application, config.deployment.log)
        start_tracing(self.application, config.deployment.tracing)
        self.guard(config.limits, config.deployment.memory_bytes)
        self.metrics = metrics_of_replica(self.application, config.deployment.metrics)
        self.callers = callers_of(config.auth, self.application)
        self.recorder = recorder_of(config.audit, self.application, config.auth)
        credentials = credentials_of(self.callers.identity)
        self._nodes = RayNodes(partial(_start_agent, config), credentials, _living_nodes)
        store = ClusterStore(self._nodes, ray.get_runtime_context().get_node_id())
        StoreHandlers.__init__(self, store)
        FileHandlers.__init__(self, store)
        forever = [
            every(config.reconcile_s, "looking at the nodes", self._nodes.look_after_all),
            every(config.reconcile_s, "following readers", store.follow_readers),
        ]
        self._tasks = [asyncio.create_task(work) for work in forever]

    async def __del__(self) -> None:
        """Serve calls this when the replica ends in good order, and waits for it."""
        for task in self._tasks:
            task.cancel()
        await self._nodes.stop_agents()


class AgentActor:
    """Owns one node's directory and serves it over gRPC. Ray starts it again on its node when its process
    dies."""

    def __init__(self, config: KvStoreConfig, node_id: str) -> None:
        self._config, self._node_id = config, node_id
        logs.configure("kv_store", config.deployment.log)
        start_tracing(AGENT, config.deployment.tracing)
        keep_private()
        self._lock, self._noticing = asyncio.Lock(), asyncio.Lock()
        self._address = ""
        self._metrics = metrics_of_process("kv_store", f"agent-{node_id[:12]}", config.deployment.metrics)

    async def address(self) -> str:
        """Tells where the agent listens; the first call starts it."""
        async with self._lock:
            if not self._address:
                await self._start()
        return self._address

    async def told(self, notice: dict[str, object]) -> bool:
        """By a replica on this node; see ``NoticeBoard``."""
        await self.address()
        async with self._noticing:
            return await asyncio.to_thread(self._notices.told, notice)

    async def notices(self, known: dict[str, tuple[int, int]]) -> list[dict[str, object]]:
        """Returns what a router has not heard yet of who holds what on this node."""
        await self.address()
        async with self._noticing:
            return await asyncio.to_thread(self._notices.since, known)

    async def process_id(self) -> int:
        """For operators: which process on the node this is."""
        return os.getpid()

    async def stop(self) -> None:
        """Ends the process in good order: nothing stays in memory."""
        if self._address:
            for task in self._tasks:
                task.cancel()
            await self._server.stop(grace=_STOP_S)
            await self._node.close()
        ray.actor.exit_actor()

    async def _start(self) -> None:
        directory = os.environ.get(DIRECTORY_VARIABLE) or self._config.directory
        identity = identity_of(self._config.auth, "kv_store")
        credentials = credentials_of(identity)
        nodes = RayNodes(_find_agent, credentials, _living_nodes)
        host = self._config.host or _node_address(self._node_id)
        objects = ObjectBlobs(self._config.objects) if self._config.objects.endpoint else None
        config = replace(self._config, directory=directory)
        stream = partial(FlightServer, host, identity=identity)
        flights = FlightReader(credentials)
        build = partial(build_node, self._node_id, config, nodes, stream, objects, flights)
        self._node = await asyncio.to_thread(build, keys=seal_keys_of(config.auth))
        atexit.register(self._node.own.remove_memory)
        epoch, lease_ms = time.time_ns() // 10**6, RoutingSettings().lease_ms
        self._notices = NodeNotices(
            self._node_id, epoch, (self._node.own.disk, self._node.own.memory), lease_ms, _clock_ms
        )
        self._server, self._address = await start_server(
            self._node.agent, host, limits=config.limits, identity=identity, metrics=self._metrics
        )
        house = Housekeeping(
            self._node.agent,
            nodes,
            self._node_id,
            self._config.garbage,
            self._config.reconcile_s,
            recorder=recorder_of(config.audit, "kv_store", config.auth),
        )
        following = every(self._config.reconcile_s, "looking at the nodes", nodes.refresh)
        tidying = every(_TIDY_S, "clearing up", self._node.agent.recover, level=logging.WARNING)
        forever = [following, tidying, house.follow_pins(), house.collect_garbage()]
        if nodes.home() == self._node_id:
            forever.append(keep_synced(self._node.documents))
        self._tasks = [asyncio.create_task(work) for work in forever]
        self._metrics.ask(self._node.agent.readings)
        log.info("agent of node %s serves %s at %s", self._node_id, directory, self._address)


class RayNodes:
    """The living nodes of the Ray cluster, and a client of each one's agent
    (``services.kv_store.fetching.nodes.Nodes``)."""

    def __init__(self, find_agent: FindAgent, credentials: Credentials, look: LookAtNodes) -> None:
        self._find_agent, self._credentials, self._look = find_agent, credentials, look
        self._agents: dict[str, Any] = {}  # an actor ends when whoever started it drops its handle
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._locks = Locks()
        self._home, self._ids = home_and_all(look(), "")

    def home(self) -> str:
        """Ray's head node. While it is being replaced nobody takes its place: documents that another node
        took in would be missed by the next head."""
        return self._home

    def ids(self) -> Sequence[str]:
        return self._ids

    async def store(self, node_id: str) -> AgentClient:
        was_home = self._home
        if node_id not in self._ids:
            await self.refresh()
        if node_id not in self._ids:
            if node_id in (was_home, self._home):
                raise Unavailable("the node that keeps the documents is being replaced; retry")
            raise NotFound(f"node {node_id[:64]!r}: not a living node of this cluster")
        async with self._locks.hold(node_id):
            if node_id not in self._channels:
                self._connect(node_id, await self._address(node_id))
            return AgentClient.of(self._channels[node_id][1], self._credentials)

    def suspect(self, node_id: str) -> None:
        _, channel = self._channels.pop(node_id, (None, None))
        if channel is not None:
            # others may be in the middle of a call
            task = asyncio.ensure_future(channel.close(grace=_GRACE_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def refresh(self, ctx: RequestContext | None = None) -> None:
        self._home, self._ids = home_and_all(await asyncio.to_thread(self._look), self._home)
        for node_id in [n for n in self._channels if n not in self._ids]:
            self.suspect(node_id)
            self._agents.pop(node_id, None)

    async def look_after_all(self, ctx: RequestContext) -> None:
        """Follows the cluster and sees to it that every node's agent runs."""
        await self.refresh()
        for result in await asyncio.gather(*map(self._look_after, self._ids), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, KvquiltError):
                raise result

    async def stop_agents(self) -> None:
        """Ends those that this process started or found, in good order, or leaves them to end with their
        owner."""
        stopping = [agent.stop.remote() for agent in self._agents.values()]
        self._agents.clear()
        if stopping:
            await asyncio.wait([asyncio.ensure_future(_ended(s)) for s in stopping], timeout=_STOP_S + 3)

    async def _look_after(self, node_id: str) -> None:
        """Starts the node's agent if there is none, and notices when it was started again."""
        async with self._locks.hold(node_id):
            address = await self._address(node_id)
            if self._channels.get(node_id, (None, None))[0] != address:
                self.suspect(node_id)
                self._connect(node_id, address)

    def _connect(self, node_id: str, address: str) -> None:
        self._channels[node_id] = address, grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    async def _address(self, node_id: str) -> str:
        try:
            if node_id not in self._agents:
                self._agents[node_id] = await asyncio.to_thread(self._find_agent, node_id)
            return str(await asyncio.wait_for(self._agents[node_id].address.remote(), _START_TIMEOUT_S))
        except (RayError, ValueError, TimeoutError) as error:
            log.warning("no agent on node %s: %s", node_id, error)
            if isinstance(error, ActorDiedError):
                del self._agents[node_id]
            raise Unavailable("the store's agent on a node is not running yet; retry") from None


async def _ended(stopping: Any) -> None:
    with contextlib.suppress(RayError):  # an actor that exits does not answer
        await stopping


def _clock_ms() -> float:
    return time.monotonic() * 1e3


def _node_address(node_id: str) -> str:
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == node_id)


def _living_nodes() -> dict[str, Collection[str]]:
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def home_and_all(living: Mapping[str, Collection[str]], last_home: str) -> tuple[str, tuple[str, ...]]:
    """The head node, ``last_home`` while none is among the living; and all of these, the head first."""
    heads = sorted(node_id for node_id, resources in living.items() if _HEAD_RESOURCE in resources)
    others = sorted(living.keys() - heads)
    return next(iter(heads), last_home), (*heads, *others)


def _find_agent(node_id: str) -> Any:
    return ray.get_actor(actor_name(node_id), NAMESPACE)


def _start_agent(config: KvStoreConfig, node_id: str) -> Any:
    return (
        ray.remote(AgentActor)
        .options(
            name=actor_name(node_id),
            namespace=NAMESPACE,
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
        )
        .remote(config, node_id)
    )
