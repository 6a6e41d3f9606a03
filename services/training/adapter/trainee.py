"""An adapter as the training loop trains it: its loss is the divergence from the teacher, or the
cross-entropy of labelled answers, over stored chunks whose keys and values are known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from services.training.adapter.lora import TrainedAdapter
from services.training.adapter.settings import AdapterSettings, AdapterTarget
from services.training.distillation.kept import Kept
from services.training.distillation.lessons import DistilledLesson, Taught
from services.training.distillation.segments import KnownSegments
from services.training.known_kv import segments_of
from services.training.mixture import mixture_facts
from services.training.sight import on_device
from services.training.trainee import LossTally
from services.training.twin import TwinStep
from services.training.twin_request import Ids, KnownKv
from shared.engine.model.lora import AdapterFacts
from shared.engine.model.lora_files import write_adapter
from shared.engine.model.model import LoadedModel
from shared.kv_types import KvContext


@dataclass(frozen=True, slots=True)
class Pupil:
    """The model that an adapter is trained for, behind a prefix, over chunks computed as ``kv_context`` says.
    ``base``: the model's name, for readers; ``mixture``: lines that tell what it is trained on, where there
    are kinds."""

    model: LoadedModel
    prefix_ids: Ids
    kv_context: KvContext
    base: str = ""
    mixture: tuple[str, ...] = ()


class AdapterTrainee:
    """Learns to say over stored chunks what the teacher said, or what labelled answers say. ``kept``: keys
    and values of the chunks.

    Raises:
        ConfigError: targets that the model does not have.
    """

    untrained = "without the adapter"

    def __init__(self, pupil: Pupil, settings: AdapterSettings, kept: Kept) -> None:
        self.measure = "cross-entropy" if settings.target is AdapterTarget.ANSWERS else "KL"
        self.adapter = TrainedAdapter(pupil.model, settings)
        self._pupil, self._settings = pupil, settings
        self._prefix, _ = segments_of(pupil.model, pupil.prefix_ids, ())
        self._segments = KnownSegments(pupil.model, pupil.prefix_ids, kept)

    def parameters(self) -> Iterator[Tensor]:
        return self.adapter.parameters()

    def state(self) -> dict[str, Tensor]:
        return self.adapter.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.adapter.load(state)

    def made_of(self) -> dict[str, str]:
        return {
            "model": self._pupil.model.fingerprint,
            "kv_context": self._pupil.kv_context.value,
            "prompt": hashlib.sha256(repr(self._pupil.prefix_ids).encode()).hexdigest()[:16],
            **mixture_facts(self._pupil.mixture),
        }

    def loss(self, lessons: Sequence[DistilledLesson]) -> Tensor:
        taught, logits_AV = self._answers(lessons)
        return taught.divergence(logits_AV).sum()

    def evaluate(self, lessons: Sequence[DistilledLesson]) -> LossTally:
        taught, logits_AV = self._answers(lessons)
        apart, alike = taught.divergence(logits_AV).sum(), taught.agreement(logits_AV).sum()
        loss, num_alike = torch.stack([apart, alike.to(apart)]).tolist()
        return LossTally(loss, num_alike, len(taught.answer))

    def release(self) -> None:
        self._segments.clear()

    def write(self, out: Path, state: Mapping[str, Tensor], recipe: Mapping[str, str]) -> None:
        recipe = {**recipe, **mixture_facts(self._pupil.mixture)}
        facts = AdapterFacts(self._pupil.model.fingerprint, self._pupil.kv_context, recipe)
        write_adapter(self.adapter.adapter(out.name, self._pupil.base, facts, state), out)

    def _answers(self, lessons: Sequence[DistilledLesson]) -> tuple[Taught, Tensor]:
        """All answers that are learned, and the pupil's logits in front of every token of them, of all
        questions of these contexts in one pass."""
        model, prefix_ids = self._pupil.model, self._pupil.prefix_ids
        requests = [lesson.request(prefix_ids, self._settings.reuse) for lesson in lessons]
        known = [
            KnownKv(self._prefix, tuple(map(self._segments.of, lesson.context.chunks))) for lesson in lessons
        ]
        step = TwinStep(requests, model.spec, known)
        step.adapt(self.adapter.weights())
        hidden_RE = model.forward(step)
        taught = [one for lesson in lessons for one in lesson.taught]
        branches = [branch for rows in step.rows for branch in rows.branches]
        rows = [
            row for one, branch in zip(taught, branches, strict=True) for row in branch[-len(one.answer) :]
        ]
        index = on_device(np.array(rows), model.spec.device)
        return Taught.joined(taught), model.logits(hidden_RE.index_select(0, index))
