"""What of a context is computed anew: what callers ask for, and what they are told. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from protos.kvquilt.v1 import recompute_pb2, selection_pb2
from shared.clients.selection import Grouping, Reading, SelectionTimings, reading_of
from shared.errors import InvalidRequest

_GROUPING: dict[Grouping | None, selection_pb2.Grouping] = {
    None: selection_pb2.GROUPING_UNSPECIFIED,
    "budget": selection_pb2.GROUPING_BUDGET,
    "paper": selection_pb2.GROUPING_PAPER,
    "sliding": selection_pb2.GROUPING_SLIDING,
}
_READING: dict[Reading | None, selection_pb2.Reading] = {
    None: selection_pb2.READING_UNSPECIFIED,
    "stitched": selection_pb2.READING_STITCHED,
    "each": selection_pb2.READING_EACH,
}


@dataclass(frozen=True, slots=True)
class Recompute:
    """How much, and under which mode it matters: the proto says. None: the service's own. Ranges are checked
    by the generator."""

    ratio: float | None = None
    tokens: tuple[int, ...] = ()
    seed: int = 0
    grouping: Grouping | None = None
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class Ape:
    """How mode ``ape`` weighs the chunks. None: the service's own."""

    temperature: float | None = None
    scale: float | None = None


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Characters [start, end) of a chunk's text, and the mean score of their tokens."""

    start: int
    end: int
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Selected:
    """These tokens of the context, counted from 0 over all chunks in order, are computed anew. ``question``:
    for this one; None: for all. ``layers``: how many in each, if that differs. ``scores``, one per token of
    the context, and ``chunks``, the spans of each chunk: if an explanation was asked for. ``reading``,
    ``num_picked``, ``num_grouped``, ``timings``: of a selector.
    """

    tokens: tuple[int, ...]
    question: int | None = None
    layers: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    chunks: tuple[tuple[TextSpan, ...], ...] = ()
    reading: Reading | None = None
    num_picked: int = 0
    num_grouped: int = 0
    timings: SelectionTimings | None = None


def recompute_to_pb(recompute: Recompute | None) -> recompute_pb2.Recompute | None:
    """
    Raises:
        InvalidRequest: a number that no message can carry; names the field.
    """
    if recompute is None:
        return None
    for token in recompute.tokens:
        if not 0 <= token < 2**32:
            raise InvalidRequest(
                f"recompute.tokens: {token} is out of range; tokens of the context are counted from 0"
            )
    if not 0 <= recompute.seed < 2**64:
        raise InvalidRequest(
            f"recompute.seed: {recompute.seed} is out of range; it must be a 64-bit unsigned number"
        )
    return recompute_pb2.Recompute(
        ratio=recompute.ratio,
        tokens=recompute.tokens,
        seed=recompute.seed,
        grouping=_GROUPING[recompute.grouping],
        reading=_READING[recompute.reading],
    )


def recompute_of(pb: recompute_pb2.Recompute) -> Recompute:
    """
    Raises:
        InvalidRequest: a grouping or reading that this version does not know.
    """
    groupings = {number: name for name, number in _GROUPING.items()}
    readings = {number: name for name, number in _READING.items()}
    if pb.grouping not in groupings:
        raise InvalidRequest(
            f"recompute.grouping: {pb.grouping} is not known; use {_names(get_args(Grouping))}"
        )
    if pb.reading not in readings:
        raise InvalidRequest(f"recompute.reading: {pb.reading} is not known; use {_names(get_args(Reading))}")
    ratio = pb.ratio if pb.HasField("ratio") else None
    return Recompute(ratio, tuple(pb.tokens), pb.seed, groupings[pb.grouping], readings[pb.reading])


def ape_to_pb(ape: Ape | None) -> recompute_pb2.Ape | None:
    return None if ape is None else recompute_pb2.Ape(temperature=ape.temperature, scale=ape.scale)


def ape_of(pb: recompute_pb2.Ape) -> Ape:
    return Ape(
        pb.temperature if pb.HasField("temperature") else None, pb.scale if pb.HasField("scale") else None
    )


def selected_to_pb(selected: Selected) -> recompute_pb2.Selected:
    timings = selected.timings
    return recompute_pb2.Selected(
        question=selected.question,
        tokens=selected.tokens,
        layers=selected.layers,
        scores=selected.scores,
        chunks=[
            recompute_pb2.ChunkSpans(
                spans=[recompute_pb2.TextSpan(start=s.start, end=s.end, score=s.score) for s in spans]
            )
            for spans in selected.chunks
        ],
        reading=_READING[selected.reading],
        num_picked=selected.num_picked,
        num_grouped=selected.num_grouped,
        timings=None
        if timings is None
        else selection_pb2.SelectionTimings(
            load_ms=timings.load_ms,
            encode_ms=timings.encode_ms,
            score_ms=timings.score_ms,
            total_ms=timings.total_ms,
        ),
    )


def selected_of(pb: recompute_pb2.Selected) -> Selected:
    told = pb.timings
    timings = (
        SelectionTimings(told.load_ms, told.encode_ms, told.score_ms, told.total_ms)
        if pb.HasField("timings")
        else None
    )
    return Selected(
        tokens=tuple(pb.tokens),
        question=pb.question if pb.HasField("question") else None,
        layers=tuple(pb.layers),
        scores=tuple(pb.scores),
        chunks=tuple(tuple(TextSpan(s.start, s.end, s.score) for s in chunk.spans) for chunk in pb.chunks),
        reading=reading_of(pb.reading),
        num_picked=pb.num_picked,
        num_grouped=pb.num_grouped,
        timings=timings,
    )


def _names(names: Sequence[str]) -> str:
    return " or ".join(name.upper() for name in names)
