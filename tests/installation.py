"""All services of an installation in one process, over a tiny model, behind one gRPC server that asks
everybody for a key: the public RPCs as Ray Serve's proxies offer them, and between services what handles
carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc

from cluster.compose import servicer_functions
from services.gateway.config import FeedbackConfig, GatewayConfig
from services.gateway.feedback import FeedbackKeeper
from services.gateway.handlers import GatewayHandlers
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.generator.config import GeneratorConfig
from services.generator.handlers import GenerationServicer
from services.generator.loading import load_generator
from services.ingestion.calls import CallPolicy
from services.ingestion.config import IngestionConfig
from services.ingestion.handlers import IngestHandlers
from services.ingestion.recipe import Recipe
from services.ingestion.service import IngestionService
from services.ingestion.upsert import DocumentStore
from services.kv_store.node.cluster_store import ClusterStore
from services.retrieval.embedder import EmbedderSettings
from services.retrieval.handlers import RetrievalHandlers
from services.retrieval.index import MilvusIndex
from services.retrieval.milvus import connect
from services.retrieval.service import RetrievalService
from shared.clients import generation, ingest, kv_store, rag, retrieval
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.kv_types import KvContext
from shared.principals.authentication import callers_of
from shared.principals.config import AuthConfig, AuthMode
from shared.principals.credentials import bearer
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_key
from shared.principals.keys_file import changing
from shared.principals.principal import Role
from shared.principals.secret import make_secret
from shared.prompt import PromptTokenizer
from shared.request import RequestContext
from tests.contract.test_no_leak import Words
from tests.kv_stores import FrontHandlers, FrontWithHome, HandleTransport, KnownNodes, agent_on

CHUNK_TOKENS = 32


@dataclass(frozen=True)
class Client:
    """Whoever has a key."""

    tenant: str
    rag: rag.RagClient
    ingest: ingest.IngestClient
    retrieval: retrieval.RetrievalClient
    generation: generation.GenerationClient
    forests: generation.ForestClient
    store: kv_store.KvStoreClient

    @property
    def ctx(self) -> RequestContext:
        return RequestContext.create(tenant="named-in-the-body", deadline_ms=60_000)


class Installation:
    """Belongs to the running event loop; ``serving`` opens it."""

    def __init__(self, directory: Path, model: Path, scopes: Mapping[str, tuple[str, ...]]) -> None:
        self.auth = AuthConfig(AuthMode.REQUIRED, str(directory / "keys.json"), str(directory / "secret"))
        make_secret(Path(self.auth.secret_file))
        self._add_key("nobody", Role.READER)  # without any key nothing starts
        nodes = KnownNodes()
        self.agent = agent_on(directory / "kv", "home", nodes, sharing_scopes=dict(scopes))
        self.store = FrontWithHome(nodes, "home")
        config = GeneratorConfig(str(model), sharing_scopes=dict(scopes))
        loop = asyncio.get_running_loop()
        self.generator = load_generator(config, self.store, "home", loop)
        self.retrieval = _retrieval(directory / "index")
        computing = GenerationServicer(self.generator)
        asked = generation.GenerationClient(HandleTransport(computing))  # type: ignore[arg-type]
        self.ingestion = _ingestion(model, asked, self.store, self.retrieval)
        feedback = FeedbackKeeper(FeedbackConfig(str(directory / "feedback")))
        pipeline = Pipeline(
            *(self.retrieval, asked, GatewayConfig(max_k=64), Prefetching(self.store), feedback)
        )
        gateway = GatewayHandlers(pipeline, {}, 1.0, {}, feedback, documents=self.store)
        self._handlers: dict[str, Any] = {
            "rag": gateway,
            "admin": gateway,
            "ingest": IngestHandlers(self.ingestion, 60.0),
            "retrieval": RetrievalHandlers(self.retrieval),
            "generation": computing,
            "kv_store": FrontHandlers(self.store),
        }

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None, None]:
        for handlers in self._handlers.values():
            handlers.callers = callers_of(self.auth, handlers.application)
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        for function in servicer_functions():
            module, _, name = function.rpartition(".")
            getattr(import_module(module), name)(self._handlers[name.removeprefix("add_")], server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as self._channel:
            yield
        await server.stop(None)
        await asyncio.to_thread(self.generator.close)
        self.ingestion.close()
        self.retrieval.close()
        await self.agent.close()

    def key(self, tenant: str, role: Role, *groups: str) -> Client:
        """A client with a key that counts from the next look at the file on."""
        key = self._add_key(tenant, role, *groups)

        def to(client: Any, service: str = "") -> GrpcTransport:
            return GrpcTransport(
                self._channel, service or client.SERVICE, client.APPLICATION, credentials=bearer(key)
            )

        return Client(
            tenant,
            rag.RagClient(to(rag), to(rag, rag.ADMIN_SERVICE)),
            ingest.IngestClient(to(ingest)),
            retrieval.RetrievalClient(to(retrieval)),
            generation.GenerationClient(to(generation)),
            generation.ForestClient(to(generation)),
            kv_store.KvStoreClient(to(kv_store)),
        )

    def _add_key(self, tenant: str, role: Role, *groups: str) -> str:
        key = new_key()
        of = (id_of(key), f"{role.value}.{tenant}", KeyKind.KEY, tenant, frozenset([role]))
        with changing(Path(self.auth.keys_file)) as records:
            records.append(KeyRecord(*of, frozenset(groups), hash=hash_of(key)))
        return key


def _retrieval(directory: Path) -> RetrievalService:
    index = MilvusIndex(
        connect(str(directory), "", 5), Words.identity, Words.dim, EmbedderSettings(Words.identity)
    )
    return RetrievalService(Words(), index, 8)


def _ingestion(
    model: Path, generator: generation.GenerationClient, store: ClusterStore, index: RetrievalService
) -> IngestionService:
    tokenizer = PromptTokenizer.of_model(str(model))
    assert tokenizer is not None
    recipe = Recipe(tokenizer, CHUNK_TOKENS, context=KvContext.DOCUMENT, context_tokens=8 * CHUNK_TOKENS)
    documents = DocumentStore(generator, store, index, CallPolicy(), 8)
    return IngestionService(IngestionConfig(str(model), CHUNK_TOKENS), recipe, documents)
