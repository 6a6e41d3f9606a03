"""One evaluation of a model: what is asked, and what came of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cluster.gate.asking import Asking
from cluster.gate.bench import Models, QualityBench
from cluster.gate.findings import Finding, Likeness, evidence, findings, likenesses, measurements, scores
from cluster.gate.ledger import LAST_LAYER, Ledger
from cluster.gate.modes import Comparison
from cluster.gate.tasks import KINDS, TaskKind
from cluster.gate.trials import Shapes, Trial, draw_trials
from cluster.paths import DEMO_MODEL
from shared.engine.kv.encodings import EXACT
from shared.errors import InvalidRequest
from shared.identity import ids_hash
from shared.kv_types import KvContext
from shared.measuring.judge import judge
from shared.measuring.report import Measurement
from shared.prompt import num_positions
from shared.verdict import Verdict

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
    return Shapes(
        passages, chars, documents or ((5, 6) if passage_tokens else (5, 9)), passage_tokens, longest
    )


@dataclass(frozen=True, slots=True)
class Evaluated:
    """``settings``: what the answers depend on. ``model``, ``prefix``: fingerprint and hash."""

    found: Sequence[Finding]
    alike: Sequence[Likeness]
    settings: dict[str, object]
    model: str
    prefix: str
    plan: Comparison
    kv_context: KvContext

    def measurements(self) -> list[Measurement]:
        return list(measurements(self.found, self.alike))

    def details(self) -> dict[str, object]:
        """For a report."""
        return {
            "settings": self.settings,
            "findings": [dataclasses.asdict(finding) for finding in self.found],
        }

    def verdict(self, tolerance: float) -> Verdict:
        """Goes by the kinds that count, as a model that cannot read a context says nothing about reuse.

        Raises:
            InvalidRequest: none counts, or no question has been asked in every mode.
        """
        counted = [finding for finding in self.found if finding.counts]
        if self.found and not counted:
            raise InvalidRequest(
                "verdict: no kind of question counts, as the model does not read the contexts: on none do "
                "whole blocks beat closed book by 20 points"
            )
        return judge(
            scores(counted, self.plan),
            tolerance,
            self.model,
            self.prefix,
            EXACT,
            self.kv_context,
            evidence(counted),
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``num_questions``: at least so many with spread evidence over few documents, ``num_many`` over many
    (None: one for every 20 others). ``shapes``: of contexts for these models. ``threads``: of torch, in each
    of ``processes`` (0: as many as there are cores for). ``minutes`` None: until all is asked."""

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

    def run(self, kept: Path | None, console: Console) -> Evaluated:
        """Goes on from the answers that are in ``kept``.

        Raises:
            KvquiltError: a model cannot be used; ``kept`` holds answers of other settings; a request failed.
        """
        plan = self.plan
        if plan.clips and not self.models.auxiliary:
            console.print(
                "no auxiliary model chooses for cacheclip, so it is left out; the controls go by the ratio"
            )
            plan = dataclasses.replace(plan, clips=())
        bench = QualityBench(self.models, plan, self.seed)
        try:
            shapes = self.shapes(self.models)
            settings = self._settings(plan, shapes)
            ledger = Ledger(kept, {**settings, **bench.fingerprints})
            trials = self._trials(bench, shapes)
            processes = self.processes or max(1, len(os.sched_getaffinity(0)) // self.threads)
            asking = Asking(self.models, plan, self.seed, self.kinds, processes, self.threads, self.minutes)
            asking.run(bench, ledger, trials, console)
        finally:
            bench.close()
        wanted = {(trial.many, trial.number) for trial in trials}
        answers = [a for a in ledger.answers if (a.kind.endswith("_many"), a.context) in wanted]
        return Evaluated(
            findings(answers, plan),
            likenesses(answers, plan.ratio),
            settings,
            bench.fingerprints["primary"],
            ids_hash(bench.prompts.prefix_ids),
            plan,
            self.models.ingestion.kv_context,
        )

    def _trials(self, bench: QualityBench, shapes: Shapes) -> list[Trial]:
        num_many = self.num_questions // _MANY_PER_FEW if self.num_many is None else self.num_many
        few = draw_trials(self.seed, self.num_questions, shapes, count=bench.num_tokens)
        many = draw_trials(self.seed, num_many, shapes, many=True, count=bench.num_tokens)
        return [*few, *many]

    def _settings(self, plan: Comparison, shapes: Shapes) -> dict[str, object]:
        """What answers depend on: those of other settings are not to be mixed with these."""
        ingestion = self.models.ingestion
        return {
            "seed": self.seed,
            "kv_context": ingestion.kv_context.value,
            "kv_context_tokens": ingestion.kv_context_tokens,
            "chunk_tokens": ingestion.chunk_tokens,
            "prompt": dataclasses.asdict(ingestion.prompt),
            "dtype": self.models.dtype,
            "controls_as": plan.clips[0].label if plan.clips else "ratio",
            "agreement_with": LAST_LAYER if self.models.likeness else "",
            **dataclasses.asdict(shapes),
        }
