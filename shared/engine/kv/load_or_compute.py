"""Decides which chunks whose KV is being loaded are computed as well, because that ends earlier. Pure: no
tensors, no clocks, no threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_WORTHWHILE = 0.1


@dataclass(frozen=True, slots=True)
class Awaited:
    """A chunk that a request waits for: it arrives in so many seconds, or can be computed in so many
    ``rows``, and those of ``links``, by key: the parts of its chain that are not there either, some of which
    may be awaited themselves. ``rows`` None: it cannot be computed."""

    key: str
    arrives_in_s: float
    rows: int | None
    links: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rows:
    """``free``: of the next step, for late chunks; ``ahead``: to be computed before; ``row_s``: seconds that
    one takes."""

    free: int
    ahead: int
    row_s: float | None


def worth_computing(awaited: Sequence[Awaited], rows: Rows, saved_s: float) -> tuple[str, ...]:
    """The chunks of one request that are better computed than waited for; the last to arrive come first.

    A request goes on when all its chunks are there. So computing some is worth while only if the others
    arrive earlier, and if that saves a tenth of the time, and ``saved_s`` at least.
    """
    if rows.free <= 0 or rows.row_s is None or not awaited:
        return ()
    latest_first = sorted(awaited, key=lambda chunk: -chunk.arrives_in_s)
    chosen: list[str] = []
    computed: set[str] = set()
    ends_in_s = computed_in_s = rows.ahead * rows.row_s
    for chunk in latest_first:
        if chunk.rows is None:
            break
        needed = {**chunk.links, chunk.key: chunk.rows}
        ends_in_s += sum(needed[key] for key in needed.keys() - computed) * rows.row_s
        if ends_in_s >= chunk.arrives_in_s:
            break
        computed_in_s = ends_in_s
        computed |= needed.keys()
        chosen.append(chunk.key)
    others_in_s = latest_first[len(chosen)].arrives_in_s if len(chosen) < len(latest_first) else 0.0
    without_s = latest_first[0].arrives_in_s
    gain_s = without_s - max(computed_in_s, others_in_s)
    return tuple(chosen) if chosen and gain_s >= max(saved_s, _WORTHWHILE * without_s) else ()
