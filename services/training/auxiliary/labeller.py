"""Measures what computing windows of a context anew is worth to its questions, by the primary itself.

The reference is what the primary answers when it computes the whole context (``full``, greedy). A window's
gain is what that answer's log-probability rises by when the window alone is computed anew. Antecedent and
mention are worth little alone, so pairs are asked too, among the windows that gain most and those that the
primary attends to most.

Shapes: W windows, N pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from services.training.auxiliary.contexts import ModelReading, SelectionContext
from services.training.auxiliary.counterfactual import Counterfactuals, Forced, ForcedOutcome, PassSize
from services.training.auxiliary.kept import KeptLabels
from services.training.auxiliary.labels import Floats, LabelledContext, SelectionLabels
from services.training.auxiliary.scores import attended
from services.training.auxiliary.settings import AuxiliarySettings
from services.training.twin_request import Ids, TwinRequest
from services.training.workers import Alone, Workers
from shared.engine import Engine
from shared.engine.decoding.text import Decode
from shared.engine.model.model import LoadedModel
from shared.errors import ContextTooLong
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.told import TokenEvent
from shared.measuring.asking import AskedTogether

Progress = Callable[[int, int], None]
_TOGETHER = 16  # contexts whose questions are answered at the same time


@dataclass(frozen=True, slots=True)
class Labeller:
    """``model``: the primary. ``kept``: where labels go, and may be already. ``size``: of passes."""

    model: LoadedModel
    prefix_ids: Ids
    settings: AuxiliarySettings
    kept: KeptLabels
    size: PassSize
    decode: Decode | None = None

    def label(
        self, contexts: Sequence[SelectionContext], on_progress: Progress, workers: Workers | None = None
    ) -> list[LabelledContext]:
        """Of several workers each measures its share, and reads what the others have kept.

        Raises:
            ContextTooLong: names the context.
        """
        workers = workers or Alone()
        for context in contexts:
            self._check_room(context)
        mine = contexts[workers.rank :: workers.count]
        engine = Engine(self.model, decode=self.decode)
        try:
            labelled = self._label(engine, mine, on_progress)
            if workers.count > 1:
                workers.wait_for_all()
                labelled = self._label(engine, contexts, lambda done, of: None)
        finally:
            engine.shut_down()
        return labelled

    def _label(
        self, engine: Engine, contexts: Sequence[SelectionContext], on_progress: Progress
    ) -> list[LabelledContext]:
        labelled: list[LabelledContext] = []
        for first in range(0, len(contexts), _TOGETHER):
            some = contexts[first : first + _TOGETHER]
            found = [self.kept.labels(context, self.settings) for context in some]
            missing = [context for context, labels in zip(some, found, strict=True) if labels is None]
            answers = iter(self._answers(engine, missing))
            for context, labels in zip(some, found, strict=True):
                on_progress(len(labelled), len(contexts))
                if labels is None:
                    labels = self._labels(context, next(answers))
                    self.kept.keep(context, self.settings, labels)
                labelled.append(LabelledContext(context, labels))
        on_progress(len(contexts), len(contexts))
        return labelled

    def counterfactuals(self, labelled: LabelledContext) -> Counterfactuals:
        return self._over(labelled.context, [one.answer for one in labelled.labels])

    def _check_room(self, context: SelectionContext) -> None:
        longest = max(map(len, context.primary.questions))
        needed = len(self.prefix_ids) + context.num_tokens + longest + self.settings.answer_tokens
        if needed > self.model.spec.sight:
            raise ContextTooLong(
                f"{context.name}: with a question and its answer it takes {needed} positions, the model has "
                f"{self.model.spec.sight}; give fewer or shorter chunks"
            )

    def _over(self, context: SelectionContext, answers: Sequence[Ids]) -> Counterfactuals:
        return Counterfactuals(self.model, self.prefix_ids, context.primary, answers, self.size)

    def _answers(self, engine: Engine, contexts: Sequence[SelectionContext]) -> Iterator[list[Ids]]:
        """Greedy, the end mark included."""
        asked = AskedTogether(engine, [self._request(f"{i}", one.primary) for i, one in enumerate(contexts)])
        asked.run()
        for context, events in zip(contexts, asked.events, strict=True):
            told = [event for event in events if isinstance(event, TokenEvent)]
            yield [
                tuple(event.token_id for event in told if event.question == index)
                for index in range(len(context.primary.questions))
            ]

    def _request(self, name: str, reading: ModelReading) -> GenerateRequest:
        return GenerateRequest(
            name,
            self.prefix_ids,
            tuple(Chunk(f"{name} {i}", chunk.token_ids) for i, chunk in enumerate(reading.chunks)),
            reading.questions,
            reuse=ReuseMode.FULL,
            sampling=SamplingParams(max_tokens=self.settings.answer_tokens, stop=self.settings.stop),
        )

    def _labels(self, context: SelectionContext, answers: Sequence[Ids]) -> tuple[SelectionLabels, ...]:
        asking, everything = self._over(context, answers), tuple(range(context.num_tokens))
        questions, windows = range(len(answers)), range(len(context.windows))
        alone = iter(
            asking.outcomes(
                [
                    Forced(question, tokens)
                    for question in questions
                    for tokens in ((), everything, *context.windows)
                ]
            )
        )
        found = [(next(alone), next(alone), [next(alone) for _ in windows]) for _ in questions]
        attended_QW = self._attended(context)
        gains_QW = [_gains(of_windows, stored) for stored, _, of_windows in found]
        pairs = [self._pairs(*of_one) for of_one in zip(gains_QW, attended_QW, strict=True)]
        together = iter(
            asking.outcomes(
                [
                    Forced(question, context.tokens_of(pair))
                    for question in questions
                    for pair in pairs[question]
                ]
            )
        )
        return tuple(
            SelectionLabels(
                tuple(answers[question]),
                stored.logprob,
                computed.logprob,
                gains_QW[question],
                np.array(pairs[question], dtype=np.int64).reshape(-1, 2),
                _gains([next(together) for _ in pairs[question]], stored),
                attended_QW[question],
            )
            for question, (stored, computed, _) in enumerate(found)
        )

    def _pairs(self, gain_W: Floats, attended_W: Floats) -> list[tuple[int, int]]:
        """Of the windows that gain most, and as many of those that are attended to most."""
        best = (np.argsort(-values_W, kind="stable").tolist() for values_W in (gain_W, attended_W))
        in_turn = dict.fromkeys(window for both in zip(*best, strict=True) for window in both)
        return list(combinations(sorted([*in_turn][: self.settings.pair_windows]), 2))

    @torch.no_grad()
    def _attended(self, context: SelectionContext) -> list[Floats]:
        """Returns its attention when it reads everything, as ``full`` does."""
        reading = context.primary
        request = TwinRequest(self.prefix_ids, reading.chunks, reading.questions, ReuseMode.FULL)
        (scores_QT,) = attended(self.model, [request])
        return [
            np.array([scores_T[list(window)].mean() if window else 0.0 for window in context.windows])
            for scores_T in scores_QT.double().cpu().numpy()
        ]


def _gains(outcomes: Sequence[ForcedOutcome], stored: ForcedOutcome) -> Floats:
    return np.array([outcome.logprob - stored.logprob for outcome in outcomes], dtype=np.float64)
