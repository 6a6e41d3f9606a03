"""The teacher of every pupil: the model itself, which reads whole blocks under ``full``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from services.training.distillation.kept import Kept
from services.training.distillation.lessons import AskedContext, DistilledLesson, Taught
from services.training.distillation.settings import DistillationSettings
from services.training.known_kv import segments_of
from services.training.twin import TwinStep
from services.training.twin_request import Ids, PlacedChunk, TwinRequest
from shared.engine import Engine
from shared.engine.decoding.text import Decode
from shared.engine.model.model import LoadedModel
from shared.errors import ContextTooLong
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.told import TokenEvent

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Teacher:
    """``kept``: where what is computed goes, and may be already."""

    model: LoadedModel
    prefix_ids: Ids
    settings: DistillationSettings
    kept: Kept
    decode: Decode | None = None

    def lessons(self, contexts: Sequence[AskedContext], on_progress: Progress) -> list[DistilledLesson]:
        """Also computes the keys and values of the contexts' chunks.

        Raises:
            ContextTooLong: names the context.
        """
        engine, names = Engine(self.model, decode=self.decode), count()
        lessons = []
        try:
            for i, context in enumerate(contexts):
                on_progress(i, len(contexts))
                try:
                    lessons.append(self._lesson(engine, f"{next(names)}", context))
                except ContextTooLong as error:
                    raise ContextTooLong(f"{context.name}: {error.detail}") from None
        finally:
            engine.shut_down()
        on_progress(len(contexts), len(contexts))
        return lessons

    def _lesson(self, engine: Engine, name: str, context: AskedContext) -> DistilledLesson:
        taught = self.kept.taught(context, self.settings)
        if taught is None:
            taught = self._taught(context, list(self._answers(engine, name, context)))
            self.kept.keep_taught(context, self.settings, taught)
        missing = [chunk for chunk in context.chunks if not self.kept.has_segment(chunk)]
        if missing:
            _, segments = segments_of(self.model, self.prefix_ids, missing)
            for chunk, segment in zip(missing, segments, strict=True):
                self.kept.keep_segment(chunk, segment)
        return DistilledLesson(context, taught)

    def _answers(self, engine: Engine, name: str, context: AskedContext) -> Iterator[Ids]:
        """Greedy, the end mark included."""
        request = GenerateRequest(
            name,
            self.prefix_ids,
            tuple(Chunk(f"{i}", ids) for i, ids in enumerate(context.blocks)),
            context.questions,
            reuse=ReuseMode.FULL,
            sampling=SamplingParams(max_tokens=self.settings.answer_tokens, stop=self.settings.stop),
        )
        told = [event for event in engine.generate(request) if isinstance(event, TokenEvent)]
        for index in range(len(context.questions)):
            yield tuple(event.token_id for event in told if event.question == index)

    @torch.no_grad()
    def _taught(self, context: AskedContext, answers: Sequence[Ids]) -> tuple[Taught, ...]:
        branches = tuple(q + answer[:-1] for q, answer in zip(context.questions, answers, strict=True))
        blocks = tuple(PlacedChunk(ids) for ids in context.blocks)
        step = TwinStep([TwinRequest(self.prefix_ids, blocks, branches, ReuseMode.FULL)], self.model.spec)
        hidden_RE = self.model.forward(step)
        return tuple(
            Taught.of(answer, self.model.logits(hidden_RE[list(rows[-len(answer) :])]), self.settings.top_k)
            for answer, rows in zip(answers, step.rows[0].branches, strict=True)
        )
