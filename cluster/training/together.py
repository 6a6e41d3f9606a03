"""Trains with several workers at once, by Ray Train: each takes its share of every update's contexts.

Workers are processes of this machine, or of the Ray cluster that ``RAY_ADDRESS`` names; then the folder that
is written to must be one that all of its machines see. What rank 0 tells reaches the caller through an actor,
and so does an interruption the workers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from cluster.local.state import RAY_DIR_PREFIX
from cluster.training.run import Progress, Say, TrainingTask, interruptible, run_loop
from services.training.torch_workers import TorchWorkers
from shared.errors import ConfigError, KvquiltError

_OBJECT_STORE_BYTES = 100 * 2**20  # weights and gradients never travel through it
_TIMEOUT_S = 24 * 3600  # until one gives up on the others, who may still ask the teacher
_SETTINGS = {
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True, slots=True)
class Team:
    """``threads``: of torch in each worker."""

    num_workers: int
    on_gpus: bool = False
    threads: int = 1


def train_together(
    task: TrainingTask, examples: Iterable[Any], team: Team, on_progress: Progress, say: Say
) -> None:
    """As ``run.train``, over the task's loop.

    Raises:
        KeyboardInterrupt: it was interrupted, and there is a checkpoint.
        KvquiltError: a worker's; or there are fewer GPUs than workers.
    """
    with ray_for(team), tempfile.TemporaryDirectory() as directory:
        _check_gpus(team)
        desk = ray.remote(num_cpus=0)(_Desk).remote()
        given = {"task": task, "examples": list(examples), "threads": team.threads, "desk": desk}
        trainer = TorchTrainer(
            _work,
            train_loop_config=given,
            scaling_config=ScalingConfig(num_workers=team.num_workers, use_gpu=team.on_gpus),
            torch_config=TorchConfig(timeout_s=_TIMEOUT_S),
            run_config=RunConfig(name="training", storage_path=directory),
        )
        fit = _Fit(trainer)
        done = _listen(fit, desk, on_progress, say)
    if fit.error is not None:
        raise KvquiltError(f"a worker of the training ended: {fit.error}") from fit.error
    if not done:
        raise KeyboardInterrupt


def _listen(fit: _Fit, desk: Any, on_progress: Progress, say: Say) -> bool:
    """Until all workers have ended. Returns whether the training is done.

    Raises:
        KvquiltError: a worker's.
    """
    failed: list[KvquiltError] = []
    done, told = False, False
    with interruptible() as interrupted:
        fit.start()
        while True:
            ending = not fit.is_alive()
            if interrupted() and not told:
                told = True
                ray.get(desk.stop.remote())
            for what, *values in ray.get(desk.take.remote(wait_s=0.0 if ending else 0.2)):
                if what == "failed":
                    failed += values
                elif what == "said":
                    say(*values)
                elif what == "progress":
                    on_progress(*values)
                else:
                    done = values[0]
            if ending:
                break
    if failed:
        raise failed[0]
    return done


class _Fit(Thread):
    """Beside the thread that has the signals, which Ray Train would take."""

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._trainer = trainer

    def run(self) -> None:
        try:
            self._trainer.fit()
        except (Exception, SystemExit) as error:  # Ray's, when it is shut down beside it
            self.error = error


class _Desk:
    """Between the workers and the one that started them."""

    def __init__(self) -> None:
        self._news: list[tuple[Any, ...]] = []
        self._come, self._stopped = asyncio.Event(), asyncio.Event()

    async def tell(self, *news: Any) -> None:
        self._news.append(news)
        self._come.set()

    async def take(self, wait_s: float) -> list[tuple[Any, ...]]:
        """Takes what was told since, or is within this time."""
        if not self._news:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._come.wait(), wait_s)
        self._come.clear()
        news, self._news = self._news, []
        return news

    async def stop(self) -> None:
        self._stopped.set()

    async def stopped(self) -> None:
        await self._stopped.wait()


def _work(given: Mapping[str, Any]) -> None:
    """In every worker."""
    import torch

    torch.set_num_threads(given["threads"])
    desk, workers = given["desk"], TorchWorkers(get_device())
    stopped = desk.stopped.remote()

    def tell(*news: Any) -> None:
        if not workers.rank:
            ray.get(desk.tell.remote(*news))

    def interrupted() -> bool:
        return bool(ray.wait([stopped], timeout=0)[0])

    try:
        loop = given["task"].loop(
            given["examples"],
            lambda done, of: tell("progress", done, of),
            lambda line: tell("said", line),
            workers,
        )
        tell("done", run_loop(loop, lambda line: tell("said", line), interrupted))
    except KvquiltError as error:
        ray.get(desk.tell.remote("failed", error))
        raise


@contextmanager
def ray_for(team: Team) -> Iterator[None]:
    """Ray on this machine, with room for the workers, or the cluster that ``RAY_ADDRESS`` names; or what runs
    in this process already."""
    if ray.is_initialized():
        yield
        return
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    directory = tempfile.mkdtemp(prefix=RAY_DIR_PREFIX)
    try:
        if os.environ.get("RAY_ADDRESS"):
            ray.init(log_to_driver=False)
        else:
            ray.init(
                address="local",
                num_cpus=team.num_workers + 1,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=directory,
                _node_ip_address="127.0.0.1",
            )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


def _check_gpus(team: Team) -> None:
    """Ray would wait for them for ever."""
    num_gpus = ray.cluster_resources().get("GPU", 0)
    if team.on_gpus and num_gpus < team.num_workers:
        raise ConfigError(
            f"--workers: {team.num_workers} workers on GPUs need one each, there are {num_gpus:g}; ask for "
            "fewer, or --device cpu"
        )
