"""Reaches the applications that a service calls: by Ray Serve handle those of its own cluster, by plain gRPC
those that the settings place in another."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from shared.clients import generation, ingest, kv_store, retrieval, selection
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.serve_transport import ServeTransport
from shared.clients.transport import Transport

SERVICES = {
    client.APPLICATION: client.SERVICE for client in (generation, ingest, kv_store, retrieval, selection)
}


def transport_to(application: str, addresses: Mapping[str, str]) -> Transport:
    """``addresses``: application → ``host:port``, of those of other clusters. Calls wait, fail and are given
    up alike on both ways; to call again is the caller's decision."""
    if (address := addresses.get(application)) is None:
        return ServeTransport(application)
    channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return GrpcTransport(channel, SERVICES[application], application)
