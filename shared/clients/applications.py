"""Reaches the applications that a service calls: by Ray Serve handle those of its own cluster, by plain gRPC
those that the settings place in another."""

from __future__ import annotations

from collections.abc import Mapping

from shared.clients import generation, ingest, kv_store, retrieval, selection
from shared.clients.channels import channel_to
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.serve_transport import ServeTransport
from shared.clients.transport import Transport
from shared.principals.credentials import ServiceIdentity
from shared.principals.services import credentials_of

SERVICES = {
    client.APPLICATION: client.SERVICE for client in (generation, ingest, kv_store, retrieval, selection)
}


def transport_to(
    application: str, addresses: Mapping[str, str], identity: ServiceIdentity | None = None
) -> Transport:
    """``addresses``: application → where it is, of those of other clusters. ``identity``: of the service that
    calls. Calls wait, fail and are given up alike on both ways; to call again is the caller's decision."""
    if (address := addresses.get(application)) is None:
        return ServeTransport(application, identity)
    service, credentials = SERVICES[application], credentials_of(identity)
    return GrpcTransport(channel_to(address), service, application, credentials=credentials)
