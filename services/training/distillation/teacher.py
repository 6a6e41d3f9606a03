"""The teacher of every pupil: the model itself, which reads whole blocks under ``full``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from services.training.distillation.decoding import decoded, naming
from services.training.distillation.kept import Kept
from services.training.distillation.lessons import AskedContext, DistilledLesson, Taught
from services.training.distillation.segments import keep_segments
from services.training.distillation.settings import DistillationSettings
from services.training.fitting import Fitting
from services.training.twin import TwinStep
from services.training.twin_request import Ids, PlacedChunk, TwinRequest
from services.training.workers import Alone, Workers
from shared.engine import Engine
from shared.engine.decoding.text import Decode
from shared.engine.model.model import LoadedModel
from shared.engine_config import EngineConfig
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode

Progress = Callable[[int, int], None]
_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class TeacherPasses:
    """Says how much is computed at once: contexts that are answered beside each other, questions of a context
    whose answers are judged, chunks of a context whose keys and values are kept."""

    contexts: Fitting
    questions: Fitting
    chunks: Fitting

    @classmethod
    def telling(cls, say: Callable[[str], None]) -> TeacherPasses:
        return cls(
            Fitting("contexts that the teacher answers together", _TOGETHER, say),
            Fitting("questions in a pass of the teacher", say=say),
            Fitting("chunks in a pass of the teacher", say=say),
        )


@dataclass(frozen=True, slots=True)
class Teacher:
    """``kept``: where what is computed goes, and may be already. ``keeps_kv``: also computes the keys and
    values of the contexts' chunks, for pupils that read them as they are stored. ``passes``: become smaller
    when memory runs out."""

    model: LoadedModel
    prefix_ids: Ids
    settings: DistillationSettings
    kept: Kept
    decode: Decode | None = None
    keeps_kv: bool = True
    passes: TeacherPasses = field(default_factory=lambda: TeacherPasses.telling(lambda line: None))

    def lessons(
        self, contexts: Sequence[AskedContext], on_progress: Progress, workers: Workers | None = None
    ) -> list[DistilledLesson]:
        """On the model's device. Each of several workers computes its share, and finds that of the others in
        ``kept``.

        Raises:
            ContextTooLong: names the context.
            ConfigError: out of memory with the smallest pass.
        """
        workers = workers or Alone()
        groups = [contexts[first : first + _TOGETHER] for first in range(0, len(contexts), _TOGETHER)]
        mine = range(workers.rank, len(groups), workers.count)
        said: dict[int, list[tuple[Taught, ...]]] = {}
        engine = Engine(self.model, EngineConfig(max_waiting=_TOGETHER), decode=self.decode)
        try:
            for i in mine:
                on_progress(len(said) * _TOGETHER, len(contexts))
                said[i] = self._said(engine, groups[i])
            workers.wait_for_all()
            said |= {i: self._said(engine, group) for i, group in enumerate(groups) if i not in said}
        finally:
            engine.shut_down()
        on_progress(len(contexts), len(contexts))
        taught = (one for i in range(len(groups)) for one in said[i])
        return [DistilledLesson(*pair) for pair in zip(contexts, taught, strict=True)]

    def _said(self, engine: Engine, contexts: Sequence[AskedContext]) -> list[tuple[Taught, ...]]:
        """Of contexts that are always the same together: whether some of them are known already makes no
        difference to the others."""
        known = [self.kept.taught(context, self.settings) for context in contexts]
        answers: list[list[Ids]] = []
        if None in known:
            answers = self.passes.contexts.all(contexts, lambda some: self._answers(engine, some))
        taught = []
        for i, context in enumerate(contexts):
            if (one := known[i]) is None:
                with naming(context.name):
                    one = self._taught(context, answers[i])
                self.kept.keep_taught(context, self.settings, one)
            if self.keeps_kv:
                keep_segments(self.model, self.prefix_ids, context, self.kept, self.passes.chunks)
            taught.append(tuple(x.to(self.model.spec.device) for x in one))
        return taught

    def _answers(self, engine: Engine, contexts: Sequence[AskedContext]) -> list[list[Ids]]:
        """By context and question; to one context alone to as many questions at once as there is memory
        for."""
        if len(contexts) > 1:
            return self._decoded(engine, contexts)
        (context,) = contexts

        def answers(some: Sequence[Ids]) -> list[Ids]:
            return self._decoded(engine, [replace(context, questions=tuple(some))])[0]

        return [self.passes.questions.all(context.questions, answers)]

    def _decoded(self, engine: Engine, contexts: Sequence[AskedContext]) -> list[list[Ids]]:
        sampling = SamplingParams(max_tokens=self.settings.answer_tokens, stop=self.settings.stop)
        requests = [
            GenerateRequest(
                f"{i}",
                self.prefix_ids,
                tuple(Chunk(f"{j}", ids) for j, ids in enumerate(context.blocks)),
                context.questions,
                reuse=ReuseMode.FULL,
                sampling=sampling,
            )
            for i, context in enumerate(contexts)
        ]
        return decoded(engine, requests, [context.name for context in contexts])

    def _taught(self, context: AskedContext, answers: Sequence[Ids]) -> tuple[Taught, ...]:
        answered = list(zip(context.questions, answers, strict=True))
        return tuple(self.passes.questions.all(answered, lambda some: self._in_a_pass(context, some)))

    @torch.no_grad()
    def _in_a_pass(self, context: AskedContext, answered: Sequence[tuple[Ids, Ids]]) -> tuple[Taught, ...]:
        """``answered``: questions with the answers to them."""
        branches = tuple(question + answer[:-1] for question, answer in answered)
        blocks = tuple(PlacedChunk(ids) for ids in context.blocks)
        step = TwinStep([TwinRequest(self.prefix_ids, blocks, branches, ReuseMode.FULL)], self.model.spec)
        hidden_RE = self.model.forward(step)
        return tuple(
            Taught.of(answer, self.model.logits(hidden_RE[list(rows[-len(answer) :])]), self.settings.top_k)
            for (_, answer), rows in zip(answered, step.rows[0].branches, strict=True)
        )
