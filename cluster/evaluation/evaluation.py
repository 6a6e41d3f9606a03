"""One evaluation of a model: what is asked, and what came of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, takewhile
from pathlib import Path

from rich.console import Console

from cluster.evaluation.arms import FULL, EvalArm, arms_of
from cluster.evaluation.asking import EvalAsking, Processes, asking_progress
from cluster.evaluation.attention import AttentionCase, AttentionStudy, study_attention
from cluster.evaluation.bench import EvalBench
from cluster.evaluation.cases import EvalTask
from cluster.evaluation.findings import Average, TaskFinding, average, find, measurements
from cluster.evaluation.remote import Connect, RemoteBench
from cluster.evaluation.suites import SuiteOrder
from cluster.gate.answering import Models
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.identity import adapter_identity
from shared.kv_types import KvContext
from shared.measuring.answer_file import AnswerFile
from shared.measuring.report import Measurement

_ATTENTION_CHUNKS, _ATTENTION_TOKENS, _ATTENTION_CASES = 4, 768, 8
_ALONE = 24  # cases below which no second process is worth its start


@dataclass(frozen=True, slots=True)
class EvalResult:
    """``settings``: what the answers depend on. ``attention`` None: it was not asked for, or cannot be
    had."""

    found: Sequence[TaskFinding]
    averages: Sequence[Average]
    settings: dict[str, object]
    attention: AttentionStudy | None = None

    def measurements(self) -> list[Measurement]:
        of_attention = self.attention.measurements() if self.attention else []
        return [*measurements(self.found, self.averages), *of_attention]

    def details(self) -> dict[str, object]:
        """For a report."""
        return {
            "settings": self.settings,
            "findings": [dataclasses.asdict(finding) for finding in self.found],
            "averages": [dataclasses.asdict(one) for one in self.averages],
        }


@dataclass(frozen=True, slots=True)
class EvalRun:
    """``modes``: besides `full` and closed book, each over KV of the kinds ``contexts`` and, where it goes by
    one, at each of ``ratios``. ``threads``: of torch, in each of ``processes`` (0: as many as there are cores
    for). ``minutes`` None: until all is asked. ``attention``: that of the model is measured as well.
    ``connect``: to the generator of a running system, which answers instead, for ``tenant``; None: the
    engine does, here. ``retrieve``: questions are asked over so many of their documents' chunks; 0: all.
    ``adapters``: names of those that the modes are asked with as well."""

    models: Models
    order: SuiteOrder
    modes: tuple[ReuseMode, ...]
    contexts: tuple[KvContext, ...]
    ratios: tuple[float, ...]
    threads: int = 1
    processes: int = 0
    minutes: float | None = None
    attention: bool = False
    connect: Connect | None = None
    tenant: str = ""
    retrieve: int = 0
    adapters: tuple[str, ...] = ()

    def run(self, kept: Path | None, console: Console) -> EvalResult:
        """Goes on from the answers that are in ``kept``.

        Raises:
            KvquiltError: a model, an option or a file cannot be used; ``kept`` holds answers of other
                settings; a request failed.
        """
        self.order.check()
        if any(mode.deferred for mode in self.modes) and not (self.models.auxiliary or self.connect):
            raise InvalidRequest(
                "--modes: cacheclip needs an auxiliary model, and this model has none; name one by "
                "selector.model in --config, or leave cacheclip out"
            )
        read = self.order.read()
        bench = self._bench()
        try:
            order = dataclasses.replace(self.order, length=bench.positions)
            arms = tuple(
                arms_of(self.modes, self.contexts, self.ratios, self.adapters, retrieved=bool(self.retrieve))
            )
            settings = {**order.settings(), **self._settings(arms), **bench.fingerprints}
            answers = AnswerFile(kept, settings)
            tasks = read or _made(order, bench, console)
            with Processes() as processes:
                told = EvalAsking(partial(arms_for, arms), self.minutes).run(
                    bench,
                    processes.begin(
                        self._num_others(tasks),
                        self.models,
                        self.contexts,
                        bench.positions,
                        self.retrieve,
                        self.threads,
                    ),
                    tasks,
                    answers,
                    console,
                )
            shown = attention_cases(bench, tasks) if self.attention else []
        finally:
            bench.close()
        found = find(told, tasks, {task.name: arms_for(arms, task) for task in tasks})
        averages = [average(name, names, found) for name, names in order.averages]
        study = study_attention(self.models.primary, shown) if shown else None
        return EvalResult(found, [one for one in averages if one is not None], settings, study)

    def _bench(self) -> EvalBench | RemoteBench:
        positions = self.order.length or self.order.suite.default_length
        if self.connect is None:
            return EvalBench(self.models, self.contexts, positions, self.retrieve)
        return RemoteBench(self.models, self.contexts, self.connect, self.tenant, positions, self.retrieve)

    def _num_others(self, tasks: Sequence[EvalTask]) -> int:
        """A running system has processes of its own; on a GPU one is enough, unless more are asked for."""
        if self.connect or sum(len(task.cases) for task in tasks) < _ALONE:
            return 0
        usual = 1 if self.models.on_gpu else max(1, len(os.sched_getaffinity(0)) // self.threads)
        return (self.processes or usual) - 1

    def _settings(self, arms: Sequence[EvalArm]) -> dict[str, object]:
        """Returns what answers depend on besides the cases."""
        ingestion = self.models.ingestion
        return {
            "model": Path(self.models.primary).name,
            "arms": [arm.label for arm in arms],
            "kv_context_tokens": ingestion.kv_context_tokens,
            "chunk_tokens": ingestion.chunk_tokens,
            "prompt": dataclasses.asdict(ingestion.prompt),
            "dtype": self.models.dtype,
            "device": self.models.device,
            "stop": list(self.models.stop),
            "retrieve": self.retrieve,
            "adapters": {
                name: adapter_identity(self.models.adapters[name])
                for name in self.adapters
                if name in self.models.adapters
            },
        }


def arms_for(arms: tuple[EvalArm, ...], task: EvalTask) -> tuple[EvalArm, ...]:
    """Returns the arms; where there are no documents, all are one."""
    return arms if any(case.documents for case in task.cases) else (FULL,)


def attention_cases(bench: EvalBench | RemoteBench, tasks: Sequence[EvalTask]) -> list[AttentionCase]:
    """Some of different tasks, each with its first chunks; none where nothing has two of them."""
    cases = [(task, case) for task in tasks for case in task.cases[:1] if case.documents]
    found = []
    for task, case in cases:
        cut = bench.cutter.cut(case.documents, case.question, task.max_tokens)
        chunks = [bench.prompts.encode_passage(cut.texts[i]) for i in cut.placed]
        held = takewhile(lambda total: total <= _ATTENTION_TOKENS, accumulate(map(len, chunks)))
        shown = tuple(chunks[: min(_ATTENTION_CHUNKS, len(list(held)))])
        if len(shown) > 1:
            question_ids = bench.prompts.encode_question(case.question)
            found.append(AttentionCase(bench.prompts.prefix_ids, shown, question_ids))
    return found[:_ATTENTION_CASES]


def _made(order: SuiteOrder, bench: EvalBench | RemoteBench, console: Console) -> list[EvalTask]:
    with asking_progress(console) as progress:
        bar = progress.add_task("making cases", total=order.num_made)
        return order.make(bench.cutter, partial(progress.advance, bar))
