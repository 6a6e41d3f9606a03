"""What the gateway needs of other services. ``shared.clients`` satisfies these; tests pass fakes."""

from __future__ import annotations

from typing import Protocol

from shared.clients.health import ServiceHealth
from shared.request import RequestContext


class HealthSource(Protocol):
    async def health(self, ctx: RequestContext) -> ServiceHealth: ...
