"""Measures in one run: ``full``, ``reordered`` and CacheClip at every ratio in turn, then CacheClip beside
loading."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from load_tests.benchmark import in_turn, say
from load_tests.kv_store.stored_ttft import stored_source
from load_tests.recompute.clipper import Clipper, Selected
from load_tests.recompute.limits import NeededWork, prefill_work, scoring_work
from load_tests.recompute.primary import Primary
from load_tests.recompute.text import Speech
from shared.engine.modes.random import at_random
from shared.generation.modes import ReuseMode
from shared.generation.selection import Grouping, Reading
from shared.measuring.case import Case
from shared.measuring.rates import Rates
from shared.measuring.report import Measurement, measured
from shared.measuring.shapes import Shape, build_model

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
        """The percentage that is taken apart and put beside loading: 20 or, failing that, the first that
        leaves something to choose."""
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


def measure(plan: RecomputePlan, rates: Rates) -> Iterator[Measurement]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvquilt-recompute-"))
        say("both models, and the auxiliary's KV")
        case, auxiliary = plan.case, build_model(plan.auxiliary)
        speech = Speech(case.shape.vocab, plan.auxiliary.vocab)
        texts = [speech.text(length) for length in case.chunk_lens]
        question = speech.text(case.question)
        source, _ = stack.enter_context(stored_source(Path(directory), auxiliary))
        clipper = stack.enter_context(closing(Clipper(auxiliary, source, speech, texts, question)))
        chunks = [chunk.primary.token_ids for chunk in clipper.chunks]
        question_ids = tuple(speech.primary.encode(question).ids)
        primary = stack.enter_context(closing(Primary(case, chunks, question_ids)))
        yield from RecomputeBench(plan, rates, clipper, primary).measure()


class RecomputeBench:
    def __init__(self, plan: RecomputePlan, rates: Rates, clipper: Clipper, primary: Primary) -> None:
        self._plan, self._rates = plan, rates
        self._clipper, self._primary = clipper, primary
        self._case = plan.case

    def measure(self) -> Iterator[Measurement]:
        say(
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
        full_s, everything = [run.full_s for run in runs], [self._prefill(range(self._case.context))]
        yield self._measured("ttft_full", full_s, everything)
        reordered_s = [run.reordered_s for run in runs]
        yield self._measured("ttft_reordered", reordered_s, [self._prefill(())], full_s)
        for percent in self._plan.percents:
            name, chosen = f"recompute_{percent}", [run.clips[percent][0].tokens for run in runs]
            works = [self._prefill(chosen[0])]
            if 0 < percent < 100:
                works.append(self._scoring(self._plan.reading))
            seconds = [run.clipped_s(percent) for run in runs]
            yield self._measured(f"ttft_{name}", seconds, works, full_s)
            speedups = [run.full_s / run.clipped_s(percent) for run in runs]
            limit = self._limit_s(everything) / self._limit_s(works)
            yield measured(f"full_over_{name}", speedups, "×", better="higher", limit=limit)
            yield measured(f"tokens_{name}", [len(tokens) for tokens in chosen], "tokens")

    def _evenly(self, runs: list[RecomputeRun], percent: int) -> Measurement:
        """The same, if what was selected lay evenly over the context: what stands in front sees little and is
        cheap, and where a model of random weights looks means nothing."""
        seconds = [run.clips[percent][0].total_s + run.spread_s for run in runs]
        works = [self._prefill(self._spread(runs[0].clips)), self._scoring(self._plan.reading)]
        name = f"ttft_recompute_{percent}_evenly"
        return self._measured(name, seconds, works, [run.full_s for run in runs])

    def _parts(self, runs: list[RecomputeRun], percent: int) -> Iterator[Measurement]:
        """Shows where the time goes."""
        clips = [run.clips[percent] for run in runs]
        for name in ("pair", "load", "score", "group"):
            works = [self._scoring(self._plan.reading)] if name == "score" else []
            yield self._measured(f"{name}_{percent}", [getattr(c, f"{name}_s") for c, _ in clips], works)
        works = [self._prefill(clips[0][0].tokens)]
        yield self._measured(f"prefill_{percent}", [prefill_s for _, prefill_s in clips], works)

    def _readings(self, percent: int) -> Iterator[Measurement]:
        say("the selection, by both readings")
        for reading in Reading:
            seconds = [self._clip(percent, reading).total_s for _ in range(self._plan.runs)]
            yield self._measured(f"selection_{reading.value}", seconds, [self._scoring(reading)])

    def _beside_loading(self, clips: list[Selected], percent: int) -> Iterator[Measurement]:
        """Chunks come so late that the selection is done before they are there."""
        load_s = _LATER * max(clip.total_s for clip in clips)
        say(f"the same beside loading that takes {load_s:.2f} s")
        tokens = iter(clips)
        alone, beside = in_turn(
            (len(clips), lambda: self._primary.loading(next(tokens).tokens, load_s)),
            (len(clips), lambda: self._primary.selecting(lambda: self._clip(percent).tokens, load_s)),
        )
        for name, of in (("ttft", "token_s"), ("placed", "placed_s")):
            loading, selecting = ([getattr(first, of) for first in of_it] for of_it in (alone, beside))
            yield measured(f"{name}_loading_{percent}", loading, "s")
            yield measured(f"{name}_loading_selecting_{percent}", selecting, "s", baseline=loading)
        hidden = [first.hidden for first in beside]
        yield measured("selector_hidden_fraction", hidden, "fraction", better="higher", limit=1.0)

    # --- limits --------------------------------------------------------------------------------------------

    def _measured(
        self,
        name: str,
        seconds: Sequence[float],
        works: Sequence[NeededWork],
        baseline: Sequence[float] | None = None,
    ) -> Measurement:
        """``works``: what has to be done, one after the other; none where no limit is known."""
        flops = sum(work.flops for work in works) or None
        return measured(
            name, seconds, "s", baseline=baseline, limit=self._limit_s(works) or None, flops=flops
        )

    def _limit_s(self, works: Sequence[NeededWork]) -> float:
        return sum(self._rates.limit_s(*work) for work in works)

    def _prefill(self, tokens: range | tuple[int, ...]) -> NeededWork:
        """Of these tokens of the context, and the question."""
        case = self._case
        end = case.prefix + case.context
        positions = [*(case.prefix + token for token in tokens), *range(end, case.prompt_len)]
        return prefill_work(case.shape, positions, end - len(tokens))

    def _scoring(self, reading: Reading) -> NeededWork:
        clipper, lens = self._clipper, [len(chunk.auxiliary) for chunk in self._clipper.chunks]
        contexts = [sum(lens)] if reading is Reading.STITCHED else lens
        keys = [clipper.prefix_len + length + (clipper.question_len + 1) / 2 for length in contexts]
        return scoring_work(self._plan.auxiliary, clipper.question_len, keys)
