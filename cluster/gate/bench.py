"""Asks: many requests at once through one engine, every question over every context in every way that is
wanted of it, with as many recomputed tokens as ``cacheclip`` takes.

What is the same for several of them, such as ``full`` over the same chunks in the same order, is asked once.
Chunks of a context are computed once, behind their documents, and stay resident.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from cluster.gate.ingested import Ingesting
from cluster.gate.ledger import FIRST_LAYER, LAST_LAYER, GradedAnswer
from cluster.gate.modes import Arm, ClipSetting, Comparison, Over
from cluster.gate.prepared import Prepared
from cluster.gate.selections import Selections
from cluster.gate.tasks import Task, TaskKind, sources_of, tasks_of
from cluster.gate.trials import Trial
from services.ingestion.config import IngestionConfig
from services.training.evaluate import answers
from shared.engine import Engine, EngineConfig, load_model
from shared.engine_config import GIB
from shared.errors import ConfigError
from shared.generation.asked import GenerateRequest, SamplingParams
from shared.generation.modes import Chooser, Recompute, ReuseMode
from shared.generation.told import Event, SelectedEvent, TokenEvent
from shared.measuring.asking import AskedTogether
from shared.measuring.paired import agreement
from shared.prompt import PromptTokenizer
from shared.selection.scoring import EngineScorer
from shared.selection.spans import SpanTokenizer

Scores = NDArray[np.float32]
_BRANCHES, _KV_BYTES = 128, GIB
_TEXTS = 1024  # kept, with where their tokens are


@dataclass(frozen=True, slots=True)
class Models:
    """Directories, and how they are used. ``auxiliary`` empty: nobody chooses for ``cacheclip``.
    ``likeness``: also how alike auxiliary and primary judge is measured, over chunks that are alone."""

    primary: str
    auxiliary: str
    ingestion: IngestionConfig
    dtype: str = "auto"
    likeness: bool = False


@dataclass(frozen=True, slots=True)
class EngineReply:
    """An answer to one question."""

    text: str
    selection: SelectedEvent

    @property
    def num_selected(self) -> float:
        """Of ``cacheblend`` the mean of the layers behind the first two, which compute all tokens in order to
        choose."""
        later = self.selection.layers[2:]
        return sum(later) / len(later) if later else len(self.selection.tokens)


@dataclass(slots=True)
class Group:
    """Questions over one context in one mode: a request. ``questions``: their texts, and which they are."""

    request: GenerateRequest
    questions: dict[str, int] = field(default_factory=dict)


Wanted = Sequence[tuple[Trial, Sequence[tuple[TaskKind, Arm]]]]


class QualityBench:
    def __init__(self, models: Models, plan: Comparison, seed: int = 0, max_tokens: int = 48) -> None:
        """
        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: one of the models cannot be used; says why.
        """
        prompts = PromptTokenizer.of_model(models.primary, models.ingestion.prompt)
        if prompts is None:
            raise ConfigError(f"--model: {models.primary} has no tokenizer; its questions are text")
        if plan.clips and plan.ratios and not models.auxiliary:
            raise ConfigError("--auxiliary: cacheclip needs one; name a directory, or give --cacheclip ''")
        self.prompts, self.plan, self.seed = prompts, plan, seed
        model = load_model(models.primary, dtype=models.dtype)
        model.end_also_at(prompts.end_ids)
        many = EngineConfig(
            max_running_branches=_BRANCHES, max_step_tokens=4096, max_waiting=10**6, resident_bytes=_KV_BYTES
        )
        self.engine = Engine(model, many, decode=prompts.decode)
        self._ingestion = Ingesting(models.ingestion, prompts, model.spec.vocab_size, model.fingerprint)
        spans = SpanTokenizer(prompts, models.primary)
        self._spans_of = lru_cache(_TEXTS)(spans.tokenize_chunk)
        self._selections = Selections.of_models(models.auxiliary, spans) if models.auxiliary else None
        self._attention = {
            name: EngineScorer(model, prompts.prefix_ids, layer=layer)
            for name, layer in ((FIRST_LAYER, 0), (LAST_LAYER, model.spec.num_layers - 1))
            if models.likeness and self._selections
        }
        self._sampling = SamplingParams(max_tokens=max_tokens)
        self._names = count()

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Of the models: answers of others are not to be mixed with theirs."""
        return {
            "primary": self.engine.model.fingerprint,
            "auxiliary": self._selections.fingerprint if self._selections else "",
        }

    def close(self) -> None:
        self.engine.shut_down()

    def num_tokens(self, text: str) -> int:
        """Of a passage as a chunk."""
        return len(self.prompts.encode_chunk(text))

    def ask(self, wanted: Wanted) -> list[list[GradedAnswer]]:
        """All answers to a trial's questions of one kind in one way, as they are wanted, in order.

        Raises:
            KvquiltError: a request failed.
        """
        groups: dict[object, Group] = {}
        asked = []
        for trial, ways in wanted:
            prepared = self._prepare(trial, {kind for kind, _ in ways})
            for kind, arm in ways:
                places = [
                    (task, index, self._join(groups, prepared, task, arm, index))
                    for task in prepared.tasks[kind]
                    for index in task.questions
                ]
                asked.append((prepared, arm, places))
        replies = self._run(list(groups.values()))
        return [
            [
                self._judge(prepared, task, arm, index, replies[id(group)][group.questions[text]])
                for task, index, (group, text) in places
            ]
            for prepared, arm, places in asked
        ]

    def _prepare(self, trial: Trial, kinds: set[TaskKind]) -> Prepared:
        tasks: dict[TaskKind, list[Task]] = {kind: [] for kind in kinds}
        for task in tasks_of(self.seed, trial, kinds):
            tasks[task.kind].append(task)
        ingested = {
            layout: self._ingestion.ingest(sources_of(trial, layout))
            for layout in {kind.layout for kind in kinds}
        }
        return Prepared(trial, tasks, ingested, self._selections)

    def _join(
        self, groups: dict[object, Group], prepared: Prepared, task: Task, arm: Arm, index: int
    ) -> tuple[Group, str]:
        """The request that answers the question, which is new or waits for others with the same context."""
        question = prepared.trial.questions[index].text
        request = self._request(prepared, task, arm, index)
        context = [c.chunk_id if request.reuse.row.stored else c.token_ids for c in request.chunks]
        key = (tuple(context), request.reuse, request.recompute, question if arm.recomputes else None)
        group = groups.setdefault(key, Group(request))
        group.questions.setdefault(question, len(group.questions))
        return group, question

    def _request(self, prepared: Prepared, task: Task, arm: Arm, index: int) -> GenerateRequest:
        """Its questions are still missing."""
        reuse, recompute = arm.mode, Recompute()
        if arm.recomputes:
            reuse, recompute = self._recompute(prepared, task, arm, index)
        return GenerateRequest(
            f"{next(self._names)}",
            self.prompts.prefix_ids,
            prepared.chunks(task, arm.over),
            (),
            reuse=reuse,
            recompute=recompute,
            sampling=self._sampling,
            links=prepared.ingested[task.kind.layout].links,
        )

    def _recompute(self, prepared: Prepared, task: Task, arm: Arm, index: int) -> tuple[ReuseMode, Recompute]:
        """As many tokens as the first form of ``cacheclip`` takes, where there is one."""
        assert arm.ratio is not None
        if arm.clip is not None:
            return ReuseMode.TOKENS, Recompute(
                tokens=self._chosen(prepared, task, arm.clip, arm.ratio, index)
            )
        ratio = arm.ratio
        if self.plan.clips:
            num_tokens = sum(len(chunk.token_ids) for chunk in prepared.chunks(task, Over.PLACED))
            ratio = len(self._chosen(prepared, task, self.plan.clips[0], ratio, index)) / num_tokens
        if arm.mode.row.surveys_all:  # as many in its later layers, the first two besides
            num_layers = self.engine.model.spec.num_layers
            ratio = (2 + ratio * (num_layers - 2)) / num_layers
        return arm.mode, Recompute(ratio, seed=prepared.trial.number * 1000 + index)

    def _chosen(
        self, prepared: Prepared, task: Task, clip: ClipSetting, ratio: float, index: int
    ) -> tuple[int, ...]:
        """The tokens that ``cacheclip`` recomputes, counted over the placed chunks."""
        assert prepared.selections is not None
        ingested = prepared.ingested[task.kind.layout]
        question = prepared.trial.questions[index].text
        selection = prepared.selections.select(ingested, task.placed, question, ratio, clip)
        return tuple(np.flatnonzero(np.concatenate(selection.chosen)).tolist())

    def _run(self, groups: Sequence[Group]) -> dict[int, list[EngineReply]]:
        """Answers by request, in the order of its questions."""
        asked = AskedTogether(
            self.engine,
            [
                replace(group.request, questions=tuple(map(self.prompts.encode_question, group.questions)))
                for group in groups
            ],
        )
        asked.run()
        return {
            id(group): list(self._replies(len(group.questions), events))
            for group, events in zip(groups, asked.events, strict=True)
        }

    def _replies(self, num_questions: int, events: Sequence[Event]) -> Iterator[EngineReply]:
        eos_ids = self.engine.model.spec.eos_ids
        selection = next((event for event in events if isinstance(event, SelectedEvent)), SelectedEvent(()))
        for index in range(num_questions):
            ids = [
                e.token_id
                for e in events
                if isinstance(e, TokenEvent) and e.question == index and e.token_id not in eos_ids
            ]
            yield EngineReply(self.prompts.decode(ids).strip(), selection)

    def _judge(
        self, prepared: Prepared, task: Task, arm: Arm, index: int, reply: EngineReply
    ) -> GradedAnswer:
        trial, question = prepared.trial, prepared.trial.questions[index]
        num_tokens = sum(len(chunk.token_ids) for chunk in prepared.chunks(task, Over.PLACED))
        if not arm.mode.row.stored:
            reply = EngineReply(reply.text, SelectedEvent(tuple(range(num_tokens))))
        told = self._value_tokens(prepared, task, index) if arm.over is Over.PLACED else set()
        return GradedAnswer(
            trial.kind_name(task.kind),
            arm.label,
            trial.number,
            index,
            answers(reply.text, question.value),
            reply.text,
            num_tokens,
            reply.num_selected,
            len(told.intersection(reply.selection.tokens)) / len(told) if told else None,
            self._agreements(prepared, task, index)
            if arm.mode.row.chooser is Chooser.QUESTION and arm.ratio == self.plan.ratio
            else {},
        )

    def _agreements(self, prepared: Prepared, task: Task, index: int) -> dict[str, tuple[float, float]]:
        """With the attention of the primary's last layer: the auxiliary's scores in every reading of this
        run, and, as the yardstick, the primary's first layer (CacheClip, section 3)."""
        if not self._attention or task.kind not in (TaskKind.SPREAD, TaskKind.SINGLE):
            return {}
        assert prepared.selections is not None
        question, ingested = prepared.trial.questions[index].text, prepared.ingested[task.kind.layout]
        token_ids = [ingested.chunks[i].token_ids for i in task.placed]
        others: dict[str, Scores] = {}
        for name, scorer in self._attention.items():
            scores = scorer.score(scorer.encode(token_ids), self.prompts.encode_question(question))
            others[name] = np.concatenate(scores.chunks)
        last_T = others.pop(LAST_LAYER)
        for clip in self.plan.clips:
            chosen = prepared.selections.select(ingested, task.placed, question, self.plan.ratio, clip)
            others[clip.reading.value] = np.concatenate(chosen.scores)
        return {name: agreement(last_T, scores_T, self.plan.ratio) for name, scores_T in others.items()}

    def _value_tokens(self, prepared: Prepared, task: Task, index: int) -> set[int]:
        """The primary's tokens, counted over the placed chunks, of the value where it stands in the passage
        that states it."""
        question, ingested = prepared.trial.questions[index], prepared.ingested[task.kind.layout]
        stating = question.evidence[-1]
        spans, text = self._spans_of(ingested.texts[stating]), ingested.texts[stating]
        whole_words = re.compile(rf"(?<!\w){re.escape(question.value)}(?!\w)")
        if (match := whole_words.search(text)) is None:
            return set()
        inside_T = (spans.starts < match.end()) & (spans.ends > match.start())
        in_front = task.placed[: task.placed.index(stating)]
        start = sum(len(ingested.chunks[i].token_ids) for i in in_front)
        return set((np.flatnonzero(inside_T) + start).tolist())
