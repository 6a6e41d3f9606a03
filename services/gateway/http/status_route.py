"""``/v1/status`` and ``/v1/tiers``: the state of the system and what the tiers of its store hold, as
``Admin.Status`` and ``KvStore.Stats`` tell them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from services.gateway.http.door import HttpDoor
from services.gateway.http.errors import API_ERRORS
from services.gateway.http.messages import asking_state, asking_tiers
from shared.clients.health import ServiceHealth
from shared.kv_reports import StoreStats, TierStats
from shared.request import RequestContext

PATH, TIERS = "/v1/status", "/v1/tiers"

SystemState = Callable[[RequestContext], Awaitable[Sequence[ServiceHealth]]]
TiersHeld = Callable[[RequestContext], Awaitable[StoreStats]]


class ServiceState(BaseModel):
    """``facts`` are for display. ``detail``: why it is not ready, or what a ready one cannot do."""

    service: str
    ready: bool
    detail: str
    facts: dict[str, str]


class SystemStatus(BaseModel):
    object: Literal["list"] = "list"
    data: list[ServiceState]


def add_status(app: FastAPI, door: HttpDoor, state: SystemState) -> None:
    @app.get(PATH, response_model=SystemStatus, responses=API_ERRORS)
    async def status(http: Request) -> Response:
        async def work(ctx: RequestContext) -> SystemStatus:
            return SystemStatus(
                data=[
                    ServiceState(service=one.service, ready=one.ready, detail=one.detail, facts=one.facts)
                    for one in await state(ctx)
                ]
            )

        return await door.through(http, "Status", asking_state, work)


class TierBody(BaseModel):
    """``node``: null of the object store. ``tier``: memory, disk, pending or objects. ``capacity_bytes`` 0:
    no limit."""

    node: str | None
    tier: str
    num_chunks: int
    num_bytes: int
    capacity_bytes: int
    pinned_bytes: int


class TierList(BaseModel):
    """``num_unreachable``: nodes that did not answer, whose tiers are missing."""

    object: Literal["list"] = "list"
    data: list[TierBody]
    num_unreachable: int


def add_tiers(app: FastAPI, door: HttpDoor, held: TiersHeld) -> None:
    @app.get(TIERS, response_model=TierList, responses=API_ERRORS)
    async def tiers(http: Request) -> Response:
        async def work(ctx: RequestContext) -> TierList:
            stats = await held(ctx)
            told = [_tier(node.node_id, tier) for node in stats.nodes for tier in node.tiers]
            if stats.objects is not None:
                told.append(_tier(None, stats.objects))
            return TierList(data=told, num_unreachable=stats.num_unreachable)

        return await door.through(http, "Stats", asking_tiers, work)


def _tier(node: str | None, tier: TierStats) -> TierBody:
    return TierBody(
        node=node,
        tier=tier.tier,
        num_chunks=tier.num_chunks,
        num_bytes=tier.num_bytes,
        capacity_bytes=tier.capacity_bytes,
        pinned_bytes=tier.pinned_bytes,
    )
