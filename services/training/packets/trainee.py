"""Packets as the training loop trains them: their loss is the divergence from the teacher, over chunks that
are computed between them in the same pass.

Shapes: P vectors of a packet, E hidden size, R rows, A tokens of all answers, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from services.training.distillation.lessons import DistilledLesson, Taught
from services.training.mixture import mixture_facts
from services.training.packets.settings import PacketSettings
from services.training.trainee import LossTally
from services.training.twin import TwinStep
from services.training.twin_request import Ids, PlacedChunk, TwinRequest
from shared.engine.model.model import LoadedModel
from shared.engine.model.packets import Packets, write_packets
from shared.packets import PacketFacts, PacketIds

_VECTORS = "vectors"


@dataclass(frozen=True, slots=True)
class PacketPupil:
    """The model that packets are trained for, behind a prefix. ``begin_ids``: whose embeddings they begin as,
    over and over; none: of any tokens. ``base``: the model's name; ``mixture``: lines that tell what they are
    trained on in which shares; both for readers."""

    model: LoadedModel
    prefix_ids: Ids
    begin_ids: Ids = ()
    base: str = ""
    mixture: tuple[str, ...] = ()


class PacketTrainee:
    """The vectors are float32, whatever the model's type is. Until a loss is taken chunks stand without them:
    what is evaluated before the first update is the model alone.
    """

    measure, untrained = "KL", "without packets"

    def __init__(self, pupil: PacketPupil, settings: PacketSettings) -> None:
        model = pupil.model
        self._pupil, self._settings = pupil, settings
        self._ids = PacketIds(model.spec.vocab_size, settings.num_header, settings.num_trailer)
        embedded_VE = model.hf_model.get_input_embeddings().weight
        self._vectors_PE = embedded_VE[self._begin_ids()].detach().float().clone().requires_grad_()
        self._begun = False

    def parameters(self) -> Iterator[Tensor]:
        yield self._vectors_PE

    def state(self) -> dict[str, Tensor]:
        return {_VECTORS: self._vectors_PE}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        self._vectors_PE.copy_(state[_VECTORS])
        self._begun = True

    def made_of(self) -> dict[str, str]:
        return {
            "model": self._pupil.model.base_fingerprint,
            "prompt": hashlib.sha256(repr(self._pupil.prefix_ids).encode()).hexdigest()[:16],
            **mixture_facts(self._pupil.mixture),
        }

    def loss(self, lessons: Sequence[DistilledLesson]) -> Tensor:
        self._begun = True
        taught, logits_AV = self._answers(lessons)
        return taught.divergence(logits_AV).sum()

    def evaluate(self, lessons: Sequence[DistilledLesson]) -> LossTally:
        taught, logits_AV = self._answers(lessons)
        found = torch.stack([taught.divergence(logits_AV).sum(), taught.agreement(logits_AV).float().sum()])
        loss, num_alike = found.tolist()
        return LossTally(loss, num_alike, len(logits_AV))

    def release(self) -> None:
        """Keeps nothing."""

    def write(self, out: Path, state: Mapping[str, Tensor], recipe: Mapping[str, str]) -> None:
        write_packets(self.packets(state, recipe), out)

    def packets(self, state: Mapping[str, Tensor], recipe: Mapping[str, str]) -> Packets:
        """Of what was its ``state``."""
        pupil, settings = self._pupil, self._settings
        facts = PacketFacts(
            pupil.model.base_fingerprint,
            pupil.model.spec.vocab_size,
            settings.num_header,
            settings.num_trailer,
            base=pupil.base,
            recipe={**recipe, **mixture_facts(pupil.mixture)},
        )
        return Packets(state[_VECTORS].detach().cpu().float(), facts)

    def _begin_ids(self) -> Tensor:
        if ids := self._pupil.begin_ids:
            return torch.tensor([ids[i % len(ids)] for i in range(len(self._ids))])
        generator = torch.Generator().manual_seed(self._settings.seed)
        return torch.randint(self._ids.first, (len(self._ids),), generator=generator)

    def _answers(self, lessons: Sequence[DistilledLesson]) -> tuple[Taught, Tensor]:
        """The pupil's logits in front of every token of the teacher's answers, of all questions of these
        contexts in one pass, and what the teacher says of all of them."""
        model = self._pupil.model
        step = TwinStep([self._request(lesson) for lesson in lessons], model.spec)
        with self._vectors_in_place():
            hidden_RE = model.forward(step)
        taught = [one for lesson in lessons for one in lesson.taught]
        branches = [branch for rows in step.rows for branch in rows.branches]
        rows_A = [
            row for one, branch in zip(taught, branches, strict=True) for row in branch[-len(one.answer) :]
        ]
        return Taught.joined(taught), model.logits(hidden_RE[rows_A])

    def _request(self, lesson: DistilledLesson) -> TwinRequest:
        request = lesson.request(self._pupil.prefix_ids, self._settings.reuse)
        if not self._begun:
            return request
        return replace(request, chunks=tuple(map(self._between_packets, request.chunks)))

    def _between_packets(self, chunk: PlacedChunk) -> PlacedChunk:
        return PlacedChunk(self._ids.around(chunk.token_ids), chunk.chain)

    @contextmanager
    def _vectors_in_place(self) -> Iterator[None]:
        """The teacher, which shares the model, knows nothing of them."""
        self._pupil.model.soft_PE = self._vectors_PE
        try:
            yield
        finally:
            self._pupil.model.soft_PE = None
