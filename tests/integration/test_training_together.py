"""Several workers train what one trains, by Ray Train, and another number of them goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cluster.paths import DEMO_MODEL
from cluster.training.adapter import AdapterTask
from cluster.training.examples import Example, invented_examples
from cluster.training.run import Progress, Say, train
from cluster.training.task import TrainedModel
from cluster.training.together import Team, ray_for, train_together
from services.ingestion.config import IngestionConfig
from services.training.adapter.settings import AdapterSettings
from services.training.distillation.lessons import DistilledLesson
from services.training.loop import TrainingLoop
from services.training.trainee import HeldOutLoss
from services.training.workers import Workers
from shared.errors import ConfigError
from shared.kv_types import KvContext

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = AdapterSettings(
    updates=4, warmup=1, contexts_per_update=3, rank=2, answer_tokens=20, evaluate_every=2, lr=1e-2
)
EXAMPLES: list[Example] = list(invented_examples(2, 6))
TWO = Team(2)


@dataclass(frozen=True)
class Stopped:
    """Is interrupted after some updates."""

    task: AdapterTask
    after: int

    def loop(
        self, examples: Iterable[Example], on_progress: Progress, say: Say, workers: Workers | None = None
    ) -> TrainingLoop[DistilledLesson]:
        loop = self.task.loop(examples, on_progress, say, workers)
        whole = loop.train

        def part(on_update: Callable[[HeldOutLoss | None], None], interrupted: Callable[[], bool]) -> None:
            whole(on_update, lambda: loop.update >= self.after)

        loop.train = part  # type: ignore[method-assign]
        return loop


@pytest.fixture(scope="module", autouse=True)
def _ray_once() -> Iterator[None]:
    with ray_for(TWO):
        yield


def task(out: Path, **changed: Any) -> AdapterTask:
    ingestion = IngestionConfig(str(DEMO_MODEL), 96, KvContext.NONE)
    served = TrainedModel(ingestion, dtype="float32", num_questions=4)
    return AdapterTask(served, replace(SETTINGS, **changed), out)


def nothing(done: int, of: int) -> None:
    pass


def test_two_workers_learn_what_one_learns_and_one_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    alone = task(tmp_path / "alone").loop(EXAMPLES, nothing, said.append)
    train(alone, said.append)
    told, progress = list[str](), list[tuple[int, int]]()
    with pytest.raises(KeyboardInterrupt):
        train_together(
            Stopped(task(tmp_path / "two"), 2), EXAMPLES, TWO, lambda *p: progress.append(p), told.append
        )
    assert [line.split("  ")[0] for line in told] == ["update 2/4", told[-1]]
    assert told[-1].startswith("checkpoint at update 2 in ")
    assert progress[-1][0] == progress[-1][1] > 0
    again = task(tmp_path / "two").loop(EXAMPLES, nothing, said.append)
    assert again.update == 2
    train(again, said.append)
    assert again.losses == pytest.approx(alone.losses, rel=1e-2)
    assert max(alone.losses) > 1e-3


def test_what_a_worker_refuses_is_refused(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ConfigError, match="no linear layer 'c_attn'"):
        train_together(task(tmp_path, targets=("c_attn",)), EXAMPLES, TWO, nothing, told.append)
    with pytest.raises(ConfigError, match="--workers: 2 workers on GPUs need one each, there are "):
        train_together(task(tmp_path), EXAMPLES, Team(2, on_gpus=True), nothing, told.append)
