"""The training of an adapter: updates, evaluation meanwhile, checkpoints. Equal settings, contexts and model
give the same losses and the same weights, in one go or in several.

``out`` holds the adapter as it was when it was closest to the teacher (PEFT's files): it may learn its
contexts by heart and leave others. Beside it are ``checkpoint.pt`` with all that it takes to go on, and
``losses.jsonl`` with a line per update.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.training.adapter.kept import Kept
from services.training.adapter.lessons import Lesson, Taught
from services.training.adapter.lora import TrainedAdapter
from services.training.adapter.settings import AdapterSettings
from services.training.known_kv import segments_of
from services.training.twin import TwinStep
from services.training.twin_request import Ids, KnownKv, SegmentKv
from shared.engine.model.adapting import AdapterWeights
from shared.engine.model.lora import AdapterFacts
from shared.engine.model.lora_files import write_adapter
from shared.engine.model.model import LoadedModel
from shared.errors import ConfigError
from shared.kv_types import KvContext

CHECKPOINT, LOSSES = "checkpoint.pt", "losses.jsonl"
_KEPT_IN_MEMORY = 512  # segments


@dataclass(frozen=True, slots=True)
class Pupil:
    """What an adapter is trained for: a model behind a prefix, over chunks computed as ``kv_context`` says.
    ``base``: the model's name, for readers."""

    model: LoadedModel
    prefix_ids: Ids
    kv_context: KvContext
    base: str = ""


@dataclass(frozen=True, slots=True)
class Closeness:
    """Over contexts that are not trained on: mean KL to the teacher per token of its answers, and the share
    of these tokens that are the likeliest of both."""

    divergence: float
    agreement: float

    def __str__(self) -> str:
        return f"KL {self.divergence:.4f}, agreement {self.agreement:.1%}"


@dataclass(frozen=True, slots=True)
class Best:
    """The adapter at the evaluation that was closest."""

    update: int
    closeness: Closeness
    state: dict[str, Tensor]


class AdapterTrainer:
    """``say`` is told of what the caller should know beside the losses.

    Raises:
        ConfigError: too few contexts; targets that the model does not have.
    """

    def __init__(
        self,
        pupil: Pupil,
        lessons: Sequence[Lesson],
        settings: AdapterSettings,
        kept: Kept,
        out: Path,
        say: Callable[[str], None],
    ) -> None:
        if len(lessons) < 2:
            raise ConfigError("data: it takes two contexts at least, one to train on and one to evaluate")
        self.settings, self.update, self.out = settings, 0, out
        self.adapter = TrainedAdapter(pupil.model, settings)
        self.before: Closeness | None = None
        self.best: Best | None = None
        self.losses: list[float] = []
        self._pupil, self._kept, self._say = pupil, kept, say
        shuffled = random.Random(f"{settings.seed} contexts").sample(list(lessons), len(lessons))
        num_held_out = min(len(lessons) - 1, max(1, round(settings.held_out * len(lessons))))
        self._held_out, self._lessons = shuffled[:num_held_out], shuffled[num_held_out:]
        self._optimizer = torch.optim.AdamW(
            self.adapter.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0
        )
        self._together = min(settings.contexts_per_update, len(self._lessons))
        """Contexts of one pass."""
        self._prefix, _ = segments_of(pupil.model, pupil.prefix_ids, ())
        self._segment = lru_cache(_KEPT_IN_MEMORY)(self._read_segment)
        self._order = lru_cache(2)(self._shuffled)

    @property
    def done(self) -> bool:
        return self.update >= self.settings.updates

    def train(self, on_update: Callable[[Closeness | None], None], interrupted: Callable[[], bool]) -> None:
        """Up to the last update, or until interrupted; then there is a checkpoint. ``on_update`` is told how
        close it is, where that was evaluated."""
        if self.before is None:
            self.before = self.evaluate()
        while not self.done and not interrupted():
            self.train_update()
            on_update(self._look())
            if self.update % self.settings.checkpoint_every == 0:
                self.save()
        self.save()

    def train_update(self) -> float:
        """One update of the weights. Returns the mean KL per token in front of it."""
        lessons = list(self._drawn())
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(self.update)
        while True:
            try:
                loss = self._backward(lessons)
                break
            except (RuntimeError, MemoryError) as error:
                if not _out_of_memory(error):
                    raise
                self._halve()
        self._optimizer.step()
        self.update += 1
        self.losses.append(loss)
        return loss

    def _look(self) -> Closeness | None:
        if self.update % self.settings.evaluate_every and not self.done:
            return None
        found = self.evaluate()
        if self.best is None or found.divergence < self.best.closeness.divergence:
            state = {name: x.detach().clone() for name, x in self.adapter.state().items()}
            self.best = Best(self.update, found, state)
        return found

    @torch.no_grad()
    def evaluate(self) -> Closeness:
        """With the adapter as it is now."""
        weights = self.adapter.weights()
        apart, alike = [], []
        for lesson in self._held_out:
            for taught, logits_AV in self._answers([lesson], weights):
                apart.append(taught.divergence(logits_AV))
                alike.append(taught.agreement(logits_AV))
        return Closeness(float(torch.cat(apart).mean()), float(torch.cat(alike).float().mean()))

    def save(self) -> None:
        """The adapter at its best, as it is if it was never evaluated, and all that it takes to go on."""
        self.out.mkdir(parents=True, exist_ok=True)
        facts = AdapterFacts(
            self._pupil.model.fingerprint,
            self._pupil.kv_context,
            {
                **{k: _told(v) for k, v in asdict(self.settings).items()},
                "update": f"{self.best.update if self.best else self.update}",
            },
        )
        state = self.best.state if self.best else self.adapter.state()
        write_adapter(self.adapter.adapter(self.out.name, self._pupil.base, facts, state), self.out)
        losses = (json.dumps({"update": i + 1, "loss": loss}) + "\n" for i, loss in enumerate(self.losses))
        (self.out / LOSSES).write_text("".join(losses), encoding="utf-8")
        checkpoint = {
            "of": self._of(),
            "update": self.update,
            "adapter": self.adapter.state(),
            "optimizer": self._optimizer.state_dict(),
            "losses": self.losses,
            "together": self._together,
            "before": self.before and asdict(self.before),
            "best": self.best and (self.best.update, asdict(self.best.closeness), self.best.state),
        }
        written = self.out / f"{CHECKPOINT}.new"
        torch.save(checkpoint, written)
        written.replace(self.out / CHECKPOINT)

    def resume(self) -> bool:
        """Goes on from the checkpoint in ``out``, if there is one.

        Raises:
            ConfigError: it was made otherwise, names by what; or cannot be read.
        """
        path = self.out / CHECKPOINT
        if not path.is_file():
            return False
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
            of = state["of"]
        except Exception as error:  # torch raises whatever the bytes lead to
            raise ConfigError(
                f"{path}: is no checkpoint of an adapter; remove it, or name another folder"
            ) from error
        for name, value in self._of().items():
            if of.get(name) != value:
                raise ConfigError(
                    f"{path}: was made with {name} {of.get(name)!r}, not {value!r}; give the same, or name "
                    "another folder"
                )
        self.adapter.load(state["adapter"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.update, self.losses, self._together = state["update"], state["losses"], state["together"]
        self.before = state["before"] and Closeness(**state["before"])
        if state["best"]:
            update, closeness, weights = state["best"]
            self.best = Best(update, Closeness(**closeness), weights)
        return True

    def _of(self) -> dict[str, str]:
        """What must be the same to go on."""
        contexts = [(one.context, [taught.answer for taught in one.taught]) for one in self._lessons]
        return {
            **{name: _told(value) for name, value in asdict(self.settings).items()},
            "model": self._pupil.model.fingerprint,
            "kv_context": self._pupil.kv_context.value,
            "data": hashlib.sha256(repr((self._pupil.prefix_ids, contexts)).encode()).hexdigest()[:16],
        }

    def _drawn(self) -> Iterator[Lesson]:
        """The contexts of this update: one epoch behind the other, each in an order of its own."""
        for i in range(self.settings.contexts_per_update):
            epoch, place = divmod(self.update * self.settings.contexts_per_update + i, len(self._lessons))
            yield self._lessons[self._order(epoch)[place]]

    def _shuffled(self, epoch: int) -> list[int]:
        numbers = range(len(self._lessons))
        return random.Random(f"{self.settings.seed} epoch {epoch}").sample(numbers, len(numbers))

    def _backward(self, lessons: Sequence[Lesson]) -> float:
        self._optimizer.zero_grad(set_to_none=True)
        num_tokens, loss = sum(lesson.num_tokens for lesson in lessons), 0.0
        for first in range(0, len(lessons), self._together):
            answers = self._answers(lessons[first : first + self._together], self.adapter.weights())
            part = sum(taught.divergence(logits_AV).sum() for taught, logits_AV in answers) / num_tokens
            assert isinstance(part, Tensor)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
        return loss

    def _answers(self, lessons: Sequence[Lesson], weights: AdapterWeights) -> Iterator[tuple[Taught, Tensor]]:
        """The pupil's logits in front of every token of the teacher's answers, of all questions of these
        contexts in one pass."""
        model, prefix_ids = self._pupil.model, self._pupil.prefix_ids
        requests = [lesson.request(prefix_ids, self.settings.reuse) for lesson in lessons]
        known = [KnownKv(self._prefix, tuple(map(self._segment, one.context.chunks))) for one in lessons]
        step = TwinStep(requests, model.spec, known)
        step.adapt(weights)
        hidden_RE = model.forward(step)
        for lesson, rows in zip(lessons, step.rows, strict=True):
            for taught, branch in zip(lesson.taught, rows.branches, strict=True):
                answer = branch[-len(taught.answer) :]
                yield taught, model.logits(hidden_RE[answer.start : answer.stop]).cpu()

    def _read_segment(self, chunk: Any) -> SegmentKv:
        segment = self._kept.segment(chunk)
        if segment is None:  # removed or broken meanwhile
            _, (segment,) = segments_of(self._pupil.model, self._pupil.prefix_ids, [chunk])
            self._kept.keep_segment(chunk, segment)
        return segment

    def _halve(self) -> None:
        """
        Raises:
            ConfigError: there is one context in a pass already.
        """
        self._optimizer.zero_grad(set_to_none=True)
        self._segment.cache_clear()
        if self._together == 1:
            raise ConfigError(
                "out of memory with one context in a pass; give fewer or shorter chunks, fewer questions per "
                "context, a smaller rank, or a machine with more memory"
            )
        before, self._together = self._together, self._together // 2
        self._say(f"out of memory: from here on {self._together} contexts in a pass, not {before}")


def _out_of_memory(error: Exception) -> bool:
    """On a CPU torch says so by text alone."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)


def _told(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
