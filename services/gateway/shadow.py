"""Asks some of the questions that mode ``auto`` has answered by the model's verdict again, of the reference
and while nobody waits, and has the verdict suspended where the answers certainly agree too little.

    answer ──► sampled by its request id ──► waiting ──► Reference ──► AgreementMonitor ──► suspend
                                             (bounded, in memory, the oldest go first)

Only counts outlive a comparison. Every replica of the gateway judges by the questions that it answered; any
of them may suspend.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from services.gateway.agreement import AgreementMonitor
from services.gateway.config import ShadowConfig
from services.gateway.ports import GeneratorPort
from services.gateway.reference import AnsweredOrder, Reference
from shared.answer import Inquiry
from shared.errors import DeadlineExceeded, KvquiltError, Overloaded, Unavailable
from shared.generation.asked import Decoding
from shared.generation.orders import may_reuse
from shared.identity import digest
from shared.request import RequestContext

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
_SUSPENDING_S = 10.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    ctx: RequestContext
    verdict: str
    answered: AnsweredOrder
    since_s: float


class Shadow:
    """``clock``: seconds, from any instant on."""

    def __init__(
        self,
        config: ShadowConfig,
        generator: GeneratorPort,
        reference: Reference,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._generator = generator
        self._reference = reference
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()
        self._agreements: dict[str, AgreementMonitor] = {}
        self._drifted: dict[str, str] = {}  # by verdict, what was seen
        self._latest = ""
        self._num_dropped = self._num_failed = 0
        self._working: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    def consider(self, ctx: RequestContext, inquiry: Inquiry, answered: AnsweredOrder) -> None:
        """Has it compared if it is one of the sampled ones; returns at once."""
        verdict, reuse = answered.usage.verdict, answered.usage.reuse
        if verdict is None or reuse is None or not may_reuse(reuse):
            return
        agreement = self._agreements.setdefault(verdict.id, AgreementMonitor(self._config, verdict.agreement))
        self._latest = verdict.id
        if verdict.id in self._drifted:  # a replica of the generator that was not told, or has begun anew
            self._tell(ctx, verdict.id)
            return
        wanted = _comparable(inquiry) and is_sampled(ctx.request_id, self._config.share)
        if wanted and not agreement.knows(answered.key):
            self._waiting.append(_Waiting(ctx, verdict.id, answered, self._clock()))
            self._bound()
            if self._working is None or self._working.done():
                self._working = asyncio.create_task(self._work())

    def facts(self) -> dict[str, str]:
        """For an operator: of the verdict that was obeyed last."""
        told = str(self._agreements[self._latest]) if self._latest else "no answer by a verdict yet"
        seen = self._drifted.get(self._latest)
        return {
            "shadow": f"{told}; the verdict was suspended: {seen}" if seen else told,
            "shadow_judged": str(sum(one.num_judged for one in self._agreements.values())),
            "shadow_waiting": str(len(self._waiting)),
            "shadow_dropped": str(self._num_dropped),
            "shadow_failed": str(self._num_failed),
        }

    def check_invariants(self) -> None:
        assert len(self._waiting) <= self._config.most_waiting, "more wait than may"
        assert not self._waiting or self._working is not None, "somebody waits, and nobody works"

    def _bound(self) -> None:
        while len(self._waiting) > self._config.most_waiting:
            self._waiting.popleft()
            self._num_dropped += 1

    async def _work(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            left_s = waiting.since_s + self._config.most_wait_s - self._clock()
            if left_s <= 0 or waiting.verdict in self._drifted:
                self._num_dropped += 1
                continue
            try:
                await self._compare(waiting.ctx.lasting(left_s), waiting.verdict, waiting.answered)
            except (Overloaded, Unavailable, DeadlineExceeded) as error:
                log.debug("the reference is asked again later: %s", error)
                self._waiting.appendleft(waiting)
                self._bound()
                await asyncio.sleep(_PAUSE_S)
            except KvquiltError as error:
                log.info("the reference could not be asked: %s", error)
                self._num_failed += 1
            except Exception:
                log.exception("the reference could not be asked")
                self._num_failed += 1

    async def _compare(self, ctx: RequestContext, verdict: str, answered: AnsweredOrder) -> None:
        reference = await self._reference.answer(ctx, answered)
        agreement = self._agreements[verdict]
        if agreement.judge(answered.key, answered.question, answered.text, reference):
            self._drifted[verdict] = str(agreement)
            self._tell(ctx, verdict)

    def _tell(self, ctx: RequestContext, verdict: str) -> None:
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._suspend(ctx.lasting(_SUSPENDING_S), verdict))

    async def _suspend(self, ctx: RequestContext, verdict: str) -> None:
        reason = self._drifted[verdict]
        try:
            kept = await self._generator.suspend(ctx, verdict, reason)
            until = "until there is another" if kept else "until the generator starts anew"
            log.warning("the verdict is suspended %s: %s", until, reason)
        except KvquiltError as error:
            log.warning("the verdict should be suspended (%s), and could not be: %s", reason, error)
        except Exception:
            log.exception("the verdict should be suspended (%s), and could not be", reason)


def is_sampled(request_id: str, share: float) -> bool:
    """The same for the same request, wherever and whenever it is asked."""
    return int(digest(request_id.encode(), size=8), 16) < share * 2**64


def _comparable(inquiry: Inquiry) -> bool:
    """One question, answered once, in words and without chance, whose caller allows it: what a format makes
    all answers say would count as agreement."""
    sampling = inquiry.sampling
    once = len(inquiry.questions) == 1 and sampling.n == 1 and inquiry.decoding == Decoding()
    words = sampling.response_format is None
    return once and words and sampling.temperature == 0 and not inquiry.no_shadow
