"""Asks what is not answered yet, batch by batch, in several processes at once, until all is asked or the time
is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.gate.bench import Models, QualityBench, Wanted
from cluster.gate.ledger import GradedAnswer, Ledger
from cluster.gate.modes import Arm, Comparison
from cluster.gate.tasks import TaskKind, tasks_of
from cluster.gate.trials import Trial
from shared.measuring.workers import Worker, in_parallel

Ask = Callable[[Wanted], list[list[GradedAnswer]]]
_TOKENS_AT_ONCE = 8192
_MOST_CONTEXTS = 8


@dataclass(frozen=True, slots=True)
class Asking:
    """``kinds``: of tasks. ``threads``: of torch, in each of ``processes``. ``minutes`` None: no limit."""

    models: Models
    plan: Comparison
    seed: int
    kinds: tuple[TaskKind, ...]
    processes: int
    threads: int
    minutes: float | None = None

    def run(self, bench: QualityBench, ledger: Ledger, trials: Sequence[Trial], errors: Console) -> None:
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
            bar = progress.add_task("asking", total=len(trials))
            batches = self._batches(bench, ledger, trials, partial(progress.advance, bar))
            first = list(islice(batches, self.processes))
            asks: list[Ask] = [bench.ask]
            for _ in first[1:]:
                worker = stack.enter_context(Worker(_bench, self.models, self.plan, self.seed, self.threads))
                asks.append(_elsewhere(worker))
            for batch, answers in in_parallel(asks, chain(first, batches), self._in_time(began)):
                for of_one in answers:
                    ledger.add(of_one)
                progress.advance(bar, len(batch))
        if not self._in_time(began)():
            errors.print("the time is up; the same command goes on from here")

    def _in_time(self, began: float) -> Callable[[], bool]:
        return lambda: self.minutes is None or time.monotonic() - began <= self.minutes * 60

    def _batches(
        self, bench: QualityBench, ledger: Ledger, trials: Sequence[Trial], skip: Callable[[], object]
    ) -> Iterator[Wanted]:
        """What is missing, of so many contexts at once that their KV has room."""
        batch: list[tuple[Trial, list[tuple[TaskKind, Arm]]]] = []
        num_tokens = 0
        for trial in trials:
            missing = self._missing(ledger, trial)
            if not missing:
                skip()
                continue
            batch.append((trial, missing))
            num_tokens += sum(map(bench.num_tokens, trial.texts))
            if num_tokens >= _TOKENS_AT_ONCE or len(batch) >= _MOST_CONTEXTS:
                yield batch
                batch, num_tokens = [], 0
        if batch:
            yield batch

    def _missing(self, ledger: Ledger, trial: Trial) -> list[tuple[TaskKind, Arm]]:
        kinds = dict.fromkeys(task.kind for task in tasks_of(self.seed, trial, self.kinds))
        return [
            (kind, arm)
            for kind in kinds
            for arm in self.plan.arms(kind)
            if not ledger.holds(trial.kind_name(kind), arm.label, trial.number)
        ]


def _bench(models: Models, plan: Comparison, seed: int, threads: int) -> QualityBench:
    torch.set_num_threads(threads)
    return QualityBench(models, plan, seed)


def _elsewhere(worker: Worker) -> Ask:
    return lambda wanted: worker.call(QualityBench.ask, wanted)
