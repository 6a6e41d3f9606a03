"""Prepares what training takes of a model as it is served: its prompt, its chunks, its type of weights, and
what the teacher of a pupil says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from cluster.training.contexts import ContextMaker
from cluster.training.examples import Example
from cluster.training.mix import ExampleKind, by_kind, mixed
from cluster.training.run import Say
from services.ingestion.config import IngestionConfig
from services.training.devices import prepare_device
from services.training.distillation.kept import Kept
from services.training.distillation.lessons import AskedContext, DistilledLesson
from services.training.distillation.settings import DistillationSettings
from services.training.distillation.teacher import Progress, Teacher, TeacherPasses
from services.training.mixture import Mixture
from services.training.workers import Workers
from shared.engine import load_model
from shared.engine.model.model import LoadedModel
from shared.errors import ConfigError
from shared.prompt import PromptTokenizer

KEPT = "cache"


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """``num_chunks``, ``num_questions``: most of a context; ``best_last``: its best chunk stands last.
    ``base``: the model's name, for readers."""

    ingestion: IngestionConfig
    base: str = ""
    dtype: str = "auto"
    device: str = "cpu"
    num_chunks: int = 6
    num_questions: int = 8
    best_last: bool = False

    def prompts(self) -> PromptTokenizer:
        """
        Raises:
            ConfigError: the model has no tokenizer, or is served with packets.
        """
        if self.ingestion.prompt.packets:
            raise ConfigError("prompt.packets: a model is trained without packets; leave it out")
        prompts = PromptTokenizer.of_model(self.ingestion.model, self.ingestion.prompt)
        if prompts is None:
            raise ConfigError(f"--model: {self.ingestion.model} has no tokenizer; its questions are text")
        return prompts

    def contexts(
        self, examples: Iterable[Example], prompts: PromptTokenizer, seed: int
    ) -> list[AskedContext]:
        """
        Raises:
            ConfigError, UnreadableDocument: see ``ContextMaker``.
        """
        return list(self.maker(prompts, seed).contexts(examples))

    def maker(self, prompts: PromptTokenizer, seed: int) -> ContextMaker:
        """
        Raises:
            ConfigError: see ``ContextMaker``.
        """
        return ContextMaker(
            prompts, self.ingestion, self.num_chunks, self.num_questions, seed, self.best_last
        )

    def load(self, prompts: PromptTokenizer) -> LoadedModel:
        """
        Raises:
            ConfigError, ModelUnsupported: it cannot be loaded so.
        """
        prepare_device(torch.device(self.device))
        model = load_model(self.ingestion.model, dtype=self.dtype, device=self.device, pack=False)
        model.end_also_at(prompts.end_ids)
        return model


@dataclass(frozen=True, slots=True)
class Distillation:
    """What every pupil is trained with. ``kept``: where what was computed once lies."""

    model: LoadedModel
    prompts: PromptTokenizer
    lessons: Sequence[DistilledLesson] | Mixture[DistilledLesson]
    kept: Kept

    @property
    def mixture(self) -> tuple[str, ...]:
        """Lines that tell what it is trained on, where there are kinds."""
        return self.lessons.told() if isinstance(self.lessons, Mixture) else ()


def distil(
    served: TrainedModel,
    examples: Iterable[Example | ExampleKind[Example]],
    settings: DistillationSettings,
    out: Path,
    on_progress: Progress,
    say: Say,
    workers: Workers | None = None,
    keeps_kv: bool = True,
) -> Distillation:
    """Has the teacher say what it knows. ``say``: is told of kinds, and when memory runs out; ``keeps_kv``:
    see ``Teacher``.

    Raises:
        ConfigError, InvalidRequest, ModelUnsupported: the model, a setting or an example cannot be used.
    """
    prompts = served.prompts()
    kinds, groups = by_kind(examples)
    contexts = [served.contexts(group, prompts, settings.seed) for group in groups]
    model = served.load(prompts)
    kept = Kept.at(out / KEPT, model.fingerprint, prompts.prefix_ids)
    passes = TeacherPasses.telling(say)
    teacher = Teacher(model, prompts.prefix_ids, settings, kept, prompts.decode, keeps_kv, passes)
    lessons = iter(teacher.lessons([one for group in contexts for one in group], on_progress, workers))
    found = [list(islice(lessons, len(group))) for group in contexts]
    return Distillation(model, prompts, mixed(kinds, found, settings, say), kept)
