"""Asking: what is kept is not asked again, tasks take turns, and an interruption keeps what was answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from cluster.evaluation.answers import EvalAnswer
from cluster.evaluation.arms import FULL, EvalArm
from cluster.evaluation.asking import EvalAsking
from cluster.evaluation.cases import EvalCase, EvalTask
from cluster.evaluation.metrics import Metric
from shared.measuring.answer_file import AnswerFile

ARMS = (EvalArm(None), FULL)
QUIET = Console(quiet=True)


class Recorder:
    """Answers at once; ``asked``: names of tasks and cases. ``stop_after``: then it is interrupted."""

    contexts_at_once = 2

    def __init__(self, stop_after: int = 10**6) -> None:
        self.asked: list[tuple[str, str]] = []
        self._stop_after = stop_after

    def ask(
        self, task: EvalTask, cases: Sequence[EvalCase], arms: Sequence[EvalArm]
    ) -> list[list[EvalAnswer]]:
        if len(self.asked) >= self._stop_after:
            raise KeyboardInterrupt
        self.asked += [(task.name, case.name) for case in cases]
        return [
            [EvalAnswer(task.name, case.name, arm.label, 1, "", 0, 1, 0, None, None, 0, 0) for arm in arms]
            for case in cases
        ]


def tasks(num_cases: int = 5) -> list[EvalTask]:
    cases = tuple(EvalCase(str(i), "?", (("x",),)) for i in range(num_cases))
    return [EvalTask(name, Metric.COVERAGE, 8, cases) for name in "ab"]


def asked(bench: Recorder, kept: AnswerFile, num_cases: int = 5) -> list[EvalAnswer]:
    return EvalAsking(lambda task: ARMS).run(bench, [], tasks(num_cases), kept, QUIET)


def test_all_cases_are_asked_once_some_of_each_task_in_turn() -> None:
    bench = Recorder()
    told = asked(bench, AnswerFile(None, {}))
    assert len(told) == 2 * 5 * len(ARMS)
    assert len(bench.asked) == len(set(bench.asked)) == 10
    assert [name for name, _ in bench.asked] == list("aabbaabbab")


def test_a_second_run_goes_on_from_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first = asked(Recorder(), AnswerFile(path, {}), 3)
    again = Recorder()
    told = asked(again, AnswerFile(path, {}), 5)
    assert sorted(again.asked) == [("a", "3"), ("a", "4"), ("b", "3"), ("b", "4")]
    assert told[: len(first)] == first
    assert len(told) == 2 * 5 * len(ARMS)
    assert len(asked(Recorder(), AnswerFile(path, {}), 2)) == 2 * 2 * len(ARMS)


def test_an_interruption_keeps_what_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with pytest.raises(KeyboardInterrupt):
        asked(Recorder(stop_after=4), AnswerFile(path, {}))
    again = Recorder()
    asked(again, AnswerFile(path, {}))
    assert len(again.asked) == 6


def test_nothing_is_begun_when_the_time_is_up() -> None:
    bench = Recorder()
    assert not EvalAsking(lambda task: ARMS, minutes=-1).run(bench, [], tasks(), AnswerFile(None, {}), QUIET)
    assert not bench.asked


def test_others_ask_beside_it() -> None:
    bench, other = Recorder(), Recorder()
    told = EvalAsking(lambda task: ARMS).run(
        bench,
        [lambda batch: other.ask(batch.task, batch.cases, batch.arms)],
        tasks(),
        AnswerFile(None, {}),
        QUIET,
    )
    assert len(told) == 2 * 5 * len(ARMS)
    assert len({*bench.asked, *other.asked}) == len(bench.asked) + len(other.asked) == 10
