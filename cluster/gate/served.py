"""Leaves out of a comparison what the model is not served with, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from cluster.gate.answering import Models
from cluster.gate.modes import CACHECLIP, Comparison

BESIDE_PACKETS = "not served beside packets (prompt.packets)"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A mode, or a way of serving the model, that is not judged."""

    what: str
    why: str


def served_plan(plan: Comparison, models: Models) -> tuple[Comparison, tuple[LeftOut, ...]]:
    """``plan`` without what the engine would refuse."""
    left: list[LeftOut] = []
    if models.ingestion.prompt.packets:
        names = [*plan.controls, *(clip.label for clip in plan.clips)]
        left = [LeftOut(name, BESIDE_PACKETS) for name in names]
        plan = replace(plan, controls=(), clips=())
    elif plan.clips and not models.auxiliary:
        why = "no auxiliary model (selector.model) chooses for it"
        left = [LeftOut(CACHECLIP, f"{why}{'' if plan.as_served else '; the controls go by the ratio'}")]
        plan = replace(plan, clips=())
    return plan, tuple(left) if plan.ratios else ()


def say_left_out(left: Sequence[LeftOut], console: Console) -> None:
    """A line for each reason."""
    for why in dict.fromkeys(one.why for one in left):
        what = ", ".join(one.what for one in left if one.why == why)
        console.print(f"left out: {what}: {why}", style="yellow", soft_wrap=True)
