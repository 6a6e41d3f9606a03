"""Makes the loop that fine-tunes a model as it is served on labelled answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.training.labelled import Labelled, LabelledChat, invented_labelled
from cluster.training.mix import ExampleKind
from cluster.training.run import Progress, Say
from cluster.training.samples import SampleMaker
from cluster.training.task import TrainedModel
from services.training.loop import TrainingLoop
from services.training.mixture import LessonKind, Mixture
from services.training.sft.samples import SftSample
from services.training.sft.settings import SftSettings
from services.training.sft.trainee import SftModel, SftTrainee
from services.training.workers import Workers

LabelledKind = ExampleKind[Labelled | LabelledChat]


def invented_kind(seed: int, count: int) -> LabelledKind:
    return ExampleKind("qa", 1.0, f"{count} invented contexts", invented_labelled(seed, count))


@dataclass(frozen=True, slots=True)
class SftTask:
    served: TrainedModel
    settings: SftSettings
    out: Path

    def loop(
        self,
        examples: Iterable[LabelledKind],
        on_progress: Progress,
        say: Say,
        workers: Workers | None = None,
    ) -> TrainingLoop[SftSample]:
        """Goes on from a checkpoint, if there is one.

        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: the model, a setting or an example cannot be used.
        """
        served, settings = self.served, self.settings
        prompts = served.prompts()
        model = served.load(prompts)
        maker = SampleMaker(
            prompts,
            served.maker(prompts, settings.seed),
            served.ingestion.prompt,
            settings.reuse,
            model.spec.sight,
        )
        kinds = list(examples)
        found = []
        for done, kind in enumerate(kinds):
            on_progress(done, len(kinds))
            found.append(LessonKind(kind.name, kind.share, list(maker.samples(kind.examples)), kind.source))
        mixture = Mixture(found, settings)
        for line in mixture.told():
            say(line)
        context = served.ingestion.kv_context
        tuned = SftModel(model, served.ingestion.model, context, served.base, mixture.told())
        loop = TrainingLoop(SftTrainee(tuned, settings), mixture, settings, self.out, say, workers)
        loop.resume()
        return loop
