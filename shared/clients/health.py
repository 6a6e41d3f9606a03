"""Defines the health of an application, as every service tells it."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.kvquilt.v1 import common_pb2
from shared.wire.message import MessageWire


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """``facts`` are for display. ``detail`` says why a service is not ready, or what a ready one cannot
    do."""

    service: str
    ready: bool
    detail: str = ""
    facts: dict[str, str] = field(default_factory=dict)


HEALTH = MessageWire(ServiceHealth, common_pb2.HealthResponse)
