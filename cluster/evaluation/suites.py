"""Names the suites, and makes the tasks of one: on the spot, or from files."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.evaluation.cases import EvalTask
from cluster.evaluation.cutting import CaseCutter
from cluster.evaluation.datasets.ctxs import ctxs_tasks
from cluster.evaluation.datasets.longbench import longbench_tasks
from cluster.evaluation.datasets.regression import gsm8k_tasks, mmlu_tasks, triviaqa_tasks
from cluster.evaluation.datasets.rgb import rgb_tasks
from cluster.evaluation.datasets.wanted import DEFAULT_NOISE, WantedCases, parse_noise
from cluster.evaluation.metrics import Metric
from cluster.evaluation.ruler.tasks import RulerMaker
from cluster.evaluation.ruler.variants import AVERAGED, NEEDLES, Variant
from cluster.gate.names import parse_names
from shared.errors import InvalidRequest

Reader = Callable[[Path, WantedCases], list[EvalTask]]
_MADE_LENGTH = 2048


class Suite(enum.StrEnum):
    RULER = "ruler"
    CACHECLIP = "cacheclip"
    RGB = "rgb"
    LONGBENCH = "longbench"
    CTXS = "ctxs"
    MMLU = "mmlu"
    TRIVIAQA = "triviaqa"
    GSM8K = "gsm8k"

    @property
    def reader(self) -> Reader | None:
        """Of its files; None: its cases are made on the spot."""
        return _READERS.get(self)

    @property
    def default_length(self) -> int:
        """Of prompts and answers; 0: as long as the model can read."""
        return 0 if self.reader else _MADE_LENGTH


_READERS: dict[Suite, Reader] = {
    Suite.RGB: rgb_tasks,
    Suite.LONGBENCH: longbench_tasks,
    Suite.CTXS: ctxs_tasks,
    Suite.MMLU: mmlu_tasks,
    Suite.TRIVIAQA: triviaqa_tasks,
    Suite.GSM8K: gsm8k_tasks,
}
_USUAL = WantedCases(0, noise=parse_noise(DEFAULT_NOISE))


@dataclass(frozen=True, slots=True)
class SuiteOrder:
    """
    cases: at most so many of each task.
    tasks: their names; none: all.
    length: of a prompt and its answer, in tokens of the model.
    max_tokens: of an answer; 0: as the suite has it.
    haystack: a file of prose to hide needles in; None: paragraphs about invented things.
    data: files of the suites that are read from files; metric, noise, passages: see ``WantedCases``.
    """

    suite: Suite
    cases: int
    tasks: tuple[str, ...] = ()
    seed: int = 0
    length: int = 0
    max_tokens: int = 0
    haystack: Path | None = None
    data: tuple[Path, ...] = ()
    metric: Metric | None = None
    noise: tuple[float, ...] = _USUAL.noise
    passages: int = _USUAL.passages

    def check(self) -> None:
        """
        Raises:
            InvalidRequest: an option does not fit the suite.
        """
        if self.suite.reader and not self.data:
            raise InvalidRequest(
                f"--data: {self.suite} is asked from a file that you bring; name it (docs/evaluation.md says "
                "which there are)"
            )
        if not self.suite.reader and self.data:
            raise InvalidRequest(f"--data: {self.suite} is made on the spot; leave it out")
        if self.haystack is not None and self.suite.reader:
            raise InvalidRequest(f"--haystack: {self.suite} hides nothing; leave it out")
        if not self.suite.reader:
            self._variants()

    def read(self) -> list[EvalTask]:
        """Of files; none of a suite that is made on the spot.

        Raises:
            InvalidRequest: a file is missing or of another format; names line and field.
        """
        reader = self.suite.reader
        return [] if reader is None else self._read(reader)

    def make(self, cutter: CaseCutter, on_case: Callable[[], object]) -> list[EvalTask]:
        """On the spot. ``on_case``: called for each that is made.

        Raises:
            InvalidRequest: nothing fits into the length.
        """
        maker = RulerMaker(cutter, self.length, self.seed, self._prose(), self.max_tokens)
        return [maker.task(variant, self.cases, on_case) for variant in self._variants()]

    @property
    def num_made(self) -> int:
        """Cases that are made on the spot."""
        return 0 if self.suite.reader else len(self._variants()) * self.cases

    @property
    def averages(self) -> Sequence[tuple[str, tuple[str, ...]]]:
        """Tasks over which scores are averaged, by what that is called."""
        if self.suite is Suite.CACHECLIP:
            return (
                ("reference coverage, eight tasks", NEEDLES),
                ("as the paper averages, without multikey_2 and _3", AVERAGED),
            )
        return () if self.suite.reader else (("RULER", tuple(Variant)),)

    def settings(self) -> dict[str, object]:
        """Returns what cases depend on: answers to others are not to be mixed with theirs."""
        return {
            "suite": self.suite.value,
            "seed": self.seed,
            "length": self.length,
            "max_tokens": self.max_tokens,
            "haystack": _hash(self._prose().encode()),
            "data": {path.name: _hash(path.read_bytes()) for path in self.data if path.is_file()},
            "metric": self.metric and self.metric.value,
            "passages": self.passages,
        }

    def _read(self, reader: Reader) -> list[EvalTask]:
        wanted = WantedCases(self.cases, self.seed, self.max_tokens, self.metric, self.noise, self.passages)
        found: dict[str, EvalTask] = {}
        for path in self.data:
            for task in reader(path, wanted):
                if task.name in found:
                    raise InvalidRequest(
                        f"--data: {path} makes a task {task.name}, as another file does; rename one of them"
                    )
                found[task.name] = task
        if unknown := [name for name in self.tasks if name not in found]:
            raise InvalidRequest(f"--tasks: {unknown[0]!r} is not one of {', '.join(found)}")
        return [found[name] for name in self.tasks or found]

    def _variants(self) -> tuple[Variant, ...]:
        every = tuple(Variant) if self.suite is Suite.RULER else NEEDLES
        names = {variant.value: variant for variant in every}
        if unknown := [name for name in self.tasks if name not in names]:
            raise InvalidRequest(f"--tasks: {unknown[0]!r} is not one of {', '.join(names)}")
        return tuple(names[name] for name in self.tasks) or every

    def _prose(self) -> str:
        if self.haystack is None:
            return ""
        try:
            return self.haystack.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"--haystack: {self.haystack} cannot be read as UTF-8 text ({error}); name another file"
            ) from None


def parse_suite(name: str) -> Suite:
    """
    Raises:
        InvalidRequest: there is none of that name.
    """
    (suite, *others) = parse_names("--suite", name, Suite) or (None,)
    if suite is None or others:
        raise InvalidRequest(f"--suite: {name!r} must be one of {', '.join(Suite)}")
    return suite


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest() if data else ""
