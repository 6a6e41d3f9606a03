"""Makes of what a case was answered the answer that is kept: scored, and with what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.evaluation.arithmetic import answer_tflop
from cluster.evaluation.arms import EvalArm
from cluster.evaluation.cases import EvalTask
from cluster.evaluation.metrics import cut_short
from cluster.evaluation.preparing import PreparedCase
from shared.generation.modes import ReuseMode
from shared.generation.told import SelectedEvent, TokenEvent, Usage
from shared.measuring.shapes import Shape

TOP = 64
"""Tokens whose probabilities are compared one by one."""


@dataclass(frozen=True, slots=True)
class EvalAnswer:
    """
    task, case: their names; mode: label of the arm.
    kl: divergence of the first token's distribution from that of ``full``, in nats, over the ``TOP`` tokens
    that are likeliest there and the rest as one.
    num_tokens: of the chunks; computed: of them, computed for this answer, a mean over layers.
    found: share of the references' own tokens in the context that are among these; None where none stands
    there in one piece.
    cut_short: of a task of numbers, the share of them that were told in part (``metrics.cut_short``).
    tflop: of the model that answers (``arithmetic``).
    seconds: of all answers that were asked at once, by their number; what an auxiliary takes is not in it. Of
    a running system: from the request's arrival, everything.
    """

    task: str
    case: str
    mode: str
    score: float
    text: str
    kl: float
    num_tokens: int
    computed: float
    found: float | None
    cut_short: float | None
    tflop: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Told:
    """Answer to one request. ``first``: its first token."""

    text: str
    first: TokenEvent
    selection: SelectedEvent
    usage: Usage


def graded(
    task: EvalTask, one: PreparedCase, arm: EvalArm, told: Told, kl: float, seconds: float, shape: Shape
) -> EvalAnswer:
    mode, usage = arm.mode or ReuseMode.FULL, told.usage
    num_tokens = one.num_tokens(arm)
    computed = float(usage.selected_tokens) if mode.row.stored else float(num_tokens)
    found = None
    if one.value_tokens and mode.row.stored:
        found = len(one.value_tokens.intersection(told.selection.tokens)) / len(one.value_tokens)
    return EvalAnswer(
        task.name,
        one.case.name,
        arm.label,
        task.metric.score(told.text, one.case.references),
        told.text,
        kl,
        num_tokens,
        computed,
        found,
        cut_short(told.text, one.case.references) if task.numbers else None,
        answer_tflop(shape, mode, usage, len(one.question_ids)),
        seconds,
    )
