"""Makes the loops that train an adapter for a model as it is served: on what a teacher says, or on labelled
answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from cluster.training.examples import Example
from cluster.training.labelled import Labelled, LabelledChat, read_labelled
from cluster.training.mix import ExampleKind, by_kind, mixed
from cluster.training.run import Say
from cluster.training.samples import SampleMaker
from cluster.training.task import KEPT, Distillation, TrainedModel, distil
from services.training.adapter.settings import AdapterSettings
from services.training.adapter.trainee import AdapterTrainee, Pupil
from services.training.distillation.kept import Kept
from services.training.distillation.lessons import AskedContext, DistilledLesson, Taught
from services.training.distillation.segments import keep_segments
from services.training.distillation.teacher import Progress
from services.training.fitting import Fitting
from services.training.loop import TrainingLoop
from services.training.sft.samples import SftSample
from services.training.twin_request import Ids
from services.training.workers import Alone, Workers
from shared.errors import InvalidRequest
from shared.prompt import PromptTokenizer


@dataclass(frozen=True, slots=True)
class AdapterTask:
    """Learns what the teacher says."""

    served: TrainedModel
    settings: AdapterSettings
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
        given = distil(self.served, examples, self.settings, self.out, on_progress, say, workers)
        return _loop(self, given, say, workers)


@dataclass(frozen=True, slots=True)
class AnswersTask:
    """Learns labelled answers; there is no teacher."""

    served: TrainedModel
    settings: AdapterSettings
    out: Path

    def loop(
        self,
        examples: Iterable[Labelled | ExampleKind[Labelled]],
        on_progress: Progress,
        say: Say,
        workers: Workers | None = None,
    ) -> TrainingLoop[DistilledLesson]:
        """Computes what the contexts' chunks hold, each of several workers its share, and goes on from a
        checkpoint, if there is one. Of kinds of examples every update has their shares.

        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: the model, a setting or an example cannot be used.
        """
        prompts, workers = self.served.prompts(), workers or Alone()
        model = self.served.load(prompts)
        kinds, groups = by_kind(examples)
        maker = self._maker(prompts, model.spec.sight)
        found = [[_lesson(sample, model.spec.device) for sample in maker.samples(group)] for group in groups]
        lessons = [lesson for of_kind in found for lesson in of_kind]
        kept = Kept.at(self.out / KEPT, model.fingerprint, prompts.prefix_ids)
        mine = lessons[workers.rank :: workers.count]
        fitting = Fitting("chunks in a pass", say=say)
        for done, lesson in enumerate(mine):
            on_progress(done, len(mine))
            keep_segments(model, prompts.prefix_ids, lesson.context, kept, fitting)
        on_progress(len(mine), len(mine))
        workers.wait_for_all()
        given = Distillation(model, prompts, mixed(kinds, found, self.settings, say), kept)
        return _loop(self, given, say, workers)

    def _maker(self, prompts: PromptTokenizer, num_positions: int) -> SampleMaker:
        served, settings = self.served, self.settings
        contexts = served.maker(prompts, settings.seed)
        return SampleMaker(prompts, contexts, served.ingestion.prompt, settings.reuse, num_positions)


def read_answered(path: Path, option: str = "--data") -> list[Labelled]:
    """Documents with questions and their answers. ``option``: that names the file.

    Raises:
        InvalidRequest: the file cannot be read, or a line has another form or no documents; names file, line
            and field.
    """
    return list(map(_over_documents, read_labelled(path, option)))


def _over_documents(one: Labelled | LabelledChat) -> Labelled:
    if isinstance(one, LabelledChat):
        raise InvalidRequest(f"{one.name}: messages: an adapter learns to read documents; leave the line out")
    if not one.example.documents:
        raise InvalidRequest(
            f"{one.example.name}: documents: is missing; an adapter learns to read them; leave the line out"
        )
    return one


def _lesson(sample: SftSample, device: torch.device) -> DistilledLesson:
    asked: list[tuple[Ids, Ids]] = []
    for said in sample.branches:
        ((begin, end),) = said.learned
        asked.append((said.token_ids[:begin], said.token_ids[begin:end]))
    context = AskedContext(sample.name, sample.chunks, (), tuple(question for question, _ in asked))
    return DistilledLesson(context, tuple(Taught.certain(answer, device) for _, answer in asked))


def _loop(
    task: AdapterTask | AnswersTask, given: Distillation, say: Say, workers: Workers | None
) -> TrainingLoop[DistilledLesson]:
    served, settings = task.served, task.settings
    prefix_ids, kv_context = given.prompts.prefix_ids, served.ingestion.kv_context
    pupil = Pupil(given.model, prefix_ids, kv_context, served.base, given.mixture)
    trainee = AdapterTrainee(pupil, settings, given.kept)
    loop = TrainingLoop(trainee, given.lessons, settings, task.out, say, workers)
    loop.resume()
    return loop
