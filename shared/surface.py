"""Registers on `grpc_port` what callers from outside may call at all; Ray Serve's proxies are given these
functions (`grpc_servicer_functions`).

An RPC that is for the services alone (``shared.principals.roles``) does not exist there: services call each
other by Serve handles, and agents by the agents' own servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import grpc

from protos.kvquilt.v1 import (
    generation_pb2_grpc,
    ingest_pb2_grpc,
    kv_store_pb2_grpc,
    rag_pb2_grpc,
    retrieval_pb2_grpc,
)
from shared.principals.principal import Role
from shared.principals.roles import ROLES


class Server(Protocol):
    """The part of a gRPC server that generated code registers a service with."""

    def add_generic_rpc_handlers(self, handlers: Any) -> None: ...
    def add_registered_method_handlers(self, service: str, handlers: Any) -> None: ...


class _PublicPart:
    """Passes the public RPCs of a service on to ``server``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Nothing: generated code registers the same by name, and there they can be told apart."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        name = service.rpartition(".")[2]
        public = {
            method: handler
            for method, handler in handlers.items()
            if ROLES[f"{name}.{method}"] is not Role.INTERNAL
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, public),))
        self._server.add_registered_method_handlers(service, public)


def _add(generated: Callable[..., None], servicer: Any, server: Server) -> None:
    generated(servicer, _PublicPart(server))


add_rag = partial(_add, rag_pb2_grpc.add_RagServicer_to_server)
add_admin = partial(_add, rag_pb2_grpc.add_AdminServicer_to_server)
add_ingest = partial(_add, ingest_pb2_grpc.add_IngestServicer_to_server)
add_retrieval = partial(_add, retrieval_pb2_grpc.add_RetrievalServicer_to_server)
add_generation = partial(_add, generation_pb2_grpc.add_GenerationServicer_to_server)
add_kv_store = partial(_add, kv_store_pb2_grpc.add_KvStoreServicer_to_server)
PUBLIC = ("kv_store", "retrieval", "generation", "ingest", "rag", "admin")
