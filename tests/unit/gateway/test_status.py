"""The state of the system."""

from __future__ import annotations

import asyncio

from services.gateway.status import system_status
from shared.clients.health import ServiceHealth
from shared.errors import Unavailable
from shared.request import RequestContext


class Well:
    async def health(self, ctx: RequestContext) -> ServiceHealth:
        return ServiceHealth("well", True, facts={"chunks": "3"})


class Dead:
    async def health(self, ctx: RequestContext) -> ServiceHealth:
        raise Unavailable("not available; retry")


class Silent:
    async def health(self, ctx: RequestContext) -> ServiceHealth:
        await asyncio.Event().wait()
        raise AssertionError


async def test_every_application_is_reported_in_order_whatever_became_of_the_others() -> None:
    sources = {"well": Well(), "dead": Dead(), "silent": Silent()}
    report = await system_status(sources, RequestContext.create(), timeout_s=0.01, addresses={})
    assert [(s.service, s.ready) for s in report] == [("well", True), ("dead", False), ("silent", False)]
    assert report[0].facts == {"chunks": "3"}
    assert "retry" in report[1].detail
    assert "no answer" in report[2].detail


async def test_what_another_cluster_serves_is_told_with_where_it_is() -> None:
    sources = {"well": Well(), "dead": Dead(), "here": Well()}
    addresses = {"well": "gpus.example:9000", "dead": "index.example:9000"}
    well, dead, here = await system_status(sources, RequestContext.create(), 0.01, addresses)
    assert well == ServiceHealth("well", True, facts={"chunks": "3", "remote": "gpus.example:9000"})
    assert dead.detail == "at index.example:9000: not available; retry"
    assert "remote" not in here.facts
