"""Counts and times the calls to a service."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from shared.errors import Cancelled, InternalError, KvquiltError
from shared.metrics.recorder import Metrics
from shared.metrics.table import RPC_SECONDS, RPCS

OK = "OK"
"""In metrics, in place of an error's code."""


class CallOutcome:
    """Outcome of a call: an error's code, or ``OK``."""

    def __init__(self) -> None:
        self.code = OK

    def failed(self, error: Exception) -> None:
        self.code = error.code if isinstance(error, KvquiltError) else InternalError.code


@contextlib.contextmanager
def counted(service: object, method: str) -> Iterator[CallOutcome]:
    """Counts and times a call, where the service has ``metrics``; one whose caller leaves as cancelled."""
    metrics: Metrics | None = getattr(service, "metrics", None)
    outcome, began = CallOutcome(), time.monotonic()
    try:
        yield outcome
    except (asyncio.CancelledError, GeneratorExit):
        outcome.code = Cancelled.code
        raise
    finally:
        if metrics is not None:
            metrics.add(RPCS, method=method, code=outcome.code)
            metrics.observe(RPC_SECONDS, time.monotonic() - began, method=method)
