"""Makes cases of RULER's tasks that are as long as they may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

from cluster.evaluation.cases import EvalCase, EvalDocument, EvalTask
from cluster.evaluation.cutting import CaseCutter
from cluster.evaluation.metrics import Metric
from cluster.evaluation.ruler.haystacks import Haystack, Value, pieces
from cluster.evaluation.ruler.variants import Hidden, Variant, draw_hidden
from shared.errors import InvalidRequest

_DEPTHS = 40  # places for needles, evenly apart
_SAMPLE = 24  # pieces by which the length of others is guessed


class RulerMaker:
    """``length``: of a prompt and its answer, in tokens of the model. ``essay``: prose to hide needles in;
    empty: paragraphs about invented things. ``max_tokens`` 0: RULER's own."""

    def __init__(self, cutter: CaseCutter, length: int, seed: int, essay: str = "", max_tokens: int = 0):
        self._cutter, self._length, self._seed = cutter, length, seed
        self._essay, self._max_tokens = essay, max_tokens

    def task(self, variant: Variant, num_cases: int, on_case: Callable[[], object]) -> EvalTask:
        """
        Raises:
            InvalidRequest: not even the needles fit.
        """
        max_tokens = self._max_tokens or variant.max_tokens
        cases = []
        for number in range(num_cases):
            cases.append(self._case(variant, number, max_tokens))
            on_case()
        numbers = variant.row.value is Value.NUMBER and variant is not Variant.TRACKING
        return EvalTask(variant.value, Metric.COVERAGE, max_tokens, tuple(cases), numbers=numbers)

    def _case(self, variant: Variant, number: int, max_tokens: int) -> EvalCase:
        rng = random.Random(f"{self._seed} {variant} {self._length} {number}")
        hidden = draw_hidden(variant, rng)
        row = variant.row
        around = self._cutter.around(hidden.question, max_tokens)
        stream = pieces(row.haystack, rng, row.value, self._essay)
        text = self._longest(row.haystack, hidden, stream, rng.random(), self._length - around)
        return EvalCase(
            str(number), hidden.question, tuple((one,) for one in hidden.references), (EvalDocument(text),)
        )

    def _longest(
        self, haystack: Haystack, hidden: Hidden, stream: Iterator[str], where: float, room: int
    ) -> str:
        """The longest text that fits, nearly."""
        hay = list(islice(stream, _SAMPLE))
        per_piece = max(1.0, self._cutter.num_tokens(haystack.joint.join(hay)) / len(hay))
        num = max(0, int(room / per_piece))
        hay += islice(stream, max(0, num - len(hay)))
        while True:
            text = haystack.joint.join(_hide(hidden, hay[:num], random.Random(where)))
            over = self._cutter.num_tokens(text) - room
            if over <= 0:
                return text
            if not num:
                raise InvalidRequest(
                    f"--length: {self._length} tokens leave no room for needles, question and answer; give "
                    f"at least {self._length + over}, or lower --max-tokens"
                )
            num = max(0, num - max(1, int(over / per_piece)))


def _hide(hidden: Hidden, hay: list[str], rng: random.Random) -> Iterator[str]:
    """Needles at some of ``_DEPTHS`` depths; of a chain in its order."""
    depths = rng.sample(range(_DEPTHS), len(hidden.needles))
    places = [depth * len(hay) // (_DEPTHS - 1) for depth in (sorted(depths) if hidden.ordered else depths)]
    at: dict[int, list[str]] = {}
    for place, one in zip(places, hidden.needles, strict=True):
        at.setdefault(place, []).append(one)
    for i in range(len(hay) + 1):
        yield from at.get(i, ())
        yield from hay[i : i + 1]
