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
from load_tests.recompute.clipper import Clipper, Selected
from load_tests.recompute.limits import prefill_flops, prefill_limit_s, scoring_flops, scoring_limit_s
from load_tests.recompute.primary import Primary
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
class RecomputePlan:
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
class RecomputeRun:
    """Seconds to the first token, and of CacheClip by percentage what was selected, and the engine's part.
    ``spread_s``: the engine's part at the percentage that is looked at, if as many tokens lay anywhere in the
    context."""

    full_s: float
    reordered_s: float
    clips: dict[int, tuple[Selected, float]]
    spread_s: float = 0.0

    def clipped_s(self, percent: int) -> float:
        """Selection included."""
        clip, prefill_s = self.clips[percent]
        return clip.total_s + prefill_s


def measure(plan: RecomputePlan, rates: Rates, say: Progress) -> Iterator[Measurement]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvquilt-recompute-"))
        say("both models, and the auxiliary's KV")
        case, auxiliary = plan.case, build_model(plan.auxiliary)
        speech = Speech(case.shape.vocab, plan.auxiliary.vocab)
        texts = [speech.text(length) for length in case.chunk_lens]
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
        yield from RecomputeBench(plan, rates, clipper, primary, say).measure()


class RecomputeBench:
    def __init__(
        self, plan: RecomputePlan, rates: Rates, clipper: Clipper, primary: Primary, say: Progress
    ) -> None:
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

    def _clip(self, percent: int, reading: Reading | None = None) -> Selected:
        return self._clipper.clip(percent / 100, self._plan.grouping, reading or self._plan.reading)

    def _run(self) -> RecomputeRun:
        """In turn, so that whatever else the machine does meets all alike."""
        full_s, reordered_s = (
            self._primary.resident_s(mode) for mode in (ReuseMode.FULL, ReuseMode.REORDERED)
        )
        clips = {}
        for percent in self._plan.percents:
            clip = self._clip(percent)
            clips[percent] = clip, self._primary.resident_s(ReuseMode.TOKENS, clip.tokens)
        spread = self._spread(clips)
        return RecomputeRun(
            full_s, reordered_s, clips, self._primary.resident_s(ReuseMode.TOKENS, spread) if spread else 0.0
        )

    def _spread(self, clips: Mapping[int, tuple[Selected, float]]) -> tuple[int, ...]:
        percent = self._plan.looked_at
        return () if percent is None else at_random(self._case.context, len(clips[percent][0].tokens), seed=0)

    # --- what comes of it ----------------------------------------------------------------------------------

    def _curve(self, runs: list[RecomputeRun]) -> Iterator[Measurement]:
        context = self._case.context
        full = [run.full_s for run in runs]
        full_limit = self._prefill_limit(range(context))
        baseline = statistics.median(full)
        flops = self._prefill_flops(range(context))
        yield measured("ttft_full", full, "s", better="lower", limit=full_limit, flops=flops)
        reordered = [run.reordered_s for run in runs]
        limit, flops = self._prefill_limit(()), self._prefill_flops(())
        yield measured(
            "ttft_reordered", reordered, "s", better="lower", baseline=baseline, limit=limit, flops=flops
        )
        for percent in self._plan.percents:
            tokens = runs[0].clips[percent][0].tokens
            limit, flops = self._prefill_limit(tokens), self._prefill_flops(tokens)
            if 0 < percent < 100:
                limit += self._scoring_limit(self._plan.reading)
                flops += self._scoring_flops(self._plan.reading)
            seconds, name = [run.clipped_s(percent) for run in runs], f"recompute_{percent}"
            yield measured(
                f"ttft_{name}", seconds, "s", better="lower", baseline=baseline, limit=limit, flops=flops
            )
            speedups = [run.full_s / run.clipped_s(percent) for run in runs]
            yield measured(f"full_over_{name}", speedups, "×", better="higher", limit=full_limit / limit)
            chosen = [float(len(run.clips[percent][0].tokens)) for run in runs]
            yield measured(f"tokens_{name}", chosen, "tokens", better="lower")

    def _evenly(self, runs: list[RecomputeRun], percent: int) -> Measurement:
        """What stands in front sees little and is cheap, and where a model of random weights looks means
        nothing. So: the same, if what was selected lay evenly over the context."""
        seconds = [run.clips[percent][0].total_s + run.spread_s for run in runs]
        limit = self._prefill_limit(self._spread(runs[0].clips)) + self._scoring_limit(self._plan.reading)
        baseline = statistics.median(run.full_s for run in runs)
        name = f"ttft_recompute_{percent}_evenly"
        return measured(name, seconds, "s", better="lower", baseline=baseline, limit=limit)

    def _parts(self, runs: list[RecomputeRun], percent: int) -> Iterator[Measurement]:
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
            yield measured(f"{name}_{percent}", seconds, "s", better="lower", limit=limits.get(name))

    def _readings(self, percent: int) -> Iterator[Measurement]:
        self._say("the selection, by both readings")
        for reading in Reading:
            seconds = [self._clip(percent, reading).total_s for _ in range(self._plan.runs)]
            limit, flops = self._scoring_limit(reading), self._scoring_flops(reading)
            name = f"selection_{reading.value}"
            yield measured(name, seconds, "s", better="lower", limit=limit, flops=flops)

    def _beside_loading(self, clips: list[Selected], percent: int) -> Iterator[Measurement]:
        """Chunks come so late that the selection is done before they are there."""
        load_s = _LATER * max(clip.total_s for clip in clips)
        self._say(f"the same beside loading that takes {load_s:.2f} s")
        alone, beside = [], []
        for clip in clips:
            alone.append(self._primary.loading(clip.tokens, load_s))
            beside.append(self._primary.selecting(lambda: self._clip(percent).tokens, load_s))
        for name, of in (("ttft", "token_s"), ("placed", "placed_s")):
            loading, selecting = ([getattr(first, of) for first in of_it] for of_it in (alone, beside))
            baseline = statistics.median(loading)
            yield measured(f"{name}_loading_{percent}", loading, "s", better="lower")
            name = f"{name}_loading_selecting_{percent}"
            yield measured(name, selecting, "s", better="lower", baseline=baseline)
        hidden = [first.hidden for first in beside]
        yield measured("selector_hidden_fraction", hidden, "fraction", better="higher", limit=1.0)

    # --- limits --------------------------------------------------------------------------------------------

    def _prefill_limit(self, tokens: range | tuple[int, ...]) -> float:
        case = self._case
        num_stored = case.prefix + case.context - len(tokens)
        return prefill_limit_s(case.shape, self._positions(tokens), num_stored, self._rates)

    def _prefill_flops(self, tokens: range | tuple[int, ...]) -> float:
        return prefill_flops(self._case.shape, self._positions(tokens))

    def _positions(self, tokens: range | tuple[int, ...]) -> list[int]:
        case = self._case
        return [
            *(case.prefix + token for token in tokens),
            *range(case.prefix + case.context, case.prompt_len),
        ]

    def _scoring_limit(self, reading: Reading) -> float:
        rows, keys = self._clipper.question_len, self._scored_keys(reading)
        return scoring_limit_s(self._plan.auxiliary, rows, keys, self._rates)

    def _scoring_flops(self, reading: Reading) -> float:
        return scoring_flops(self._plan.auxiliary, self._clipper.question_len, self._scored_keys(reading))

    def _scored_keys(self, reading: Reading) -> list[float]:
        clipper, lens = self._clipper, [len(chunk.auxiliary) for chunk in self._clipper.chunks]
        contexts = [sum(lens)] if reading is Reading.STITCHED else lens
        return [clipper.prefix_len + length + (clipper.question_len + 1) / 2 for length in contexts]
