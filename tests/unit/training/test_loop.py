"""The training loop, over a trainee of one vector: what it does with lessons, memory and other workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from services.training.curriculum import Shuffled
from services.training.loop import TrainingLoop
from services.training.loop_settings import LoopSettings
from services.training.mixture import LessonKind, Mixture
from services.training.trainee import LossTally
from shared.engine.model.out_of_memory import is_out_of_memory
from shared.errors import ConfigError
from tests.out_of_memory import CPU_IS_FULL

SETTINGS = LoopSettings(
    updates=6, warmup=1, contexts_per_update=4, lr=0.1, evaluate_every=2, checkpoint_every=2
)
TOO_MUCH = 10**14
"""Numbers, which no machine has room for."""


@dataclass(frozen=True)
class Point:
    """``num_tokens`` times the same."""

    at: float
    num_tokens: int

    @property
    def identity(self) -> object:
        return self.at, self.num_tokens


LESSONS = [Point(i / 7, 1 + i % 3) for i in range(9)]


@dataclass
class Vector:
    """Learns the mean of points. ``limit``: most lessons that fit into a pass."""

    measure, untrained = "distance", "at zero"
    limit: int = 99
    of: str = "points"
    released: int = 0
    x: Tensor = field(default_factory=lambda: torch.zeros(2, requires_grad=True))
    unused: Tensor = field(default_factory=lambda: torch.ones(1, requires_grad=True))
    written: list[tuple[list[float], Mapping[str, str]]] = field(default_factory=list)

    def parameters(self) -> list[Tensor]:
        return [self.x, self.unused]

    def state(self) -> dict[str, Tensor]:
        return {"x": self.x, "unused": self.unused}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        self.x.copy_(state["x"])

    def made_of(self) -> dict[str, str]:
        return {"of": self.of}

    def loss(self, lessons: Sequence[Point]) -> Tensor:
        if len(lessons) > self.limit:
            torch.empty(TOO_MUCH)
        return torch.stack([point.num_tokens * ((self.x - point.at) ** 2).sum() for point in lessons]).sum()

    def evaluate(self, lessons: Sequence[Point]) -> LossTally:
        return LossTally(float(self.loss(lessons)), 0, sum(point.num_tokens for point in lessons))

    def release(self) -> None:
        self.released += 1

    def write(self, out: Path, state: Mapping[str, Tensor], recipe: Mapping[str, str]) -> None:
        self.written.append((state["x"].tolist(), recipe))


def loop_at(out: Path, settings: LoopSettings = SETTINGS, **changed: Any) -> TrainingLoop[Point]:
    trainee = changed.pop("trainee", None) or Vector()
    lessons, say = changed.pop("lessons", LESSONS), changed.pop("said", []).append
    return TrainingLoop(trainee, lessons, settings, out, say, **changed)


def run(loop: TrainingLoop[Point], until: int = 99) -> TrainingLoop[Point]:
    loop.train(lambda found: None, lambda: loop.update >= until)
    return loop


def test_every_kind_is_evaluated_alone(tmp_path: Path) -> None:
    kinds = [LessonKind("near", 3, LESSONS[:4]), LessonKind("far", 1, LESSONS[4:])]
    mixture = Mixture(kinds, SETTINGS)
    loop = loop_at(tmp_path, lessons=mixture)
    found = loop.evaluate()
    with torch.no_grad():
        tallies = {kind: loop.trainee.evaluate(points) for kind, points in mixture.held_out_kinds.items()}
    assert found.kinds == {kind: pytest.approx(t.loss / t.num_tokens) for kind, t in tallies.items()}
    num_tokens = sum(t.num_tokens for t in tallies.values())
    assert found.loss == pytest.approx(sum(t.loss for t in tallies.values()) / num_tokens)
    assert not loop_at(tmp_path).evaluate().kinds, "without kinds there is one loss"


class Together:
    """Threads that add up what they hold, in the order of their ranks."""

    def __init__(self, count: int) -> None:
        self.barrier, self.held = Barrier(count, timeout=60), dict[int, list[Tensor]]()

    def worker(self, rank: int) -> _Worker:
        return _Worker(self, rank, self.barrier.parties)


@dataclass
class _Worker:
    together: Together
    rank: int
    count: int

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        self.together.held[self.rank] = [x.clone() for x in tensors]
        self.together.barrier.wait()
        for i, x in enumerate(tensors):
            x.copy_(torch.stack([self.together.held[rank][i] for rank in range(self.count)]).sum(0))
        self.together.barrier.wait()

    def wait_for_all(self) -> None:
        self.together.barrier.wait()


def run_together(loops: Sequence[TrainingLoop[Point]], until: int = 99) -> None:
    threads = [Thread(target=run, args=(loop, until)) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class TestMemory:
    def test_passes_become_smaller_and_it_is_said(self, tmp_path: Path) -> None:
        said: list[str] = []
        scarce, ample = Vector(limit=1), Vector()
        loop = loop_at(tmp_path, trainee=scarce, said=said)
        whole = loop_at(tmp_path, trainee=ample)
        assert loop.train_update() == pytest.approx(whole.train_update(), rel=1e-6)
        torch.testing.assert_close(scarce.x, ample.x)
        assert said == [f"out of memory: from here on {n} contexts in a pass, not {2 * n}" for n in (2, 1)]
        assert scarce.released == 2
        scarce.limit = 0
        with pytest.raises(ConfigError, match="out of memory with one context in a pass"):
            loop.train_update()

    def test_what_can_be_given_up_is_given_up_first(self, tmp_path: Path) -> None:
        class Thrifty(Vector):
            def release(self) -> bool:
                self.limit, first = 99, not self.released
                self.released += 1
                return first

        said: list[str] = []
        loop = loop_at(tmp_path, trainee=Thrifty(limit=1), said=said)
        loop.train_update()
        assert said == ["out of memory: from here on more is computed again, and less kept"]
        assert loop._together == 4

    @pytest.mark.parametrize(
        "told",
        [
            "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        ],
    )
    def test_libraries_of_a_gpu_say_so_in_their_own_words(self, told: str) -> None:
        assert is_out_of_memory(RuntimeError(told))

    @pytest.mark.parametrize("error", [RuntimeError(CPU_IS_FULL), MemoryError()], ids=["torch", "Python"])
    def test_on_a_processor_losses_and_weights_are_those_of_smaller_passes_from_the_start(
        self, error: Exception, tmp_path: Path
    ) -> None:
        class Full(Vector):
            def loss(self, lessons: Sequence[Point]) -> Tensor:
                if len(lessons) > 2:
                    raise error
                return super().loss(lessons)

        full, small = Full(), Vector()
        loop = run(loop_at(tmp_path / "full", trainee=full))
        other = run(loop_at(tmp_path / "small", replace(SETTINGS, contexts_per_pass=2), trainee=small))
        assert loop.losses == other.losses
        assert torch.equal(full.x, small.x)

    def test_the_optimizers_own_is_told(self, tmp_path: Path) -> None:
        loop = loop_at(tmp_path)

        def begin(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if optimizer.param_groups[0]["params"][0] is loop.trainee.state()["x"]:
                torch.empty(TOO_MUCH)

        hook = register_optimizer_step_pre_hook(begin)
        try:
            with pytest.raises(ConfigError, match=r"out of memory for the optimizer, .* a smaller rank"):
                loop.train_update()
        finally:
            hook.remove()

    def test_other_errors_are_raised(self, tmp_path: Path) -> None:
        class Broken(Vector):
            def loss(self, lessons: Sequence[Point]) -> Tensor:
                raise RuntimeError("shapes differ")

        with pytest.raises(RuntimeError, match="shapes differ"):
            loop_at(tmp_path, trainee=Broken()).train_update()

    def test_contexts_of_a_pass_are_no_more_than_asked_for(self, tmp_path: Path) -> None:
        few = Vector(limit=3)
        run(loop_at(tmp_path, replace(SETTINGS, contexts_per_pass=3), trainee=few))
        assert few.released == 0


class TestCheckpoints:
    def test_goes_on_to_the_same(self, tmp_path: Path) -> None:
        once = run(loop_at(tmp_path / "once"))
        for until in (1, 3, 99):
            parts = loop_at(tmp_path / "parts")
            assert parts.resume() == (until > 1)
            run(parts, until)
        assert parts.losses == once.losses
        assert torch.equal(parts.trainee.state()["x"], once.trainee.state()["x"])
        assert parts.best is not None
        assert once.best is not None
        assert parts.best.evaluation == once.best.evaluation

    def test_with_smaller_passes_it_goes_on_to_the_same(self, tmp_path: Path) -> None:
        once = run(loop_at(tmp_path / "once"))
        run(loop_at(tmp_path / "parts"), 2)
        parts = loop_at(tmp_path / "parts", replace(SETTINGS, contexts_per_pass=1), trainee=Vector(limit=1))
        assert parts.resume()
        assert run(parts).losses == pytest.approx(once.losses, rel=1e-5)

    def test_what_memory_has_left_of_a_pass_it_goes_on_with(self, tmp_path: Path) -> None:
        run(loop_at(tmp_path, trainee=Vector(limit=2)), 2)
        again, said = Vector(limit=2), list[str]()
        loop = loop_at(tmp_path, trainee=again, said=said)
        assert loop.resume()
        run(loop)
        assert said == ["goes on at update 2 of 6"]

    @pytest.mark.parametrize(
        ("other", "told"),
        [
            ({"settings": replace(SETTINGS, lr=0.2)}, "made with lr '0.1', not '0.2'"),
            ({"trainee": Vector(of="lines")}, "made with of 'points', not 'lines'"),
            ({"lessons": LESSONS[:4]}, "made with data"),
        ],
    )
    def test_what_differs_is_named(self, other: dict[str, Any], told: str, tmp_path: Path) -> None:
        run(loop_at(tmp_path), 2)
        with pytest.raises(ConfigError, match=told):
            loop_at(tmp_path, **other).resume()

    def test_the_best_is_written(self, tmp_path: Path) -> None:
        vector = Vector()
        loop = run(loop_at(tmp_path, trainee=vector))
        assert loop.best is not None
        values, recipe = vector.written[-1]
        assert values == loop.best.state["x"].tolist()
        assert recipe["update"] == f"{loop.best.update}"
        assert recipe["lr"] == "0.1"

    def test_one_context_is_too_few(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="two contexts"):
            loop_at(tmp_path, lessons=LESSONS[:1])


class TestCurricula:
    def test_every_lesson_comes_once_per_epoch_in_another_order(self) -> None:
        shuffled = Shuffled(LESSONS, replace(SETTINGS, held_out=0.3))
        drawn = [lesson for update in range(4) for lesson in shuffled.drawn(update, 3)]
        assert sorted(drawn[:6], key=repr) == sorted(shuffled.lessons, key=repr)
        assert sorted(drawn[6:], key=repr) == sorted(shuffled.lessons, key=repr)
        assert drawn[:6] != drawn[6:]
        assert len(shuffled.held_out) == 3
        assert not set(shuffled.held_out).intersection(drawn)

    def test_of_their_own_are_followed(self, tmp_path: Path) -> None:
        class Backwards(Shuffled[Point]):
            def drawn(self, update: int, count: int) -> Iterator[Point]:
                asked.append((update, count))
                yield from self.lessons[::-1][:count]

        asked: list[tuple[int, int]] = []
        run(loop_at(tmp_path, lessons=Backwards(LESSONS, SETTINGS)))
        assert asked == [(update, 4) for update in range(6)]


class TestWorkers:
    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_learn_what_one_learns(self, count: int, tmp_path: Path) -> None:
        alone = run(loop_at(tmp_path / "alone"))
        group = Together(count)
        loops = [loop_at(tmp_path / f"{rank}", workers=group.worker(rank)) for rank in range(count)]
        run_together(loops)
        for loop in loops:
            assert loop.losses == pytest.approx(alone.losses, rel=1e-5)
            assert loop.before is not None
            assert loop.before.loss == pytest.approx(alone.before.loss, rel=1e-6)  # type: ignore[union-attr]
            assert torch.equal(loop.trainee.state()["x"], loops[0].trainee.state()["x"])
        assert [(tmp_path / f"{rank}").exists() for rank in range(count)] == [True] + [False] * (count - 1)

    def test_another_number_of_them_goes_on(self, tmp_path: Path) -> None:
        alone = run(loop_at(tmp_path / "alone"))
        group = Together(2)
        loops = [loop_at(tmp_path / "parts", workers=group.worker(rank)) for rank in range(2)]
        run_together(loops, until=4)
        last = loop_at(tmp_path / "parts")
        assert last.resume()
        assert last.update == 4
        assert run(last).losses == pytest.approx(alone.losses, rel=1e-5)

    def test_one_interrupted_or_short_of_memory_counts_for_all(self, tmp_path: Path) -> None:
        group, vectors = Together(2), [Vector(), Vector(limit=1)]
        loops = [
            loop_at(tmp_path / f"{rank}", trainee=vectors[rank], workers=group.worker(rank))
            for rank in range(2)
        ]
        threads = [
            Thread(target=loops[0].train, args=(lambda found: None, lambda: False)),
            Thread(target=run, args=(loops[1], 3)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [loop.update for loop in loops] == [3, 3]
        assert [loop._together for loop in loops] == [1, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("updates", 0), ("lr", float("nan")), ("held_out", 1.0), ("warmup", -1), ("contexts_per_pass", -1)],
)
def test_settings_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: must be"):
        replace(SETTINGS, **{name: value})
