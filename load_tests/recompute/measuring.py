"""The measurements of one run: ``full``, ``reordered`` and CacheClip at every ratio in turn, then CacheClip
beside loading."""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from load_tests.engine.case import Case
from load_tests.kv_store.stored_ttft import stored_source
from load_tests.recompute.clipping import Clip, Clipper
from load_tests.recompute.limits import prefill_limit_s, scoring_limit_s
from load_tests.recompute.serving import Primary
from load_tests.recompute.text import Speech
from shared.engine.modes.random import at_random
from shared.generation.modes import ReuseMode
from shared.generation.selection import Grouping, Reading
from shared.measuring.rates import Rates
from shared.measuring.report import Measurement, measured
from shared.measuring.shapes import Shape, build_model

Progress = Callable[[str], None]
# times the slowest selection is what the loading takes that shall hide it: beside others it takes longer
_LATER = 2.5


@dataclass(frozen=True, slots=True)
class Plan:
    """``case``: the primary's shape, and sizes in its tokens; ``percents`` of the context to recompute.

    Raises:
        ValueError: a setting makes no sense; names it.
    """

    case: Case
    auxiliary: Shape
    percents: tuple[int, ...] = (0, 10, 20, 40, 100)
    grouping: Grouping = Grouping.BUDGET
    reading: Reading = Reading.STITCHED
    runs: int = 3

    def __post_init__(self) -> None:
        if not self.percents or not all(0 <= percent <= 100 for percent in self.percents):
            raise ValueError(f"--ratios: must be percentages from 0 to 100, got {list(self.percents)}")
        if self.runs < 1:
            raise ValueError(f"--runs: must be at least 1, got {self.runs}")

    @property
    def looked_at(self) -> int | None:
        """What is taken apart and put beside loading: 20 or, failing that, the first that leaves something to
        choose."""
        choices = [percent for percent in self.percents if 0 < percent < 100]
        return 20 if 20 in choices else next(iter(choices), None)


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds to the first token, and of CacheClip by percentage what was selected, and the engine's part.
    ``spread_s``: the engine's part at the percentage that is looked at, if as many tokens lay anywhere in the
    context."""

    full_s: float
    reordered_s: float
    clips: dict[int, tuple[Clip, float]]
    spread_s: float = 0.0

    def clipped_s(self, percent: int) -> float:
        """Selection included."""
        clip, prefill_s = self.clips[percent]
        return clip.total_s + prefill_s


def measure(plan: Plan, rates: Rates, say: Progress) -> Iterator[Measurement]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvquilt-recompute-"))
        say("both models, and the auxiliary's KV")
        case, auxiliary = plan.case, build_model(plan.auxiliary)
        speech = Speech(case.shape.vocab, plan.auxiliary.vocab)
        texts = [speech.text(case.chunk_len) for _ in range(case.context // case.chunk_len)]
        question = speech.text(case.question)
        source, _ = stack.enter_context(stored_source(Path(directory), auxiliary))
        clipper = stack.enter_context(closing(Clipper(auxiliary, source, speech, texts, question)))
        chunks, question_ids = (
            [chunk.primary.token_ids for chunk in clipper.chunks],
            tuple(speech.primary.encode(question).ids),
        )
        primary = stack.enter_context(
            closing(Primary(case, build_model(case.shape, case.device), chunks, question_ids))
        )
        yield from Bench(plan, rates, clipper, primary, say).measure()


class Bench:
    def __init__(self, plan: Plan, rates: Rates, clipper: Clipper, primary: Primary, say: Progress) -> None:
        self._plan, self._rates, self._say = plan, rates, say
        self._clipper, self._primary = clipper, primary
        self._case = plan.case

    def measure(self) -> Iterator[Measurement]:
        self._say(
            f"full, reordered and cacheclip at {', '.join(map(str, self._plan.percents))} % of "
            f"{self._case.context} tokens"
        )
        self._clip(50)  # warms up
        runs = [self._run() for _ in range(self._plan.runs)]
        yield from self._curve(runs)
        if (percent := self._plan.looked_at) is not None:
            yield self._evenly(runs, percent)
            yield from self._parts(runs, percent)
            yield from self._readings(percent)
            yield from self._beside_loading([run.clips[percent][0] for run in runs], percent)

    # --- what is done --------------------------------------------------------------------------------------

    def _clip(self, percent: int, reading: Reading | None = None) -> Clip:
        return self._clipper.clip(percent / 100, self._plan.grouping, reading or self._plan.reading)

    def _run(self) -> Run:
        """In turn, so that whatever else the machine does meets all alike."""
        full_s, reordered_s = (
            self._primary.resident_s(mode) for mode in (ReuseMode.FULL, ReuseMode.REORDERED)
        )
        clips = {}
        for percent in self._plan.percents:
            clip = self._clip(percent)
            clips[percent] = clip, self._primary.resident_s(ReuseMode.TOKENS, clip.tokens)
        spread = self._spread(clips)
        return Run(
            full_s, reordered_s, clips, self._primary.resident_s(ReuseMode.TOKENS, spread) if spread else 0.0
        )

    def _spread(self, clips: Mapping[int, tuple[Clip, float]]) -> tuple[int, ...]:
        percent = self._plan.looked_at
        return () if percent is None else at_random(self._case.context, len(clips[percent][0].tokens), seed=0)

    # --- what comes of it ----------------------------------------------------------------------------------

    def _curve(self, runs: list[Run]) -> Iterator[Measurement]:
        context = self._case.context
        full = [run.full_s for run in runs]
        full_limit = self._prefill_limit(range(context))
        baseline = statistics.median(full)
        yield measured(f"ttft_full_{context}", full, "s", better="lower", limit=full_limit)
        reordered = [run.reordered_s for run in runs]
        limit = self._prefill_limit(())
        yield measured(
            f"ttft_reordered_{context}", reordered, "s", better="lower", baseline=baseline, limit=limit
        )
        for percent in self._plan.percents:
            tokens = runs[0].clips[percent][0].tokens
            limit = self._prefill_limit(tokens) + (
                self._scoring_limit(self._plan.reading) if 0 < percent < 100 else 0.0
            )
            seconds, name = [run.clipped_s(percent) for run in runs], f"cacheclip_{percent}_{context}"
            yield measured(f"ttft_{name}", seconds, "s", better="lower", baseline=baseline, limit=limit)
            speedups = [run.full_s / run.clipped_s(percent) for run in runs]
            yield measured(f"full_over_{name}", speedups, "×", better="higher", limit=full_limit / limit)
            chosen = [float(len(run.clips[percent][0].tokens)) for run in runs]
            yield measured(f"recomputed_{name}", chosen, "tokens", better="lower")

    def _evenly(self, runs: list[Run], percent: int) -> Measurement:
        """What stands in front sees little and is cheap, and where a model of random weights looks means
        nothing. So: the same, if what was selected lay evenly over the context."""
        seconds = [run.clips[percent][0].total_s + run.spread_s for run in runs]
        limit = self._prefill_limit(self._spread(runs[0].clips)) + self._scoring_limit(self._plan.reading)
        baseline = statistics.median(run.full_s for run in runs)
        name = f"ttft_cacheclip_{percent}_evenly_{self._case.context}"
        return measured(name, seconds, "s", better="lower", baseline=baseline, limit=limit)

    def _parts(self, runs: list[Run], percent: int) -> Iterator[Measurement]:
        """Where the time goes."""
        parts: defaultdict[str, list[float]] = defaultdict(list)
        for clip, prefill_s in (run.clips[percent] for run in runs):
            for name in ("pair", "load", "score", "group"):
                parts[name].append(getattr(clip, f"{name}_s"))
            parts["prefill"].append(prefill_s)
        limits = {
            "score": self._scoring_limit(self._plan.reading),
            "prefill": self._prefill_limit(runs[0].clips[percent][0].tokens),
        }
        for name, seconds in parts.items():
            yield measured(
                f"{name}_{percent}_{self._case.context}", seconds, "s", better="lower", limit=limits.get(name)
            )

    def _readings(self, percent: int) -> Iterator[Measurement]:
        self._say("the selection, by both readings")
        for reading in Reading:
            seconds = [self._clip(percent, reading).total_s for _ in range(self._plan.runs)]
            name = f"selection_{reading.value}_{self._case.context}"
            yield measured(name, seconds, "s", better="lower", limit=self._scoring_limit(reading))

    def _beside_loading(self, clips: list[Clip], percent: int) -> Iterator[Measurement]:
        """Chunks come so late that the selection is done before they are there."""
        load_s = _LATER * max(clip.total_s for clip in clips)
        self._say(f"the same beside loading that takes {load_s:.2f} s")
        alone, beside = [], []
        for clip in clips:
            alone.append(self._primary.loading(clip.tokens, load_s))
            beside.append(self._primary.selecting(lambda: self._clip(percent).tokens, load_s))
        name = f"{percent}_{self._case.context}"
        for what, values in (("loading", alone), ("loading_selecting", beside)):
            baseline = statistics.median(first.token_s for first in alone) if values is beside else None
            yield measured(
                f"ttft_{what}_{name}",
                [first.token_s for first in values],
                "s",
                better="lower",
                baseline=baseline,
            )
            baseline = statistics.median(first.placed_s for first in alone) if values is beside else None
            yield measured(
                f"placed_{what}_{name}",
                [first.placed_s for first in values],
                "s",
                better="lower",
                baseline=baseline,
            )

    # --- limits --------------------------------------------------------------------------------------------

    def _prefill_limit(self, tokens: range | tuple[int, ...]) -> float:
        case = self._case
        question = range(case.prefix + case.context, case.prompt_len)
        positions = [*(case.prefix + token for token in tokens), *question]
        return prefill_limit_s(case.shape, positions, case.prefix + case.context - len(tokens), self._rates)

    def _scoring_limit(self, reading: Reading) -> float:
        clipper, lens = self._clipper, [len(chunk.auxiliary) for chunk in self._clipper.chunks]
        contexts = [sum(lens)] if reading is Reading.STITCHED else lens
        keys = [clipper.prefix_len + length + (clipper.question_len + 1) / 2 for length in contexts]
        return scoring_limit_s(self._plan.auxiliary, clipper.question_len, keys, self._rates)
