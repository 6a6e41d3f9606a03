"""The teacher of every pupil: the model itself, which reads whole blocks under ``full``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
from shared.engine_config import EngineConfig
from shared.errors import ContextTooLong
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.told import DoneEvent, Event, FailedEvent, TokenEvent

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Teacher:
    """``kept``: where what is computed goes, and may be already. ``together``: contexts that it is asked
    about at once; more than one on a GPU, which is hardly busy with one. ``keeps_kv``: also computes the keys
    and values of the contexts' chunks, for pupils that go over them as they are stored."""

    model: LoadedModel
    prefix_ids: Ids
    settings: DistillationSettings
    kept: Kept
    decode: Decode | None = None
    together: int = 1
    keeps_kv: bool = True

    def lessons(self, contexts: Sequence[AskedContext], on_progress: Progress) -> list[DistilledLesson]:
        """
        Raises:
            ContextTooLong: names the context.
        """
        engine = Engine(self.model, self._engine_config(contexts), decode=self.decode)
        lessons: list[DistilledLesson] = []
        try:
            for first in range(0, len(contexts), self.together):
                on_progress(first, len(contexts))
                lessons += self._lessons(engine, contexts[first : first + self.together])
        finally:
            engine.shut_down()
        on_progress(len(contexts), len(contexts))
        return lessons

    def _engine_config(self, contexts: Sequence[AskedContext]) -> EngineConfig:
        """Whoever goes on after a kill asks in other company, and must hear the same."""
        most = max((len(context.questions) for context in contexts), default=1)
        return EngineConfig(
            device=str(self.model.spec.device),
            batch_invariant=self.together > 1,
            max_running_branches=max(64, most * self.together),
        )

    def _lessons(self, engine: Engine, contexts: Sequence[AskedContext]) -> Iterator[DistilledLesson]:
        known = [self.kept.taught(context, self.settings) for context in contexts]
        unknown = [context for context, taught in zip(contexts, known, strict=True) if taught is None]
        answers = self._answers(engine, unknown)
        for context, taught in zip(contexts, known, strict=True):
            if taught is None:
                taught = self._taught(context, next(answers))
                self.kept.keep_taught(context, self.settings, taught)
            if self.keeps_kv:
                self._keep_kv(context)
            yield DistilledLesson(context, taught)

    def _keep_kv(self, context: AskedContext) -> None:
        missing = [chunk for chunk in context.chunks if not self.kept.has_segment(chunk)]
        if missing:
            _, segments = segments_of(self.model, self.prefix_ids, missing)
            for chunk, segment in zip(missing, segments, strict=True):
                self.kept.keep_segment(chunk, segment)

    def _answers(self, engine: Engine, contexts: Sequence[AskedContext]) -> Iterator[list[Ids]]:
        """Of each context those to its questions: greedy, the end mark included."""
        told: list[list[Event]] = [[] for _ in contexts]
        for context, events in zip(contexts, told, strict=True):
            try:
                engine.submit(self._request(context), events.append)
            except ContextTooLong as error:
                raise ContextTooLong(f"{context.name}: {error.detail}") from None
        while not all(events and isinstance(events[-1], (DoneEvent, FailedEvent)) for events in told):
            if not engine.step():
                engine.wait()
        for context, events in zip(contexts, told, strict=True):
            if isinstance(events[-1], FailedEvent):
                raise events[-1].error
            tokens = [event for event in events if isinstance(event, TokenEvent)]
            yield [
                tuple(event.token_id for event in tokens if event.question == index)
                for index in range(len(context.questions))
            ]

    def _request(self, context: AskedContext) -> GenerateRequest:
        return GenerateRequest(
            uuid.uuid4().hex,
            self.prefix_ids,
            tuple(Chunk(f"{i}", ids) for i, ids in enumerate(context.blocks)),
            context.questions,
            reuse=ReuseMode.FULL,
            sampling=SamplingParams(max_tokens=self.settings.answer_tokens, stop=self.settings.stop),
        )

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
