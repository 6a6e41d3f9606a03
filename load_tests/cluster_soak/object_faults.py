"""Lets an object store be away, slow, or lie."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from load_tests.benchmark import Violation
from load_tests.cluster_soak.fault import DOWN_S, Fault, Strike, down
from load_tests.servers.faulty_s3 import FaultyS3, Request, S3Answer, S3Fault
from load_tests.servers.s3 import S3Server
from load_tests.servers.s3_lies import OtherObjects, half, object_of, wrong_bytes

SLOW_S = 1.5
"""By which a slow store answers each request later."""
_FEWEST_LIES, _READ_WITHIN_S = 3, 60.0
Lie = Callable[[Request, S3Answer], S3Answer]


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """``server``, and the ``proxy`` by which the stack reaches it."""

    server: S3Server
    proxy: FaultyS3


def object_faults(store: ObjectStore, rng: random.Random) -> list[Fault]:
    lies: dict[str, Lie] = {
        "wrong bytes": lambda request, answer: wrong_bytes(answer, rng),
        "half of the bytes": lambda request, answer: half(answer),
        "another object": OtherObjects(store.server, rng),
    }
    return [
        Fault(f"object store down for {DOWN_S:g} s", lambda: down(store.server)),
        Fault(f"object store slow by {SLOW_S:g} s", lambda: _slow(store.proxy)),
        *(Fault(f"object store sends {name}", _lying(store.proxy, lie)) for name, lie in lies.items()),
    ]


async def _slow(proxy: FaultyS3) -> None:
    proxy.plan = lambda request: S3Fault(delay_s=SLOW_S)
    try:
        await asyncio.sleep(DOWN_S)
    finally:
        proxy.plan = lambda request: None


def _lying(proxy: FaultyS3, lie: Lie) -> Strike:
    async def strike() -> None:
        lies = _Lies(lie)
        proxy.plan = lies.plan
        try:
            await asyncio.sleep(DOWN_S)
            await lies.told_enough()
        finally:
            proxy.plan = lambda request: None

    return strike


class _Lies:
    """Every other read of an object is answered with a lie."""

    def __init__(self, lie: Lie) -> None:
        self._lie = lie
        self._num_reads = self._num_lies = 0

    def plan(self, request: Request) -> S3Fault | None:
        if object_of(request) is None:
            return None
        self._num_reads += 1
        lies = self._num_reads % 2 == 1
        return S3Fault(altered=lambda answer: self._altered(request, answer)) if lies else None

    async def told_enough(self) -> None:
        """
        Raises:
            Violation: hardly anything was read that could be lied about.
        """
        try:
            async with asyncio.timeout(_READ_WITHIN_S):
                while self._num_lies < _FEWEST_LIES:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise Violation(f"the object store could lie {self._num_lies} times only: nobody reads") from None

    def _altered(self, request: Request, answer: S3Answer) -> S3Answer:
        altered = self._lie(request, answer)
        self._num_lies += altered != answer
        return altered
