"""Trains an adapter for a model as it is served: its prompt, its chunks, its type of weights."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from cluster.training.contexts import ContextMaker
from cluster.training.examples import Example
from services.ingestion.config import IngestionConfig
from services.training.adapter.kept import Kept
from services.training.adapter.settings import AdapterSettings
from services.training.adapter.teacher import Progress, Teacher
from services.training.adapter.trainer import AdapterTrainer, Closeness, Pupil
from shared.engine import load_model
from shared.errors import ConfigError
from shared.prompt import PromptTokenizer

Say = Callable[[str], None]
KEPT = "cache"


@dataclass(frozen=True, slots=True)
class AdapterTask:
    """``num_chunks``, ``num_questions``: most of a context. ``base``: the model's name, for readers."""

    ingestion: IngestionConfig
    settings: AdapterSettings
    out: Path
    base: str = ""
    dtype: str = "auto"
    device: str = "cpu"
    num_chunks: int = 6
    num_questions: int = 8

    def trainer(self, examples: Iterable[Example], on_progress: Progress, say: Say) -> AdapterTrainer:
        """Has the teacher say what it knows, and goes on from a checkpoint, if there is one.

        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: the model, a setting or an example cannot be used.
        """
        prompts = PromptTokenizer.of_model(self.ingestion.model, self.ingestion.prompt)
        if prompts is None:
            raise ConfigError(f"--model: {self.ingestion.model} has no tokenizer; its questions are text")
        maker = ContextMaker(prompts, self.ingestion, self.num_chunks, self.num_questions, self.settings.seed)
        contexts = list(maker.contexts(examples))
        model = load_model(self.ingestion.model, dtype=self.dtype, device=self.device, pack=False)
        model.end_also_at(prompts.end_ids)
        kept = Kept.at(self.out / KEPT, model.fingerprint, prompts.prefix_ids)
        teacher = Teacher(model, prompts.prefix_ids, self.settings, kept, prompts.decode)
        lessons = teacher.lessons(contexts, on_progress)
        pupil = Pupil(model, prompts.prefix_ids, self.ingestion.kv_context, self.base)
        trainer = AdapterTrainer(pupil, lessons, self.settings, kept, self.out, say)
        if trainer.resume():
            say(f"goes on at update {trainer.update} of {self.settings.updates}")
        return trainer


def train(trainer: AdapterTrainer, say: Say) -> None:
    """Up to the last update. Tells of the loss, of evaluations meanwhile, and of the best one.

    Raises:
        KeyboardInterrupt: it was interrupted, and there is a checkpoint.
    """
    settings, began, first = trainer.settings, time.monotonic(), trainer.update

    def on_update(found: Closeness | None) -> None:
        if found is None:
            return
        per_update = (time.monotonic() - began) / (trainer.update - first)
        recent = trainer.losses[-settings.evaluate_every :]
        say(
            f"update {trainer.update}/{settings.updates}  loss {sum(recent) / len(recent):.4f}  held out: "
            f"{found} (without: {trainer.before})  {per_update:.2f} s per update"
        )

    with interruptible() as interrupted:
        trainer.train(on_update, interrupted)
    if not trainer.done:
        say(f"checkpoint at update {trainer.update} in {trainer.out}; the same command goes on from there")
        raise KeyboardInterrupt
    best, before = trainer.best, trainer.before
    assert best is not None
    assert before is not None
    say(f"best at update {best.update}: {best.closeness}; without the adapter: {before}")
    if best.closeness.divergence >= before.divergence:
        say("so it helps nothing here: more contexts, a lower --lr or another --kv-context may")


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
