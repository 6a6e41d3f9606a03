"""Evaluates a model by invented questions: what is asked, and what came of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from rich.console import Console

from cluster.gate.answering import Models
from cluster.gate.asking import Asking, Way
from cluster.gate.bench import QualityBench
from cluster.gate.decision import DEFAULT_ALPHA, Context, decide
from cluster.gate.evaluated import Evaluated, made_with
from cluster.gate.findings import likenesses
from cluster.gate.ledger import LAST_LAYER, Ledger
from cluster.gate.modes import Comparison
from cluster.gate.served import say_left_out, served_plan
from cluster.gate.tasks import KINDS, TaskKind, tasks_of
from cluster.gate.trials import Shapes, Trial, draw_trials
from cluster.paths import DEMO_MODEL
from shared.engine.kv.encodings import EXACT
from shared.identity import adapter_identity
from shared.prompt import num_positions

_MOST_CONTEXT, _ROOM = 7168, 512
_AROUND_FILLED = 16  # tokens of a chunk that filling leaves free
_MANY_PER_FEW = 20


def shapes_of(
    models: Models,
    passage_tokens: int | None = None,
    documents: tuple[int, int] | None = None,
    context_tokens: int = 0,
    passages: tuple[int, int] = (4, 6),
    chars: tuple[int, int] = (160, 300),
) -> Shapes:
    """Contexts that suit the model. ``passage_tokens`` None: the demo model's passages stay as they are,
    those of others fill a chunk. ``context_tokens`` 0: what there is room for."""
    if passage_tokens is None:
        own = models.primary == str(DEMO_MODEL)
        passage_tokens = 0 if own else models.ingestion.chunk_tokens - _AROUND_FILLED
    longest = context_tokens or min(_MOST_CONTEXT, num_positions(models.primary) - _ROOM)
    of_documents = documents or ((5, 6) if passage_tokens else (5, 9))
    chunk_tokens = models.ingestion.chunk_tokens
    return Shapes(passages, chars, of_documents, passage_tokens, longest, chunk_tokens)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``num_questions``: at least so many with spread evidence over few documents, ``num_many`` over many
    (None: one for every 20 others). ``shapes``: of contexts for these models. ``threads``: of torch, in each
    of ``processes`` (0: as many as there are cores for). ``minutes`` None: until all is asked.
    ``tolerance``: also until it is known, with the chance of error ``alpha``, which ways lose no more;
    None: all is asked."""

    models: Models
    plan: Comparison
    num_questions: int
    num_many: int | None = None
    shapes: Callable[[Models], Shapes] = shapes_of
    kinds: tuple[TaskKind, ...] = KINDS
    seed: int = 0
    threads: int = 1
    processes: int = 0
    minutes: float | None = None
    tolerance: float | None = None
    alpha: float = DEFAULT_ALPHA

    def run(self, kept: Path | None, console: Console) -> Evaluated:
        """Goes on from the answers that are in ``kept``.

        Raises:
            KvquiltError: a model cannot be used; ``kept`` holds answers of other settings; a request failed.
        """
        plan, left_out = served_plan(self.plan, self.models)
        say_left_out(left_out, console)
        bench = QualityBench(self.models, plan, self.seed)
        try:
            shapes = self.shapes(self.models)
            settings = self._settings(plan, shapes)
            ledger = Ledger(kept, {**settings, **bench.fingerprints})
            trials = self._trials(bench, shapes)
            asking = Asking(
                partial(QualityBench, self.models, plan, self.seed),
                partial(self._ways, plan),
                num_processes(self.processes, self.threads, self.models),
                self.threads,
                self.minutes,
                lambda: self._enough(plan, ledger, answered(asking, ledger, trials)),
            )
            asking.run(bench, ledger, trials, console)
            order = answered(asking, ledger, trials)
        finally:
            bench.close()
        wanted = {_context(trial) for trial in trials}
        answers = [a for a in ledger.answers if (a.kind.endswith("_many"), a.context) in wanted]
        return Evaluated(
            answers,
            order,
            plan,
            made_with(self.models, plan, bench.prompts, bench.fingerprints),
            settings,
            likenesses(answers, plan.ratio),
            left_out=left_out,
        )

    def _ways(self, plan: Comparison, trial: Trial) -> list[Way]:
        kinds = dict.fromkeys(task.kind for task in tasks_of(self.seed, trial, self.kinds))
        return [(kind, arm) for kind in kinds for arm in plan.arms(kind)]

    def _enough(self, plan: Comparison, ledger: Ledger, order: Sequence[Context]) -> bool:
        return (
            self.tolerance is not None
            and decide(ledger.answers, plan, order, self.tolerance, self.alpha).decided
        )

    def _trials(self, bench: QualityBench, shapes: Shapes) -> list[Trial]:
        """Those of many documents in even distances among the others, so that who stops early has seen
        both."""
        num_many = self.num_questions // _MANY_PER_FEW if self.num_many is None else self.num_many
        few = list(draw_trials(self.seed, self.num_questions, shapes, count=bench.num_tokens))
        many = list(draw_trials(self.seed, num_many, shapes, many=True, count=bench.num_tokens))
        placed = [((i + 1) / len(of), trial) for of in (few, many) for i, trial in enumerate(of)]
        return [trial for _, trial in sorted(placed, key=lambda one: one[0])]

    def _settings(self, plan: Comparison, shapes: Shapes) -> dict[str, object]:
        """Returns what answers depend on: those of other settings are not to be mixed with these."""
        ingestion = self.models.ingestion
        return {
            "seed": self.seed,
            "kv_context": ingestion.kv_context.value,
            "kv_context_tokens": ingestion.kv_context_tokens,
            "chunk_tokens": ingestion.chunk_tokens,
            "prompt": dataclasses.asdict(ingestion.prompt),
            "dtype": self.models.dtype,
            **({"device": self.models.device} if self.models.on_gpu else {}),
            "controls_as": plan.controls_as,
            "agreement_with": LAST_LAYER if self.models.likeness else "",
            **({} if self.models.encoding == EXACT else {"encoding": self.models.encoding}),
            **({"adapter": adapter_identity(self.models.adapter)} if self.models.adapter else {}),
            **({"stop": list(self.models.stop)} if self.models.stop else {}),
            **dataclasses.asdict(shapes),
        }


def num_processes(wanted: int, threads: int, models: Models) -> int:
    """0: as many as there are cores for; on a GPU one."""
    return wanted or (1 if models.on_gpu else max(1, len(os.sched_getaffinity(0)) // threads))


def answered(asking: Asking, ledger: Ledger, subjects: Sequence[Trial]) -> list[Context]:
    """The subjects in front of the first one about which something is still missing, whatever was answered
    behind it."""
    return [_context(one) for one in takewhile(lambda one: not asking.missing(ledger, one), subjects)]


def _context(trial: Trial) -> Context:
    return trial.many, trial.number
