"""Runs a training loop to its end, and tells how it goes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from services.training.loop import TrainingLoop
from services.training.trainee import HeldOutLoss, LessonT
from services.training.workers import Workers

Say = Callable[[str], None]
Progress = Callable[[int, int], None]


class TrainingTask(Protocol):
    """A recipe with its settings, which may go to other processes."""

    def loop(
        self, examples: Iterable[Any], on_progress: Progress, say: Say, workers: Workers | None = None
    ) -> TrainingLoop[Any]:
        """One of several ``workers`` shares its updates with the others."""
        ...


def train(loop: TrainingLoop[LessonT], say: Say) -> None:
    """Up to the last update. Tells of the loss, of evaluations meanwhile, and of the best one.

    Raises:
        KeyboardInterrupt: it was interrupted, and there is a checkpoint.
    """
    with interruptible() as interrupted:
        done = run_loop(loop, say, interrupted)
    if not done:
        raise KeyboardInterrupt


def run_loop(loop: TrainingLoop[LessonT], say: Say, interrupted: Callable[[], bool]) -> bool:
    """Returns whether it was not interrupted."""
    settings, began, first, trainee = loop.settings, time.monotonic(), loop.update, loop.trainee

    def told(found: HeldOutLoss | None) -> str:
        assert found is not None
        kinds = "".join(f", {kind} {loss:.4f}" for kind, loss in found.kinds.items())
        return f"{trainee.measure} {found.loss:.4f}{kinds}, agreement {found.agreement:.1%}"

    def on_update(found: HeldOutLoss | None) -> None:
        if found is None:
            return
        per_update = (time.monotonic() - began) / (loop.update - first)
        recent = loop.losses[-settings.evaluate_every :]
        say(
            f"update {loop.update}/{settings.updates}  loss {sum(recent) / len(recent):.4f}  held out: "
            f"{told(found)} ({trainee.untrained}: {told(loop.before)})  {per_update:.2f} s per update"
        )

    loop.train(on_update, interrupted)
    if not loop.done:
        say(f"checkpoint at update {loop.update} in {loop.out}; the same command goes on from there")
        return False
    best, before = loop.best, loop.before
    assert best is not None
    assert before is not None
    say(f"best at update {best.update}: {told(best.evaluation)}; {trainee.untrained}: {told(before)}")
    if best.evaluation.loss >= before.loss:
        say("so it helps nothing here: more contexts, a lower --lr or another --kv-context may")
    return True


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C or SIGTERM only tells; the second does what it always did."""
    numbers, told = (signal.SIGINT, signal.SIGTERM), []
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def tell(number: int, frame: FrameType | None) -> None:
        told.append(number)
        restore()

    for number in numbers:
        signal.signal(number, tell)
    try:
        yield lambda: bool(told)
    finally:
        restore()
