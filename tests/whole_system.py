"""All services of an installation in this process, over the demo's model, put together as on Ray: callers are
asked who they are; what is public is on one gRPC server, and services reach each other by another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc

from cluster.compose import SERVICERS, servicer_functions
from cluster.paths import DEMO_ASSETS
from services.gateway.config import GatewayConfig
from services.gateway.feedback import FeedbackKeeper
from services.gateway.handlers import GatewayHandlers
from services.gateway.in_turns import InTurns
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.generator.config import GeneratorConfig
from services.generator.handlers import GenerationServicer
from services.generator.loading import load_generator
from services.generator.service import Generator
from services.ingestion.app import build_service as build_ingestion
from services.ingestion.config import IngestionConfig
from services.ingestion.handlers import IngestHandlers
from services.ingestion.parsing.processes import ParserProcesses
from services.kv_store.node.agent import Agent
from services.kv_store.node.cluster_store import ClusterStore
from services.kv_store.node.handlers import start_server
from services.retrieval.app import build_service as build_retrieval
from services.retrieval.config import RetrievalConfig
from services.retrieval.handlers import RetrievalHandlers
from services.selector.config import SelectorConfig
from services.selector.handlers import SelectionServicer
from services.selector.loading import load_selector
from shared.admission.entrance import Entrance
from shared.admission.turns import Turns
from shared.audit import AuditConfig
from shared.audited import recorder_of
from shared.clients import generation, ingest, kv_store, rag, retrieval
from shared.clients.applications import SERVICES, transport_to
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.kv_node import AgentClient
from shared.clients.selection import SelectionClient
from shared.clients.service import ServiceClient
from shared.config import load
from shared.limits import DEFAULT_LIMITS
from shared.principals.authentication import callers_of, identity_of
from shared.principals.config import AuthConfig, AuthMode
from shared.principals.credentials import bearer
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_key
from shared.principals.keys_file import changing
from shared.principals.principal import Role
from shared.principals.secret import make_secret
from shared.principals.services import credentials_of
from shared.request import RequestContext
from shared.rpc import HealthServicer
from shared.seals import seal_keys_of
from shared.slow_readers import SlowGrpcReaders
from tests.kv_stores import FrontHandlers, KnownNodes, node_on
from tests.tiny_embedders import write_embedder

HOST = "127.0.0.1"
MODEL = DEMO_ASSETS / "model"
CHUNK_TOKENS = 48
Scopes = Mapping[str, tuple[str, ...]]
_NODE = "home"


@dataclass(frozen=True)
class Client:
    """Whoever has a key, at every public service."""

    tenant: str
    rag: rag.RagClient
    ingest: ingest.IngestClient
    retrieval: retrieval.RetrievalClient
    generation: generation.GenerationClient
    forests: generation.ForestClient
    store: kv_store.KvStoreClient

    @classmethod
    def of(cls, channel: grpc.aio.Channel, tenant: str, key: str) -> Client:
        def to(client: Any, service: str = "") -> GrpcTransport:
            named = service or client.SERVICE
            return GrpcTransport(channel, named, client.APPLICATION, credentials=bearer(key))

        return cls(
            tenant,
            rag.RagClient(to(rag), to(rag, rag.ADMIN_SERVICE)),
            ingest.IngestClient(to(ingest)),
            retrieval.RetrievalClient(to(retrieval)),
            generation.GenerationClient(to(generation)),
            generation.ForestClient(to(generation)),
            kv_store.KvStoreClient(to(kv_store)),
        )

    @property
    def ctx(self) -> RequestContext:
        return RequestContext.create(tenant="named-in-the-body", deadline_ms=60_000)


@dataclass(frozen=True)
class WholeSystem:
    """``target``: where callers reach it. ``agent``, ``generator``: what they do not."""

    target: str
    auth: AuthConfig
    agent: Agent
    generator: Generator

    def key(self, name: str, tenant: str, role: Role, *groups: str) -> str:
        """A new key, known within a second."""
        return _key_in(self.auth, name, tenant, role, *groups)


@asynccontextmanager
async def whole_system(directory: Path, scopes: Scopes | None = None) -> AsyncIterator[WholeSystem]:
    """Keeps everything in ``directory``. The embedder knows nothing. ``scopes``: whose tenants share KV."""
    auth = AuthConfig(AuthMode.REQUIRED, str(directory / "keys.json"), str(directory / "secret"))
    make_secret(Path(auth.secret_file))
    _key_in(auth, "first", "nobody", Role.READER)  # without any key nothing starts
    settings = {"auth": {"mode": "required", "keys_file": auth.keys_file, "secret_file": auth.secret_file}}
    async with AsyncExitStack() as stack:
        inside = grpc.aio.server(options=CHANNEL_OPTIONS)
        address = f"{HOST}:{inside.add_insecure_port(f'{HOST}:0')}"
        addresses = dict.fromkeys(SERVICES, address)
        store = await _store(stack, directory, auth, scopes or {})
        handlers: dict[str, HealthServicer] = {"kv_store": store.front}
        handlers["retrieval"] = _retrieval(stack, directory, settings)
        handlers["selection"] = _selector(stack, store, settings)
        generator = _generator(stack, store, addresses, settings | {"sharing_scopes": scopes or {}})
        handlers["generation"] = GenerationServicer(generator)
        handlers["ingest"] = _ingestion(stack, addresses, settings)
        handlers["rag"] = handlers["admin"] = _gateway(directory, addresses, settings)
        for each in set(handlers.values()):
            each.callers = callers_of(auth, each.application)
            each.recorder = recorder_of(AuditConfig(str(directory / "audit")), each.application, auth)
            if each.door is None:
                each.guard(DEFAULT_LIMITS)
            if each.recorder is not None:
                stack.callback(each.recorder.close)
        for module, names in SERVICERS.items():
            generated = import_module(f"protos.kvquilt.v1.{module}_pb2_grpc")
            for name in names:
                getattr(generated, f"add_{name}Servicer_to_server")(handlers[module], inside)
        largest = ("grpc.max_receive_message_length", DEFAULT_LIMITS.largest_bytes)
        outside = grpc.aio.server(
            options=(*CHANNEL_OPTIONS, largest), interceptors=[SlowGrpcReaders(DEFAULT_LIMITS.stall_s)]
        )
        for function in servicer_functions():
            module_name, _, add = function.rpartition(".")
            getattr(import_module(module_name), add)(handlers[add.removeprefix("add_")], outside)
        target = f"{HOST}:{outside.add_insecure_port(f'{HOST}:0')}"
        for server in (inside, outside):
            await server.start()
            stack.push_async_callback(server.stop, None)
        yield WholeSystem(target, auth, store.agent, generator)


def _key_in(auth: AuthConfig, name: str, tenant: str, role: Role, *groups: str) -> str:
    key = new_key()
    of = (id_of(key), name, KeyKind.KEY, tenant, frozenset({role}), frozenset(groups))
    with changing(Path(auth.keys_file)) as records:
        records.append(KeyRecord(*of, hash=hash_of(key)))
    return key


@dataclass(frozen=True)
class _Store:
    agent: Agent
    front: FrontHandlers
    connect: Callable[[str], AgentClient]
    """By the name of the service that does."""


async def _store(stack: AsyncExitStack, directory: Path, auth: AuthConfig, scopes: Scopes) -> _Store:
    known = KnownNodes()
    keys = seal_keys_of(auth)
    node = node_on(directory / "store", _NODE, known, keys=keys, sharing_scopes=dict(scopes))
    stack.push_async_callback(node.close)
    server, address = await start_server(node.agent, HOST, identity=identity_of(auth, "kv_store"))
    stack.push_async_callback(server.stop, None)
    channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    stack.push_async_callback(channel.close)

    def connect(service: str) -> AgentClient:
        return AgentClient.of(channel, credentials_of(identity_of(auth, service)))

    known.stores[_NODE] = connect("kv_store")
    return _Store(node.agent, FrontHandlers(ClusterStore(known, _NODE)), connect)


def _retrieval(stack: AsyncExitStack, directory: Path, settings: Mapping[str, Any]) -> RetrievalHandlers:
    embedder = write_embedder(directory / "embedder")
    uri = str(directory / "index")
    service = build_retrieval(
        load(RetrievalConfig, {"milvus_uri": uri, "embedder": str(embedder)} | settings)
    )
    stack.push_async_callback(asyncio.to_thread, service.close)
    return RetrievalHandlers(service)


def _selector(stack: AsyncExitStack, store: _Store, settings: Mapping[str, Any]) -> SelectionServicer:
    named = {"model": str(MODEL / "auxiliary"), "primary": str(MODEL), "threads": 1}
    config = load(SelectorConfig, named | settings)
    service = load_selector(config, store.connect("selector"), _NODE, asyncio.get_running_loop())
    stack.push_async_callback(service.close)
    return SelectionServicer(service)


def _generator(
    stack: AsyncExitStack, store: _Store, addresses: Mapping[str, str], settings: Mapping[str, Any]
) -> Generator:
    config = load(
        GeneratorConfig,
        {"model": str(MODEL), "selector": {"application": "selector"}, "engine": {"num_threads": 1}}
        | settings,
    )
    chooser = SelectionClient(transport_to("selector", addresses, identity_of(config.auth, "generator")))
    loop = asyncio.get_running_loop()
    service = load_generator(config, store.connect("generator"), _NODE, loop, chooser)
    stack.push_async_callback(asyncio.to_thread, service.close)
    return service


def _ingestion(
    stack: AsyncExitStack, addresses: Mapping[str, str], settings: Mapping[str, Any]
) -> IngestHandlers:
    named = {"model": str(MODEL), "chunk_tokens": CHUNK_TOKENS, "selector": "selector"}
    config = load(IngestionConfig, named | {"addresses": dict(addresses)} | settings)
    parsers = ParserProcesses(config.parsing)
    service = build_ingestion(config, parsers, identity_of(config.auth, "ingestion"))
    stack.callback(parsers.close)
    stack.callback(service.close)
    return IngestHandlers(service, config.run_deadline_s)


def _gateway(directory: Path, addresses: Mapping[str, str], settings: Mapping[str, Any]) -> GatewayHandlers:
    kept = {"feedback": {"directory": str(directory / "feedback")}, "selector": "selector"}
    config = load(GatewayConfig, kept | {"addresses": dict(addresses)} | settings)
    identity = identity_of(config.auth, "gateway")
    transports = {name: transport_to(name, config.addresses, identity) for name in SERVICES}
    fetcher = kv_store.KvStoreClient(transports["kv_store"])
    feedback = FeedbackKeeper(config.feedback)
    pipeline = Pipeline(
        retrieval.RetrievalClient(transports["retrieval"]),
        generation.GenerationClient(transports["generator"]),
        config,
        Prefetching(fetcher),
        feedback,
    )
    door = Entrance(config.limits.per_principal)
    answering = InTurns(pipeline, Turns(config.max_running, config.max_waiting), door)
    health = {name: ServiceClient(transport) for name, transport in transports.items()}
    handlers = GatewayHandlers(answering, health, config.status_timeout_s, {}, feedback, documents=fetcher)
    handlers.door = door
    return handlers
