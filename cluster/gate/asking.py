"""Asks what is not answered yet, batch by batch, in several processes at once, until all is asked, enough is
known, or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.gate.ledger import GradedAnswer, Ledger
from cluster.gate.modes import Arm
from shared.measuring.workers import Worker, in_parallel

_TOKENS_AT_ONCE = 8192
_MOST_CONTEXTS = 8


class Subject(Protocol):
    """A context that is asked about. ``texts``: of its chunks."""

    @property
    def number(self) -> int: ...

    @property
    def texts(self) -> tuple[str, ...]: ...

    def kind_name(self, kind: str) -> str:
        """Of its answers to questions of one kind."""
        ...


class GateBench(Protocol):
    """Asks questions about subjects of one sort. Its ``ask`` is called in other processes as well."""

    def num_tokens(self, text: str) -> int: ...

    def ask(self, wanted: Any) -> list[list[GradedAnswer]]: ...


Way = tuple[Any, Arm]
Wanted = Sequence[tuple[Any, Sequence[Way]]]
Ask = Callable[[Wanted], list[list[GradedAnswer]]]


@dataclass(frozen=True, slots=True)
class Asking:
    """``build``: makes a bench, in another process too. ``ways``: in which a subject is to be asked about:
    kinds, and arms. ``threads``: of torch, in each of ``processes``. ``minutes`` None: no limit.
    ``enough``: says, before each batch, whether what is kept suffices."""

    build: Callable[[], GateBench]
    ways: Callable[[Any], Sequence[Way]]
    processes: int
    threads: int
    minutes: float | None = None
    enough: Callable[[], bool] = lambda: False

    def run(self, bench: GateBench, ledger: Ledger, subjects: Sequence[Subject], errors: Console) -> None:
        """``bench``: that of this process."""
        began = time.monotonic()
        columns = (
            TextColumn("asking"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("contexts"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=errors) as progress, ExitStack() as stack:
            bar = progress.add_task("asking", total=len(subjects))
            batches = self._batches(bench, ledger, subjects, partial(progress.advance, bar))
            first = list(islice(batches, self.processes))
            asks: list[Ask] = [bench.ask]
            for _ in first[1:]:
                worker = stack.enter_context(Worker(_built, self.build, self.threads))
                asks.append(_elsewhere(worker, type(bench)))
            go_on = self._goes_on(began)
            for batch, answers in in_parallel(asks, chain(first, batches), go_on):
                for of_one in answers:
                    ledger.add(of_one)
                progress.advance(bar, len(batch))
        if not self._in_time(began) and not self.enough():
            errors.print("the time is up; the same command goes on from here")

    def missing(self, ledger: Ledger, subject: Subject) -> list[Way]:
        """Returns what has not been asked about it."""
        return [
            (kind, arm)
            for kind, arm in self.ways(subject)
            if not ledger.holds(subject.kind_name(kind), arm.label, subject.number)
        ]

    def _in_time(self, began: float) -> bool:
        return self.minutes is None or time.monotonic() - began <= self.minutes * 60

    def _goes_on(self, began: float) -> Callable[[], bool]:
        return lambda: self._in_time(began) and not self.enough()

    def _batches(
        self, bench: GateBench, ledger: Ledger, subjects: Sequence[Subject], skip: Callable[[], object]
    ) -> Iterator[Wanted]:
        """Parts what is missing into batches of so many contexts at once that their KV has room."""
        batch: list[tuple[Subject, list[Way]]] = []
        num_tokens = 0
        for subject in subjects:
            missing = self.missing(ledger, subject)
            if not missing:
                skip()
                continue
            batch.append((subject, missing))
            num_tokens += sum(map(bench.num_tokens, subject.texts))
            if num_tokens >= _TOKENS_AT_ONCE or len(batch) >= _MOST_CONTEXTS:
                yield batch
                batch, num_tokens = [], 0
        if batch:
            yield batch


def _built(build: Callable[[], GateBench], threads: int) -> GateBench:
    torch.set_num_threads(threads)
    return build()


def _elsewhere(worker: Worker, bench_type: type[GateBench]) -> Ask:
    return lambda wanted: worker.call(bench_type.ask, wanted)
