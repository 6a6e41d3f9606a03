"""Health of an application: the one RPC that every service has."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.kvquilt.v1 import common_pb2
from shared.clients.transport import Transport
from shared.request import RequestContext


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """``facts`` are for display. ``detail`` says why a service is not ready, or what a ready one cannot
    do."""

    service: str
    ready: bool
    detail: str = ""
    facts: dict[str, str] = field(default_factory=dict)


async def health(transport: Transport, ctx: RequestContext) -> ServiceHealth:
    request = common_pb2.HealthRequest(meta=meta_of(ctx))
    return health_from_pb(
        await transport.unary("Health", request, common_pb2.HealthResponse, ctx.remaining_s)
    )


class ApplicationHealth:
    """The health of whatever application ``transport`` leads to."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return await health(self._transport, ctx)


def meta_of(ctx: RequestContext) -> common_pb2.RequestMeta:
    """What remains of the deadline travels on."""
    return common_pb2.RequestMeta(
        request_id=ctx.request_id,
        tenant=ctx.tenant,
        deadline_ms=max(1, min(int(ctx.remaining_s * 1000), 2**32 - 1)),
    )


def health_from_pb(pb: common_pb2.HealthResponse) -> ServiceHealth:
    return ServiceHealth(pb.service, pb.ready, pb.detail, dict(pb.facts))


def health_to_pb(value: ServiceHealth) -> common_pb2.HealthResponse:
    return common_pb2.HealthResponse(
        service=value.service, ready=value.ready, detail=value.detail, facts=value.facts
    )
