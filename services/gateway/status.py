"""The state of the whole system: every application asked for its health at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from services.gateway.ports import HealthSource
from shared.clients.health import ServiceHealth
from shared.errors import KvquiltError
from shared.request import RequestContext


async def system_status(
    sources: Mapping[str, HealthSource],
    ctx: RequestContext,
    timeout_s: float,
    addresses: Mapping[str, str],
) -> list[ServiceHealth]:
    """One answer per application, in the order of ``sources``; one that does not answer is not ready. Those
    of ``addresses``, which another cluster serves, are told with where they are."""
    answers = await asyncio.gather(*(_ask(name, source, ctx, timeout_s) for name, source in sources.items()))
    return [_at(addresses.get(name, ""), answer) for name, answer in zip(sources, answers, strict=True)]


def _at(address: str, answer: ServiceHealth) -> ServiceHealth:
    if not address:
        return answer
    detail = answer.detail and f"at {address}: {answer.detail}"
    return replace(answer, detail=detail, facts=answer.facts | {"remote": address})


async def _ask(name: str, source: HealthSource, ctx: RequestContext, timeout_s: float) -> ServiceHealth:
    try:
        async with asyncio.timeout(timeout_s):
            return await source.health(ctx)
    except TimeoutError:
        return ServiceHealth(name, ready=False, detail=f"no answer within {timeout_s:g} s")
    except KvquiltError as error:
        return ServiceHealth(name, ready=False, detail=error.detail)
