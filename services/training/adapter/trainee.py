"""An adapter as the training loop trains it: its loss is the divergence from the teacher, over stored chunks
whose keys and values are known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from services.training.adapter.lora import TrainedAdapter
from services.training.adapter.settings import AdapterSettings
from services.training.distillation.kept import Kept
from services.training.distillation.lessons import DistilledLesson, Taught
from services.training.known_kv import segments_of
from services.training.trainee import Tally
from services.training.twin import TwinStep
from services.training.twin_request import Ids, KnownKv, PlacedChunk, SegmentKv
from shared.engine.model.lora import AdapterFacts
from shared.engine.model.lora_files import write_adapter
from shared.engine.model.model import LoadedModel
from shared.kv_types import KvContext

_KEPT_IN_MEMORY = 512  # segments


@dataclass(frozen=True, slots=True)
class Pupil:
    """What an adapter is trained for: a model behind a prefix, over chunks computed as ``kv_context`` says.
    ``base``: the model's name, for readers."""

    model: LoadedModel
    prefix_ids: Ids
    kv_context: KvContext
    base: str = ""


class AdapterTrainee:
    """Learns to say over stored chunks what the teacher said. ``kept``: keys and values of these.

    Raises:
        ConfigError: targets that the model does not have.
    """

    measure, untrained = "KL", "without the adapter"

    def __init__(self, pupil: Pupil, settings: AdapterSettings, kept: Kept) -> None:
        self.adapter = TrainedAdapter(pupil.model, settings)
        self._pupil, self._settings, self._kept = pupil, settings, kept
        self._prefix, _ = segments_of(pupil.model, pupil.prefix_ids, ())
        self._segment = lru_cache(_KEPT_IN_MEMORY)(self._read_segment)

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
        }

    def loss(self, lessons: Sequence[DistilledLesson]) -> Tensor:
        parts = [taught.divergence(logits_AV).sum() for taught, logits_AV in self._answers(lessons)]
        return torch.stack(parts).sum()

    def evaluate(self, lessons: Sequence[DistilledLesson]) -> Tally:
        apart, alike = [], []
        for taught, logits_AV in self._answers(lessons):
            apart.append(taught.divergence(logits_AV))
            alike.append(taught.agreement(logits_AV))
        loss, num_alike = torch.stack([torch.cat(apart).sum(), torch.cat(alike).float().sum()]).tolist()
        return Tally(loss, num_alike, sum(map(len, apart)))

    def release(self) -> None:
        self._segment.cache_clear()

    def write(self, out: Path, state: Mapping[str, Tensor], recipe: Mapping[str, str]) -> None:
        facts = AdapterFacts(self._pupil.model.fingerprint, self._pupil.kv_context, dict(recipe))
        write_adapter(self.adapter.adapter(out.name, self._pupil.base, facts, state), out)

    def _answers(self, lessons: Sequence[DistilledLesson]) -> Iterator[tuple[Taught, Tensor]]:
        """The pupil's logits in front of every token of the teacher's answers, of all questions of these
        contexts in one pass."""
        model, prefix_ids = self._pupil.model, self._pupil.prefix_ids
        requests = [lesson.request(prefix_ids, self._settings.reuse) for lesson in lessons]
        known = [KnownKv(self._prefix, tuple(map(self._segment, one.context.chunks))) for one in lessons]
        step = TwinStep(requests, model.spec, known)
        step.adapt(self.adapter.weights())
        hidden_RE = model.forward(step)
        for lesson, rows in zip(lessons, step.rows, strict=True):
            for taught, branch in zip(lesson.taught, rows.branches, strict=True):
                answer = branch[-len(taught.answer) :]
                yield taught, model.logits(hidden_RE[answer.start : answer.stop]).cpu()

    def _read_segment(self, chunk: PlacedChunk) -> SegmentKv:
        segment = self._kept.segment(chunk)
        if segment is None:  # removed or broken meanwhile
            _, (segment,) = segments_of(self._pupil.model, self._pupil.prefix_ids, [chunk])
            self._kept.keep_segment(chunk, segment)
        return segment
