"""Makes the loop that trains the auxiliary model of a model as it is served, and judges what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.gate.ingested import Ingesting
from cluster.gate.selections import Selections
from cluster.training.examples import Example
from cluster.training.run import Say
from cluster.training.selection_contexts import SelectionContextMaker
from cluster.training.task import KEPT, TrainedModel
from services.training.auxiliary.contexts import SelectionContext
from services.training.auxiliary.counterfactual import PassSize
from services.training.auxiliary.judge import JudgedChoices, judge
from services.training.auxiliary.kept import KeptLabels
from services.training.auxiliary.labeller import Labeller, Progress
from services.training.auxiliary.labels import LabelledContext
from services.training.auxiliary.settings import AuxiliarySettings
from services.training.auxiliary.trainee import AuxiliaryTrainee, SelectionLesson
from services.training.loop import TrainingLoop
from services.training.workers import Workers
from shared.errors import ConfigError
from shared.prompt import PromptTokenizer
from shared.selection.auxiliary import load_auxiliary
from shared.selection.spans import SpanTokenizer

UNTUNED, TUNED = "untuned", "tuned"


@dataclass(frozen=True, slots=True)
class AuxiliaryTask:
    """``auxiliary``: a model directory or hub id to begin with. Gains are measured in float32, whatever the
    model is served in: small ones are lost in bfloat16's rounding.

    Raises:
        ConfigError: no auxiliary model is named.
    """

    served: TrainedModel
    auxiliary: str
    settings: AuxiliarySettings
    out: Path

    def __post_init__(self) -> None:
        if not self.auxiliary:
            raise ConfigError(
                "--auxiliary: the model's settings name none; name a model directory or hub id to begin with"
            )

    def loop(
        self,
        examples: Iterable[Example],
        on_progress: Progress,
        say: Say,
        workers: Workers | None = None,
    ) -> TrainingLoop[SelectionLesson]:
        """Has the primary say what windows are worth, and goes on from a checkpoint, if there is one.

        Raises:
            ConfigError, InvalidRequest, ModelUnsupported, UnreadableDocument: a model, a setting or an
                example cannot be used.
        """
        bench = self._bench(say)
        labelled = bench.labelled(examples, on_progress, workers)
        lessons = [SelectionLesson.of(one, self.settings.target) for one in labelled]
        teaching = [lesson for lesson in lessons if lesson.num_tokens]
        told, asked = sum(x.num_tokens for x in lessons), sum(len(x.shares) for x in lessons)
        if len(teaching) < 2:
            raise ConfigError(
                f"data: {told} of {asked} questions teach something, in {len(teaching)} contexts, and it "
                "takes two; for the others nothing is worth computing anew: give questions whose evidence "
                "lies in several documents, longer --answer-tokens, or another --kv-context"
            )
        say(f"{told} of {asked} questions teach something; for the others nothing is worth computing anew")
        trainee = bench.trainee(self.auxiliary)
        loop = TrainingLoop(trainee, teaching, self.settings, self.out, say, workers)
        loop.resume()
        return loop

    def judge(
        self,
        examples: Iterable[Example],
        beside: Sequence[str],
        ratios: Sequence[float],
        on_progress: Progress,
        held_out: bool = False,
    ) -> Iterator[tuple[float, JudgedChoices]]:
        """By ratio. ``beside``: further auxiliary models. ``held_out``: of ``examples``, which it was trained
        on, only what was held out.

        Raises:
            ConfigError: one of these has another tokenizer.
        """
        bench = self._bench()
        paths = {UNTUNED: self.auxiliary, **{path: path for path in beside}, TUNED: str(self.out)}
        choices = {name: bench.trainee(path).window_scores for name, path in paths.items()}
        if held_out:
            loop = self.loop(examples, on_progress, lambda line: None)
            labelled = [lesson.labelled for lesson in loop.held_out]
        else:
            labelled = bench.labelled(examples, on_progress)
        for ratio in ratios:
            over = bench.labeller.counterfactuals
            yield ratio, judge(labelled, over, choices, ratio, self.settings.seed, on_progress)

    def contexts(self, examples: Iterable[Example]) -> list[SelectionContext]:
        """As both models read them."""
        return list(self._bench().maker.contexts(examples))

    def _bench(self, say: Say = lambda line: None) -> _Bench:
        served = replace(self.served, dtype="float32")
        prompts, read = served.prompts(), load_auxiliary(self.auxiliary)
        model = served.load(prompts)
        maker = SelectionContextMaker(
            Ingesting(served.ingestion, prompts, model.spec.vocab_size, model.fingerprint),
            prompts,
            Selections(read, SpanTokenizer(prompts, served.ingestion.model)),
            read.prompts,
            served.num_chunks,
            served.num_questions,
        )
        kept = KeptLabels.at(self.out / KEPT, model.fingerprint, prompts.prefix_ids)
        size = PassSize(self.settings.rows_per_pass, say)
        labeller = Labeller(model, prompts.prefix_ids, self.settings, kept, size, prompts.decode)
        return _Bench(maker, labeller, read.prompts, served.device)


@dataclass(frozen=True, slots=True)
class _Bench:
    """Both models, loaded. ``prompts``: the auxiliary's."""

    maker: SelectionContextMaker
    labeller: Labeller
    prompts: PromptTokenizer
    device: str

    def labelled(
        self, examples: Iterable[Example], on_progress: Progress, workers: Workers | None = None
    ) -> list[LabelledContext]:
        return self.labeller.label(list(self.maker.contexts(examples)), on_progress, workers)

    def trainee(self, path: str) -> AuxiliaryTrainee:
        """
        Raises:
            ConfigError: it has another tokenizer.
        """
        prompts = PromptTokenizer.of_model(path)
        if prompts is None or prompts.hash != self.prompts.hash:
            raise ConfigError(f"--beside: {path} has another tokenizer than the model to begin with")
        return AuxiliaryTrainee(path, prompts, self.labeller.model.fingerprint, self.device)
