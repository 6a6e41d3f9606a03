"""The training loop of every recipe: updates, evaluation meanwhile, checkpoints. Equal settings, lessons and
model give the same losses and the same weights, in one go or in several.

It knows nothing of what is trained (``trainee``). ``out`` holds that as it was at its best evaluation: it may
learn its contexts by heart and leave others. Beside it are ``checkpoint.pt`` with all that it takes to go on,
and ``losses.jsonl`` with a line per update.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from services.training.curriculum import Curriculum, Shuffled
from services.training.loop_settings import LoopSettings
from services.training.trainee import HeldOutLoss, LessonT, LossTally, Trainee
from services.training.workers import Alone, Workers
from shared.engine.model.out_of_memory import is_out_of_memory
from shared.errors import ConfigError
from shared.whole_files import replacing

CHECKPOINT, LOSSES = "checkpoint.pt", "losses.jsonl"
_PER_PASS = "contexts_per_pass"
"""May be another one when training goes on: memory may have run out in a way that ends the process."""
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Best:
    """Parameters at the evaluation with the lowest loss."""

    update: int
    evaluation: HeldOutLoss
    state: dict[str, Tensor]


class TrainingLoop(Generic[LessonT]):
    """``lessons``: in an order of their own, or drawn as the loop has it. ``say`` is told of what the caller
    should know beside the losses.

    Raises:
        ConfigError: too few contexts.
    """

    def __init__(
        self,
        trainee: Trainee[LessonT],
        lessons: Sequence[LessonT] | Curriculum[LessonT],
        settings: LoopSettings,
        out: Path,
        say: Callable[[str], None],
        workers: Workers | None = None,
    ) -> None:
        self.trainee, self.settings, self.out, self.update = trainee, settings, out, 0
        self.before: HeldOutLoss | None = None
        self.best: Best | None = None
        self.losses: list[float] = []
        self._workers, self._say = workers or Alone(), say
        self._curriculum = Shuffled(lessons, settings) if isinstance(lessons, Sequence) else lessons
        self.held_out, self.lessons = self._curriculum.held_out, self._curriculum.lessons
        self._parameters = list(trainee.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=settings.lr,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
            fused=self._parameters[0].is_cuda or None,
        )
        most = min(settings.contexts_per_update, len(self.lessons))
        self._together = min(settings.contexts_per_pass or most, most)
        """Contexts of one pass."""

    @property
    def done(self) -> bool:
        return self.update >= self.settings.updates

    def train(self, on_update: Callable[[HeldOutLoss | None], None], interrupted: Callable[[], bool]) -> None:
        """Up to the last update, or until any worker is interrupted; then there is a checkpoint.
        ``on_update`` is told what was found, where that was evaluated."""
        if self.before is None:
            self.before = self.evaluate()
        while not self.done and not self._anywhere(interrupted()):
            self.train_update()
            on_update(self._look())
            if self.update % self.settings.checkpoint_every == 0:
                self.save()
        self.save()

    def train_update(self) -> float:
        """One update of the weights. Returns the mean loss per token in front of it."""
        lessons = list(self._curriculum.drawn(self.update, self.settings.contexts_per_update))
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(self.update)
        loss = self._fitting(lambda: self._backward(lessons))
        self._workers.add_up([_gradient(x) for x in self._parameters])
        loss, *together = self._added(loss, *self._of_all(self._together))
        self._together = round(min(together))
        self._step()
        self.update += 1
        self.losses.append(loss)
        return loss

    def evaluate(self) -> HeldOutLoss:
        """As it is now."""
        kinds = self._curriculum.held_out_kinds
        parts = list(kinds.values()) or [self.held_out]
        mine = [part[self._workers.rank :: self._workers.count] for part in parts]
        tallied = [self._fitting(partial(self._tallied, some)) for some in mine]
        added = self._added(*(number for tally in tallied for number in tally))
        losses, alike, tokens = added[::3], added[1::3], added[2::3]
        of_kinds = {kind: losses[i] / tokens[i] for i, kind in enumerate(kinds)}
        return HeldOutLoss(sum(losses) / sum(tokens), sum(alike) / sum(tokens), of_kinds)

    def save(self) -> None:
        """Saves what is trained at its best, as it is if it was never evaluated, and all that it takes to go
        on."""
        if self._workers.rank:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        best = self.best or Best(self.update, HeldOutLoss(0, 0), dict(self.trainee.state()))
        self.trainee.write(self.out, best.state, {**self.settings.told(), "update": f"{best.update}"})
        losses = (json.dumps({"update": i + 1, "loss": loss}) + "\n" for i, loss in enumerate(self.losses))
        (self.out / LOSSES).write_text("".join(losses), encoding="utf-8")
        checkpoint = {
            "of": self._of(),
            "update": self.update,
            "state": dict(self.trainee.state()),
            "optimizer": self._optimizer.state_dict(),
            "losses": self.losses,
            "together": self._together,
            "before": self.before and asdict(self.before),
            "best": self.best and (self.best.update, asdict(self.best.evaluation), self.best.state),
        }
        with replacing(self.out / CHECKPOINT) as file:
            torch.save(checkpoint, file)

    def resume(self) -> bool:
        """Goes on from the checkpoint in ``out``, if there is one, and says so.

        Raises:
            ConfigError: it was made otherwise, names by what; or cannot be read.
        """
        path = self.out / CHECKPOINT
        if not path.is_file():
            return False
        try:
            saved: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
            of, state = saved["of"], saved["state"]
        except Exception as error:  # torch raises whatever the bytes lead to
            raise ConfigError(
                f"{path}: is no checkpoint of this training; remove it, or name another folder"
            ) from error
        for name, value in self._of().items():
            if of.get(name) != value and name != _PER_PASS:
                raise ConfigError(
                    f"{path}: was made with {name} {of.get(name)!r}, not {value!r}; give the same, or name "
                    "another folder"
                )
        self.trainee.load(state)
        self._optimizer.load_state_dict(saved["optimizer"])
        self.update, self.losses = saved["update"], saved["losses"]
        if of.get(_PER_PASS) == self._of()[_PER_PASS]:
            self._together = saved["together"]
        self.before = saved["before"] and HeldOutLoss(**saved["before"])
        if saved["best"]:
            update, evaluation, weights = saved["best"]
            self.best = Best(update, HeldOutLoss(**evaluation), weights)
        self._say(f"goes on at update {self.update} of {self.settings.updates}")
        return True

    def _of(self) -> dict[str, str]:
        """Returns what must be the same to go on."""
        lessons = repr([lesson.identity for lesson in (*self.held_out, *self.lessons)])
        return {
            **self.settings.told(),
            **self.trainee.made_of(),
            "data": hashlib.sha256(lessons.encode()).hexdigest()[:16],
        }

    def _look(self) -> HeldOutLoss | None:
        if self.update % self.settings.evaluate_every and not self.done:
            return None
        found = self.evaluate()
        if self.best is None or found.loss < self.best.evaluation.loss:
            state = {
                name: x.detach().to("cpu", copy=True).clone() for name, x in self.trainee.state().items()
            }
            self.best = Best(self.update, found, state)
        return found

    def _backward(self, lessons: Sequence[LessonT]) -> float:
        """Of this worker's share of the lessons; the loss is read off the device once, behind all passes."""
        self._optimizer.zero_grad(set_to_none=True)
        num_tokens = sum(lesson.num_tokens for lesson in lessons)
        parts = []
        for some in self._passes(lessons[self._workers.rank :: self._workers.count]):
            part = self.trainee.loss(some) / num_tokens
            part.backward()  # type: ignore[no-untyped-call]
            parts.append(part.detach())
        return sum(torch.stack(parts).tolist()) if parts else 0.0

    @torch.no_grad()
    def _tallied(self, lessons: Sequence[LessonT]) -> tuple[float, float, float]:
        tallies = [self.trainee.evaluate(some) for some in self._passes(lessons)] or [LossTally(0, 0, 0)]
        return (
            sum(tally.loss for tally in tallies),
            sum(tally.num_alike for tally in tallies),
            sum(tally.num_tokens for tally in tallies),
        )

    def _step(self) -> None:
        """Which is the first to need the optimizer's own memory.

        Raises:
            ConfigError: there is too little; the checkpoint is that of before.
        """
        try:
            self._optimizer.step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                "out of memory for the optimizer, which keeps two numbers for each trained one; give less "
                "to train (such as a smaller rank), or a machine with more memory"
            ) from error

    def _passes(self, lessons: Sequence[LessonT]) -> Iterator[Sequence[LessonT]]:
        for first in range(0, len(lessons), self._together):
            yield lessons[first : first + self._together]

    def _fitting(self, compute: Callable[[], ResultT]) -> ResultT:
        """With fewer contexts in a pass when memory runs out, all over again."""
        while True:
            try:
                return compute()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            self._halve()  # when the frames of the error have let go of their tensors

    def _halve(self) -> None:
        """
        Raises:
            ConfigError: there is one context in a pass already.
        """
        self._optimizer.zero_grad(set_to_none=True)
        if self.trainee.release():
            self._say("out of memory: from here on more is computed again, and less kept")
            return
        if self._together == 1:
            raise ConfigError(
                "out of memory with one context in a pass; give fewer or shorter chunks, fewer questions per "
                "context, less to train (such as a smaller rank), or a machine with more memory"
            )
        before, self._together = self._together, self._together // 2
        self._say(f"out of memory: from here on {self._together} contexts in a pass, not {before}")

    def _anywhere(self, told: bool) -> bool:
        (count,) = self._added(float(told))
        return count > 0

    def _of_all(self, mine: float) -> list[float]:
        """This worker's number among zeros, whose sum over all workers are the numbers of all."""
        return [mine if rank == self._workers.rank else 0.0 for rank in range(self._workers.count)]

    def _added(self, *numbers: float) -> list[float]:
        tensor = torch.tensor(numbers, dtype=torch.float64)
        self._workers.add_up([tensor])
        added: list[float] = tensor.tolist()
        return added


def _gradient(parameter: Tensor) -> Tensor:
    """Of zeros, where no lesson of this worker reaches it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
