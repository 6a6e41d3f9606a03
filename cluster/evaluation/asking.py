"""Asks what is not answered yet, some cases of one task at a time, in several processes at once, until all is
asked or the time is up; and keeps answers as they come."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.evaluation.answers import EvalAnswer
from cluster.evaluation.arms import EvalArm
from cluster.evaluation.bench import EvalBench
from cluster.evaluation.cases import EvalCase, EvalTask
from cluster.gate.answering import Models
from shared.kv_types import KvContext
from shared.measuring.answer_file import AnswerFile
from shared.measuring.workers import Worker, in_parallel

Answers = list[list[EvalAnswer]]


class Bench(Protocol):
    """Answers cases; ``contexts_at_once``: so many together."""

    contexts_at_once: int

    def ask(self, task: EvalTask, cases: Sequence[EvalCase], arms: Sequence[EvalArm]) -> Answers: ...


@dataclass(frozen=True, slots=True)
class CaseBatch:
    task: EvalTask
    cases: tuple[EvalCase, ...]
    arms: tuple[EvalArm, ...]


@dataclass(frozen=True, slots=True)
class EvalAsking:
    """``arms``: of a task. ``minutes`` None: no limit."""

    arms: Callable[[EvalTask], tuple[EvalArm, ...]]
    minutes: float | None = None

    def run(
        self,
        bench: Bench,
        others: Sequence[Callable[[CaseBatch], Answers]],
        tasks: Sequence[EvalTask],
        kept: AnswerFile,
        errors: Console,
    ) -> list[EvalAnswer]:
        """Answers to ``tasks``, those that were kept before included. ``others``: ask beside ``bench``."""
        began = time.monotonic()

        def in_time() -> bool:
            return self.minutes is None or time.monotonic() - began <= self.minutes * 60

        held = {(answer["task"], answer["case"]) for line in kept.lines for answer in line[:1]}
        with asking_progress(errors) as progress:
            bar = progress.add_task("asking", total=sum(len(task.cases) for task in tasks))
            batches = self._batches(bench, tasks, held, partial(progress.advance, bar))
            asks: list[Callable[[CaseBatch], Answers]] = [partial(_ask, bench), *others]
            for batch, answers in in_parallel(asks, batches, in_time):
                for of_case in answers:
                    kept.add([dataclasses.asdict(answer) for answer in of_case])
                progress.advance(bar, len(batch.cases))
        if not in_time():
            errors.print("the time is up; with --answers the same command goes on from here")
        wanted = {(task.name, case.name) for task in tasks for case in task.cases}
        told = (EvalAnswer(**answer) for line in kept.lines for answer in line)
        return [answer for answer in told if (answer.task, answer.case) in wanted]

    def _batches(
        self,
        bench: Bench,
        tasks: Sequence[EvalTask],
        held: set[tuple[str, str]],
        skip: Callable[[], object],
    ) -> Iterator[CaseBatch]:
        """Tasks in turn, so that where a run ends early each has been asked alike."""
        waiting = []
        for task in tasks:
            missing = [case for case in task.cases if (task.name, case.name) not in held]
            for _ in range(len(task.cases) - len(missing)):
                skip()
            waiting.append((task, iter(missing)))
        while waiting:
            still = []
            for task, cases in waiting:
                if some := tuple(islice(cases, bench.contexts_at_once)):
                    yield CaseBatch(task, some, self.arms(task))
                    still.append((task, cases))
            waiting = still


class Processes(ExitStack):
    """More benches, each in a process of its own."""

    def begin(
        self,
        number: int,
        models: Models,
        contexts: Sequence[KvContext],
        positions: int,
        retrieve: int,
        threads: int,
    ) -> list[Callable[[CaseBatch], Answers]]:
        return [
            _elsewhere(self.enter_context(Worker(_bench, models, contexts, positions, retrieve, threads)))
            for _ in range(number)
        ]


def asking_progress(errors: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=errors)


def _bench(
    models: Models, contexts: Sequence[KvContext], positions: int, retrieve: int, threads: int
) -> EvalBench:
    torch.set_num_threads(threads)
    return EvalBench(models, contexts, positions, retrieve)


def _ask(bench: Bench, batch: CaseBatch) -> Answers:
    return bench.ask(batch.task, batch.cases, batch.arms)


def _elsewhere(worker: Worker) -> Callable[[CaseBatch], Answers]:
    return lambda batch: worker.call(EvalBench.ask, _bare(batch.task), batch.cases, batch.arms)


def _bare(task: EvalTask) -> EvalTask:
    """Strips to what travels to another process: a task's cases do not."""
    return dataclasses.replace(task, cases=())
