"""Questions from outside the cluster: one, or one after the other for as long as something is being
changed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cluster.paths import DEMO_ASSETS, PROJECT_ROOT
from shared.answer import AnswerDone, AnswerEvent, AnswerText, AnswerUsage, Inquiry, RetrievalOptions
from shared.clients.doors import rag_client
from shared.config import API_KEY
from shared.errors import KvquiltError
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
from shared.generation.told import Usage
from shared.request import RequestContext
from tests.k8s.door import Door
from tests.k8s.keys import CREDENTIALS, KEY
from tests.k8s.shell import CommandFailed, tell

COLLECTION = "towns"
DOCUMENTS = DEMO_ASSETS / "documents" / "towns"
QUESTION, ANSWER = "Which day is market day in Tambach?", "Sunday"
DEADLINE_MS = 120_000
_ENOUGH, _PATIENCE_S = 5, 60.0


@dataclass(frozen=True)
class Answered:
    text: str
    usage: Usage

    @property
    def work(self) -> Usage:
        """Without where the KV lay that was not computed: a generator that has just begun must load what
        others hold."""
        return replace(self.usage, loaded_tokens=0, chunk_origins=())


async def answer(
    target: str,
    question: str = QUESTION,
    reuse: ReuseMode | None = None,
    sampling: SamplingParams | None = None,
    k: int = 3,
    on_event: Callable[[AnswerEvent], None] | None = None,
) -> Answered:
    """
    Raises:
        KvquiltError: as any client of the gateway gets it.
    """
    events: list[AnswerEvent] = []
    async with rag_client(target, CREDENTIALS) as client:
        stream = client.answer(
            RequestContext.create(deadline_ms=DEADLINE_MS),
            Inquiry(
                COLLECTION,
                (question,),
                Reuse(reuse),
                sampling or SamplingParams(),
                RetrievalOptions(k=k),
            ),
        )
        async for event in stream:
            events.append(event)
            if on_event is not None:
                on_event(event)
    assert isinstance(events[-1], AnswerDone)
    text = next(e.text for e in events if isinstance(e, AnswerText))
    return Answered(text, next(e.usage for e in events if isinstance(e, AnswerUsage)))


def kvquilt(target: str, *args: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """`kvquilt --target …` on this machine."""
    return subprocess.run(
        [sys.executable, "-m", "cluster.cli.main", "--target", target, *args],
        cwd=PROJECT_ROOT,
        env=os.environ | {"COLUMNS": "200", API_KEY: KEY},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def cli(target: str, *args: str) -> str:
    """What it printed.

    Raises:
        CommandFailed: its exit code is not 0.
    """
    done = kvquilt(target, *args)
    if done.returncode:
        raise CommandFailed(
            f"kvquilt {' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


@dataclass
class Trickle:
    """Asks once a second, each time as a new client, from ``with`` to its end. ``failures`` are told by their
    class and detail."""

    door: Door
    period_s: float = 1.0
    num_answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0

    def __enter__(self) -> Trickle:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_until_stopped, name="trickle", daemon=True)
        self._target = self.door.target
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        give_up_s = time.monotonic() + _PATIENCE_S
        # the change took less time than a few answers
        while kind is None and self._too_few() and time.monotonic() < give_up_s:
            time.sleep(self.period_s)
        self._stop.set()
        self._thread.join()
        tell(
            f"meanwhile {self.num_answered} answers, the slowest after {self.slowest_s:.1f} s, and "
            f"{self.failures.total()} failures"
        )

    def check(self) -> None:
        assert not self.failures, (
            f"{sum(self.failures.values())} of {self.num_answered} questions failed: {self.failures}"
        )
        assert not self._too_few()

    def _too_few(self) -> bool:
        return self.num_answered < _ENOUGH and not self.failures

    def _ask_until_stopped(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                asyncio.run(answer(self._target, sampling=SamplingParams(max_tokens=8)))
                self.num_answered += 1
            except (KvquiltError, AssertionError) as error:
                self.failures[f"{type(error).__name__}: {error}"] += 1
                self._target = self.door.target
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            self._stop.wait(self.period_s)
