"""Asks invented questions about invented documents in every way that is wanted of each, and judges the
answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cluster.gate.answering import AskedQuestion, EngineAnswers, EngineReply, Models
from cluster.gate.ingested import Ingesting
from cluster.gate.judging import abstains
from cluster.gate.ledger import FIRST_LAYER, LAST_LAYER, GradedAnswer
from cluster.gate.modes import Arm, Comparison, Over
from cluster.gate.tasks import Task, TaskKind, blocks_of, sources_of, tasks_of
from cluster.gate.trials import Trial
from services.training.evaluate import answers
from shared.generation.modes import Chooser
from shared.generation.told import SelectedEvent
from shared.measuring.paired import agreement
from shared.selection.scoring import EngineScorer

Scores = NDArray[np.float32]
_TEXTS = 1024  # kept, with where their tokens are
Wanted = Sequence[tuple[Trial, Sequence[tuple[TaskKind, Arm]]]]
Place = tuple[Trial, Task, Arm, int, AskedQuestion]


class QualityBench:
    """``seed``: of what is asked about a context."""

    def __init__(self, models: Models, plan: Comparison, seed: int = 0, max_tokens: int = 48) -> None:
        """Raises as ``EngineAnswers``."""
        self.plan, self.seed = plan, seed
        self._answering = EngineAnswers(models, plan, max_tokens)
        self.prompts, model = self._answering.prompts, self._answering.model
        self._ingestion = Ingesting(models.ingestion, self.prompts, model.spec.vocab_size, model.fingerprint)
        self._spans_of = lru_cache(_TEXTS)(self._answering.spans.tokenize_chunk)
        self._attention = {
            name: EngineScorer(model, self.prompts.prefix_ids, layer=layer)
            for name, layer in ((FIRST_LAYER, 0), (LAST_LAYER, model.spec.num_layers - 1))
            if models.likeness and self._answering.selections
        }

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Of the models: answers of others are not to be mixed with theirs."""
        return self._answering.fingerprints

    def close(self) -> None:
        self._answering.close()

    def num_tokens(self, text: str) -> int:
        """Of a passage as a chunk."""
        return len(self.prompts.encode_chunk(text))

    def ask(self, wanted: Wanted) -> list[list[GradedAnswer]]:
        """All answers to a trial's questions of one kind in one way, as they are wanted, in order.

        Raises:
            KvquiltError: a request failed.
        """
        asked: list[list[Place]] = []
        for trial, ways in wanted:
            prepared = self._prepare(trial, {kind for kind, _ in ways})
            asked += [
                [(trial, task, arm, index, question) for task, index, question in prepared[kind]]
                for kind, arm in ways
            ]
        places = [place for of_way in asked for place in of_way]
        replies = iter(self._answering.ask([(question, arm) for _, _, arm, _, question in places]))
        return [[self._judge(place, next(replies)) for place in of_way] for of_way in asked]

    def _prepare(
        self, trial: Trial, kinds: set[TaskKind]
    ) -> dict[TaskKind, list[tuple[Task, int, AskedQuestion]]]:
        """Prepares what is asked, by kind: the task, the number of the question, and the question over its
        chunks."""
        ingested = {
            layout: self._ingestion.ingest(sources_of(trial, layout))
            for layout in {kind.layout for kind in kinds}
        }
        prepared: dict[TaskKind, list[tuple[Task, int, AskedQuestion]]] = {kind: [] for kind in kinds}
        for task in tasks_of(self.seed, trial, kinds):
            blocks = blocks_of(trial, task.placed)
            for index in task.questions:
                seed = trial.number * 1000 + index
                question = AskedQuestion(
                    trial.questions[index].text, ingested[task.kind.layout], task.placed, blocks, seed
                )
                prepared[task.kind].append((task, index, question))
        return prepared

    def _judge(self, place: Place, reply: EngineReply) -> GradedAnswer:
        trial, task, arm, index, asked = place
        question = trial.questions[index]
        num_tokens, selected, told = asked.num_tokens, reply.selection.tokens, set[int]()
        if not arm.mode.row.stored:
            selected = tuple(range(num_tokens))
            reply = replace(reply, selection=SelectedEvent(selected))
        unanswerable = task.kind is TaskKind.UNANSWERABLE
        if arm.over is Over.PLACED and not unanswerable:
            told = self._value_tokens(trial, task, index, asked)
        return GradedAnswer(
            trial.kind_name(task.kind),
            arm.label,
            trial.number,
            index,
            abstains(reply.text) if unanswerable else answers(reply.text, question.value),
            reply.text,
            num_tokens,
            reply.num_selected,
            len(told.intersection(selected)) / len(told) if told else None,
            self._agreements(task, asked)
            if arm.mode.row.chooser is Chooser.QUESTION and arm.ratio == self.plan.ratio
            else {},
            reply.kl,
            reply.alike,
        )

    def _agreements(self, task: Task, asked: AskedQuestion) -> dict[str, tuple[float, float]]:
        """With the attention of the primary's last layer: the auxiliary's scores in every reading of this
        run, and, as the yardstick, the primary's first layer (CacheClip, section 3)."""
        if not self._attention or task.kind not in (TaskKind.SPREAD, TaskKind.SINGLE):
            return {}
        token_ids = [asked.ingested.chunks[i].token_ids for i in asked.placed]
        others: dict[str, Scores] = {}
        for name, scorer in self._attention.items():
            scores = scorer.score(scorer.encode(token_ids), self.prompts.encode_question(asked.text))
            others[name] = np.concatenate(scores.chunks)
        last_T = others.pop(LAST_LAYER)
        for clip in self.plan.clips:
            chosen = self._answering.select(asked, clip, self.plan.ratio)
            others[clip.reading.value] = np.concatenate(chosen.scores)
        return {name: agreement(last_T, scores_T, self.plan.ratio) for name, scores_T in others.items()}

    def _value_tokens(self, trial: Trial, task: Task, index: int, asked: AskedQuestion) -> set[int]:
        """The primary's tokens, counted over the placed chunks, of the value where it stands in the passage
        that states it."""
        question, ingested = trial.questions[index], asked.ingested
        stating = question.evidence[-1]
        spans, text = self._spans_of(ingested.texts[stating]), ingested.texts[stating]
        whole_words = re.compile(rf"(?<!\w){re.escape(question.value)}(?!\w)")
        if (match := whole_words.search(text)) is None:
            return set()
        inside_T = (spans.starts < match.end()) & (spans.ends > match.start())
        in_front = task.placed[: task.placed.index(stating)]
        start = sum(len(ingested.chunks[i].token_ids) for i in in_front)
        return set((np.flatnonzero(inside_T) + start).tolist())
