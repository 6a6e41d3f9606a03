"""Makes the loop that trains the auxiliary model of a model as it is served, and judges what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cluster.gate.ingested import Ingesting
from cluster.gate.selections import Selections
from cluster.training.examples import Example
from cluster.training.run import Say
from cluster.training.selection_contexts import SelectionContextMaker
from cluster.training.task import KEPT, ServedModel
from services.training.auxiliary.contexts import SelectionContext
from services.training.auxiliary.judge import Verdicts, judge
from services.training.auxiliary.kept import KeptLabels
from services.training.auxiliary.labeller import Labeller, Progress
from services.training.auxiliary.labels import LabelledContext
from services.training.auxiliary.settings import AuxiliarySettings
from services.training.auxiliary.trainee import AuxiliaryTrainee, SelectionLesson
from services.training.loop import TrainingLoop
from shared.errors import ConfigError
from shared.prompt import PromptTokenizer
from shared.selection.auxiliary import load_auxiliary
from shared.selection.spans import SpanTokenizer

UNTUNED, TUNED = "untuned", "tuned"


class AuxiliaryTask:
    """Gains are measured in float32, whatever the model is served in: small ones are lost in bfloat16's
    rounding.

    Raises:
        ConfigError, InvalidRequest, ModelUnsupported: no auxiliary model is named, or one of the models
        cannot be used.
    """

    def __init__(self, served: ServedModel, auxiliary: str, settings: AuxiliarySettings, out: Path) -> None:
        """``auxiliary``: a model directory or hub id."""
        if not auxiliary:
            raise ConfigError(
                "--auxiliary: the model's settings name none; name a model directory or hub id to begin with"
            )
        self._settings, self._out, self._auxiliary, self._device = settings, out, auxiliary, served.device
        prompts, read = served.prompts(), load_auxiliary(auxiliary)
        self._prompts = read.prompts
        model = replace(served, dtype="float32").load(prompts)
        self._maker = SelectionContextMaker(
            Ingesting(served.ingestion, prompts, model.spec.vocab_size, model.fingerprint),
            prompts,
            Selections(read, SpanTokenizer(prompts, served.ingestion.model)),
            read.prompts,
            served.num_chunks,
            served.num_questions,
        )
        kept = KeptLabels.at(out / KEPT, model.fingerprint, prompts.prefix_ids)
        self._labeller = Labeller(model, prompts.prefix_ids, settings, kept, prompts.decode)
        self._held_out: list[LabelledContext] = []

    def loop(
        self, examples: Iterable[Example], on_progress: Progress, say: Say
    ) -> TrainingLoop[SelectionLesson]:
        """Has the primary say what windows are worth, and goes on from a checkpoint, if there is one.

        Raises:
            ConfigError, InvalidRequest, UnreadableDocument: an example or a setting cannot be used.
        """
        labelled = self._labelled(examples, on_progress)
        lessons = [SelectionLesson.of(one, self._settings.target) for one in labelled]
        of_lesson = {id(lesson): one for lesson, one in zip(lessons, labelled, strict=True)}
        teaching = [lesson for lesson in lessons if lesson.num_tokens]
        told, asked = sum(x.num_tokens for x in lessons), sum(len(x.shares) for x in lessons)
        if len(teaching) < 2:
            raise ConfigError(
                f"data: {told} of {asked} questions teach something, in {len(teaching)} contexts, and it "
                "takes two; for the others nothing is worth computing anew: give questions whose evidence "
                "lies in several documents, longer --answer-tokens, or another --kv-context"
            )
        loop = TrainingLoop(self._trainee(self._auxiliary), teaching, self._settings, self._out, say)
        say(f"{told} of {asked} questions teach something; for the others nothing is worth computing anew")
        if loop.resume():
            say(f"goes on at update {loop.update} of {self._settings.updates}")
        self._held_out = [of_lesson[id(lesson)] for lesson in loop.held_out]
        return loop

    def judge(
        self,
        examples: Iterable[Example] | None,
        beside: Mapping[str, str],
        ratios: Sequence[float],
        on_progress: Progress,
    ) -> Iterator[tuple[float, Verdicts]]:
        """By ratio, over ``examples``; None: over what was held out of training. ``beside``: further
        auxiliary models, by name.

        Raises:
            ConfigError: one of these has another tokenizer.
        """
        paths = {UNTUNED: self._auxiliary, **beside, TUNED: str(self._out)}
        choices = {name: self._trainee(path).window_scores for name, path in paths.items()}
        labelled = self._held_out if examples is None else self._labelled(examples, on_progress)
        for ratio in ratios:
            over = self._labeller.counterfactuals
            yield ratio, judge(labelled, over, choices, ratio, self._settings.seed, on_progress)

    def contexts(self, examples: Iterable[Example]) -> list[SelectionContext]:
        """As both models read them."""
        return list(self._maker.contexts(examples))

    def _labelled(self, examples: Iterable[Example], on_progress: Progress) -> list[LabelledContext]:
        return self._labeller.label(self.contexts(examples), on_progress)

    def _trainee(self, path: str) -> AuxiliaryTrainee:
        prompts = PromptTokenizer.of_model(path)
        if prompts is None or prompts.hash != self._prompts.hash:
            raise ConfigError(f"--beside: {path} has another tokenizer than {self._auxiliary}")
        return AuxiliaryTrainee(path, prompts, self._labeller.model.fingerprint, self._device)
