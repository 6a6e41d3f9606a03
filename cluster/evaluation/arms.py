"""Names what is compared: a mode of reuse, over KV of one kind, with an adapter or without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cluster.gate.names import parse_names
from shared.generation.modes import Chooser, GoesBy, ReuseMode
from shared.kv_types import KvContext

CLOSED = "closed book"
MODES = tuple(mode for mode in ReuseMode if mode.row.stored and mode.row.chooser is not Chooser.CALLER)


@dataclass(frozen=True, slots=True)
class EvalArm:
    """``mode`` None: without any chunk. ``context`` None: nothing that is stored is used. ``adapter``: the
    requests go with it; empty: with none. ``retrieved``: `full` over the retrieved chunks alone, where only
    some of the documents' chunks are."""

    mode: ReuseMode | None
    context: KvContext | None = None
    ratio: float | None = None
    adapter: str = ""
    retrieved: bool = False

    @property
    def label(self) -> str:
        if self.mode is None:
            return CLOSED
        parts = [self.mode.value]
        if self.ratio is not None:
            parts.append(f"{self.ratio:.0%}")
        if self.context is not None:
            parts.append(self.context.value)
        if self.retrieved:
            parts.append("retrieved")
        if self.adapter:
            parts.append(f"+{self.adapter}")
        return " ".join(parts)


FULL = EvalArm(ReuseMode.FULL)
FULL_RETRIEVED = EvalArm(ReuseMode.FULL, retrieved=True)
BASELINES = (EvalArm(None), FULL)


def arms_of(
    modes: Sequence[ReuseMode],
    contexts: Sequence[KvContext],
    ratios: Sequence[float],
    adapters: Iterable[str] = (),
    retrieved: bool = False,
) -> Iterator[EvalArm]:
    """The baselines, and each of ``modes`` over each kind of KV, at each of ``ratios`` where it goes by
    one, without an adapter and with each of ``adapters``. ``retrieved``: only some of the documents' chunks
    are."""
    yield from BASELINES
    if retrieved:
        yield FULL_RETRIEVED
    for context in contexts:
        for mode in modes:
            for ratio in ratios if mode.row.goes_by is GoesBy.RATIO else (None,):
                for adapter in ("", *adapters):
                    yield EvalArm(mode, context, ratio, adapter)


def parse_modes(names: str) -> tuple[ReuseMode, ...]:
    """
    Raises:
        InvalidRequest: names what reuses nothing by itself.
    """
    return parse_names("--modes", names, MODES)


def parse_contexts(names: str) -> tuple[KvContext, ...]:
    """
    Raises:
        InvalidRequest: names no kind of KV.
    """
    return parse_names("--kv-context", names, KvContext)
