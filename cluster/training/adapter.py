"""Makes the loop that trains an adapter for a model as it is served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.training.examples import Example
from cluster.training.run import Say
from cluster.training.task import TrainedModel, distil
from services.training.adapter.settings import AdapterSettings
from services.training.adapter.trainee import AdapterTrainee, Pupil
from services.training.distillation.lessons import DistilledLesson
from services.training.distillation.teacher import Progress
from services.training.loop import TrainingLoop
from services.training.workers import Workers


@dataclass(frozen=True, slots=True)
class AdapterTask:
    served: TrainedModel
    settings: AdapterSettings
    out: Path

    def loop(
        self,
        examples: Iterable[Example],
        on_progress: Progress,
        say: Say,
        workers: Workers | None = None,
    ) -> TrainingLoop[DistilledLesson]:
        """Has the teacher say what it knows, and goes on from a checkpoint, if there is one.

        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: the model, a setting or an example cannot be used.
        """
        given = distil(self.served, examples, self.settings, self.out, on_progress, workers)
        context = self.served.ingestion.kv_context
        pupil = Pupil(given.model, given.prompts.prefix_ids, context, self.served.base)
        trainee = AdapterTrainee(pupil, self.settings, given.kept)
        loop = TrainingLoop(trainee, given.lessons, self.settings, self.out, say, workers)
        loop.resume()
        return loop
