"""Holds the outcome of an evaluation: findings, the decision, and the verdict that mode ``auto`` obeys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from cluster.gate.answering import Models
from cluster.gate.decision import DEFAULT_ALPHA, Context, GateDecision, context_of, decide, scores
from cluster.gate.findings import COUNTS_FROM, UNJUDGED, Finding, Likeness, evidence, findings, measurements
from cluster.gate.ledger import GradedAnswer
from cluster.gate.modes import Comparison
from cluster.gate.served import LeftOut
from shared.errors import InvalidRequest
from shared.identity import adapter_identity, ids_hash
from shared.measuring.judge import judge
from shared.measuring.report import Measurement
from shared.prompt import PromptTokenizer
from shared.verdict import FORM, MadeWith, Verdict

GENERATED, OWN = "generated", "own"


def made_with(
    models: Models, plan: Comparison, prompts: PromptTokenizer, fingerprints: Mapping[str, str]
) -> MadeWith:
    """Returns what a verdict on these models holds for."""
    clip = plan.clips[0] if plan.clips else None
    return MadeWith(
        fingerprints["primary"],
        ids_hash(prompts.prefix_ids),
        models.encoding,
        models.ingestion.kv_context,
        prompts.hash,
        adapter=adapter_identity(models.adapter) if models.adapter else "",
        auxiliary=fingerprints["auxiliary"] if clip else "",
        grouping=clip.grouping.value if clip else "",
        reading=clip.reading.value if clip else "",
    )


def label_of(verdict: Verdict, plan: Comparison) -> str:
    """Of the way of answering that the verdict names."""
    way = verdict.mode, verdict.ratio
    named = (arm.label for arm in plan.candidates if (arm.mode, arm.ratio or None) == way)
    return next(named, verdict.mode.value)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """``answers``: all that were given. ``order``: the contexts that a decision may go by, which are
    answered in every way. ``settings``: what the answers depend on. ``questions``: whose they are.
    ``left_out``: modes that the model is not served with."""

    answers: Sequence[GradedAnswer]
    order: Sequence[Context]
    plan: Comparison
    served: MadeWith
    settings: dict[str, object]
    alike: Sequence[Likeness] = ()
    questions: str = GENERATED
    left_out: Sequence[LeftOut] = ()
    found: Sequence[Finding] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", findings(self.answers, self.plan))

    def measurements(self) -> list[Measurement]:
        return list(measurements(self.found, self.alike))

    def details(self) -> dict[str, object]:
        """For a report."""
        return {
            "settings": self.settings,
            "findings": [dataclasses.asdict(finding) for finding in self.found],
            "left_out": [dataclasses.asdict(one) for one in self.left_out],
        }

    def decide(self, tolerance: float, alpha: float = DEFAULT_ALPHA) -> GateDecision:
        return decide(self.answers, self.plan, self.order, tolerance, alpha)

    def verdict(self, tolerance: float, alpha: float = DEFAULT_ALPHA) -> Verdict:
        """Goes by the contexts that the decision took, and the kinds that count, as a model that cannot
        read a context says nothing about reuse.

        Raises:
            InvalidRequest: none counts, no question has been asked in every mode, or they are too few to
            tell.
        """
        decision = self.decide(tolerance, alpha)
        taken = set(self.order[: decision.num_contexts])
        answers = [answer for answer in self.answers if context_of(answer) in taken]
        found = findings(answers, self.plan)
        counted = [finding for finding in found if finding.counts]
        if found and all(finding.kind == UNJUDGED for finding in found):
            raise InvalidRequest(
                "verdict: no question carries answers or evidence, so that only the divergence from the "
                "reference is known; add `answers` or `evidence` to the questions"
            )
        if found and not counted:
            raise InvalidRequest(
                "verdict: no kind of question counts, as the model does not read the contexts: on none do "
                f"whole blocks beat closed book by {100 * COUNTS_FROM:.0f} points"
            )
        served = self.served
        context = served.kv_context
        assert context is not None
        verdict = judge(
            scores(counted, self.plan, decision),
            tolerance,
            served.model,
            served.prefix,
            served.encoding,
            context,
            evidence(found),
        )
        label = label_of(verdict, self.plan)
        by_selector = verdict.mode.deferred
        return replace(
            verdict,
            tokenizer=served.tokenizer,
            adapter=served.adapter,
            auxiliary=served.auxiliary if by_selector else "",
            grouping=served.grouping if by_selector else "",
            reading=served.reading if by_selector else "",
            questions=self.questions,
            num_contexts=decision.num_contexts,
            alpha=alpha,
            agreement=_agreement(answers, label, counted),
            loss_at_most={one.group: round(one.loss_at_most, 6) for one in decision.of(label)},
            form=FORM,
        )


def _agreement(answers: Sequence[GradedAnswer], label: str, counted: Sequence[Finding]) -> float | None:
    """Of one way with the reference, over all questions that count; None: it was not measured."""
    kinds = {finding.kind for finding in counted}
    alike = [answer.alike for answer in answers if answer.mode == label and answer.kind in kinds]
    known = [one for one in alike if one is not None]
    return round(fmean(known), 6) if known and len(known) == len(alike) else None
