"""Asks: many requests at once through one engine, in a mode, with as many recomputed tokens as ``cacheclip``
takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from load_tests.quality.ledger import FIRST_LAYER, LAST_LAYER, GradedAnswer
from load_tests.quality.modes import ClipSetting, label_of
from load_tests.quality.paired import agreement
from load_tests.quality.trials import Trial, is_spread
from services.training.contexts import TrainingQuestion
from services.training.evaluate import answers
from shared.engine import Engine, EngineConfig, load_model
from shared.errors import ConfigError
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import Chooser, Recompute, ReuseMode
from shared.generation.told import Event, SelectedEvent, TokenEvent
from shared.identity import chunk_identity
from shared.measuring.asking import AskedTogether
from shared.prompt import PromptTokenizer
from shared.selection.auxiliary import load_auxiliary
from shared.selection.scoring import EngineScorer
from shared.selection.selector import PairedChunk, Selection, Selector
from shared.selection.spans import SpanTokenizer

Scores = NDArray[np.float32]


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """One trial as both models read it. ``chosen``: per form of ``cacheclip``, per question; ``attention``:
    of the primary's first and last layer, per question."""

    trial: Trial
    paired: tuple[PairedChunk, ...]
    chunks: tuple[Chunk, ...]
    chosen: Mapping[ClipSetting, Sequence[Selection]]
    attention: Mapping[str, Sequence[Scores]]

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)


class QualityBench:
    """``clips``: the forms of ``cacheclip``; the controls recompute as many tokens as the first one of
    them."""

    def __init__(
        self, primary: str, auxiliary: str, ratio: float, clips: Sequence[ClipSetting], max_tokens: int = 48
    ) -> None:
        """
        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: one of the models cannot be used; says why.
        """
        prompts = PromptTokenizer.of_model(primary)
        if prompts is None:
            raise ConfigError(f"--model: {primary} has no tokenizer; its questions are text")
        self.prompts, self.ratio, self.clips = prompts, ratio, tuple(clips)
        model = load_model(primary)
        model.end_also_at(prompts.end_ids)
        self.engine = Engine(model, EngineConfig(), decode=prompts.decode)
        self.selector = Selector(load_auxiliary(auxiliary), SpanTokenizer(prompts, primary))
        self._attention = {
            name: EngineScorer(model, prompts.prefix_ids, layer=layer)
            for name, layer in ((FIRST_LAYER, 0), (LAST_LAYER, model.spec.num_layers - 1))
        }
        self._sampling = SamplingParams(max_tokens=max_tokens)

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Of the models: answers of others are not to be mixed with theirs."""
        return {
            "primary": self.engine.model.fingerprint,
            "auxiliary": self.selector.auxiliary.scorer.fingerprint,
        }

    def close(self) -> None:
        self.engine.shut_down()

    def prepare(self, trial: Trial) -> Prepared:
        """Reads the trial with the auxiliary model: chunks once, every question in every form."""
        texts = [self.prompts.template.chunk.replace("{text}", text) for text in trial.texts]
        token_ids = [self.prompts.encode(text) for text in texts]
        paired = [self.selector.pair(text, ids) for text, ids in zip(texts, token_ids, strict=True)]
        segments = self.selector.encode(paired)
        chosen = {
            clip: [
                self.selector.select(paired, segments, question.text, self.ratio, clip.grouping, clip.reading)
                for question in trial.questions
            ]
            for clip in self.clips
        }
        chunks = tuple(map(self._chunk, token_ids))
        return Prepared(trial, tuple(paired), chunks, chosen, self._attended(trial, token_ids))

    def _attended(self, trial: Trial, token_ids: Sequence[tuple[int, ...]]) -> dict[str, list[Scores]]:
        """Scores of what every question attends to over the stitched chunks, by the primary's own layers."""
        questions = [self.prompts.encode_question(question.text) for question in trial.questions]
        found: dict[str, list[Scores]] = {}
        for name, scorer in self._attention.items():
            segments = scorer.encode(token_ids)
            found[name] = [np.concatenate(scorer.score(segments, ids).chunks) for ids in questions]
        return found

    def ask(self, mode: ReuseMode | ClipSetting, trials: Sequence[Prepared]) -> Iterator[list[GradedAnswer]]:
        """Answers by trial, in order.

        Raises:
            KvquiltError: a request failed.
        """
        requests = [list(self._requests(mode, prepared)) for prepared in trials]
        asked = AskedTogether(self.engine, [request for of_trial in requests for request in of_trial])
        asked.run()
        events = iter(asked.events)
        for prepared, of_trial in zip(trials, requests, strict=True):
            replies = [reply for request in of_trial for reply in self._replies(request, next(events))]
            yield [self._judge(mode, prepared, i, reply) for i, reply in enumerate(replies)]

    def _requests(self, mode: ReuseMode | ClipSetting, prepared: Prepared) -> Iterator[GenerateRequest]:
        """One per question, as each has tokens of its own recomputed; where none are, all questions over one
        context."""
        number = prepared.trial.number
        asked = GenerateRequest(
            f"{number}.0",
            self.prompts.prefix_ids,
            prepared.chunks,
            tuple(self.prompts.encode_question(question.text) for question in prepared.trial.questions),
            sampling=self._sampling,
        )
        if isinstance(mode, ReuseMode) and not mode.recomputes:
            yield replace(asked, reuse=mode)
            return
        for i, question in enumerate(asked.questions):
            if isinstance(mode, ClipSetting):
                reuse, recompute = ReuseMode.TOKENS, Recompute(tokens=_tokens(prepared.chosen[mode][i]))
            else:
                ratio = prepared.chosen[self.clips[0]][i].num_chosen / prepared.num_tokens
                if mode.row.surveys_all:  # as many in its later layers, the first two besides
                    num_layers = self.engine.model.spec.num_layers
                    ratio = (2 + ratio * (num_layers - 2)) / num_layers
                reuse, recompute = mode, Recompute(ratio, seed=number * 1000 + i)
            yield replace(
                asked, request_id=f"{number}.{i}", questions=(question,), reuse=reuse, recompute=recompute
            )

    def _replies(self, request: GenerateRequest, events: Sequence[Event]) -> Iterator[EngineReply]:
        """Question by question."""
        eos_ids = self.engine.model.spec.eos_ids
        selection = next((event for event in events if isinstance(event, SelectedEvent)), SelectedEvent(()))
        for index in range(len(request.questions)):
            ids = [
                e.token_id
                for e in events
                if isinstance(e, TokenEvent) and e.question == index and e.token_id not in eos_ids
            ]
            yield EngineReply(self.prompts.decode(ids).strip(), selection)

    def _judge(
        self, mode: ReuseMode | ClipSetting, prepared: Prepared, index: int, reply: EngineReply
    ) -> GradedAnswer:
        question = prepared.trial.questions[index]
        if isinstance(mode, ReuseMode) and not mode.row.stored:
            reply = EngineReply(reply.text, SelectedEvent(tuple(range(prepared.num_tokens))))
        told = self._value_tokens(prepared, question)
        return GradedAnswer(
            label_of(mode),
            prepared.trial.number,
            index,
            is_spread(question),
            answers(reply.text, question.value),
            reply.text,
            prepared.num_tokens,
            reply.num_selected,
            len(told.intersection(reply.selection.tokens)) / len(told) if told else None,
            self._agreements(prepared, index)
            if isinstance(mode, ReuseMode) and mode.row.chooser is Chooser.QUESTION
            else {},
        )

    def _agreements(self, prepared: Prepared, index: int) -> dict[str, tuple[float, float]]:
        """With the attention of the primary's last layer: the auxiliary's scores in every reading of this
        run, and, as the yardstick, the primary's first layer (CacheClip, section 3)."""
        last_T = prepared.attention[LAST_LAYER][index]
        others: dict[str, Scores] = {
            clip.reading.value: np.concatenate(selections[index].scores)
            for clip, selections in prepared.chosen.items()
        }
        others[FIRST_LAYER] = prepared.attention[FIRST_LAYER][index]
        return {name: agreement(last_T, scores_T, self.ratio) for name, scores_T in others.items()}

    def _value_tokens(self, prepared: Prepared, question: TrainingQuestion) -> set[int]:
        """The primary's tokens, counted over all chunks, of the value where it stands in the passage that
        states it."""
        whole_words = re.compile(rf"(?<!\w){re.escape(question.value)}(?!\w)")
        stating = question.evidence[-1]
        if (match := whole_words.search(prepared.trial.texts[stating])) is None:
            return set()
        before, spans = self.prompts.template.chunk.index("{text}"), prepared.paired[stating].primary
        inside_T = (spans.starts < before + match.end()) & (spans.ends > before + match.start())
        start = sum(len(chunk.token_ids) for chunk in prepared.chunks[:stating])
        return set((np.flatnonzero(inside_T) + start).tolist())

    def _chunk(self, token_ids: tuple[int, ...]) -> Chunk:
        return Chunk(
            chunk_identity("", self.engine.model.fingerprint, self.prompts.prefix_ids, token_ids), token_ids
        )


def _tokens(selection: Selection) -> tuple[int, ...]:
    return tuple(np.flatnonzero(np.concatenate(selection.chosen)).tolist())
