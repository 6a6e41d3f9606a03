"""Makes the loop that trains packets for a model as it is served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.training.examples import Example
from cluster.training.mix import ExampleKind
from cluster.training.run import Say
from cluster.training.task import TrainedModel, distil
from services.training.distillation.lessons import DistilledLesson
from services.training.distillation.teacher import Progress
from services.training.loop import TrainingLoop
from services.training.packets.settings import PacketSettings
from services.training.packets.trainee import PacketPupil, PacketTrainee
from services.training.workers import Workers
from shared.errors import ConfigError
from shared.kv_types import KvContext


@dataclass(frozen=True, slots=True)
class PacketTask:
    served: TrainedModel
    settings: PacketSettings
    out: Path

    def loop(
        self,
        examples: Iterable[Example | ExampleKind[Example]],
        on_progress: Progress,
        say: Say,
        workers: Workers | None = None,
    ) -> TrainingLoop[DistilledLesson]:
        """Has the teacher say what it knows, and goes on from a checkpoint, if there is one. Of kinds of
        examples every update has their shares.

        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: the model, a setting or an example cannot be used.
        """
        if self.served.ingestion.kv_context is not KvContext.NONE:
            raise ConfigError(
                "--kv-context: packets are trained for isolated chunks; leave it out, or give none"
            )
        asked = (self.served, examples, self.settings, self.out, on_progress, say, workers)
        given = distil(*asked, keeps_kv=False)
        begin_ids = given.prompts.encode(self.settings.begin_with)
        pupil = PacketPupil(given.model, given.prompts.prefix_ids, begin_ids, self.served.base, given.mixture)
        trainee = PacketTrainee(pupil, self.settings)
        loop = TrainingLoop(trainee, given.lessons, self.settings, self.out, say, workers)
        loop.resume()
        return loop
