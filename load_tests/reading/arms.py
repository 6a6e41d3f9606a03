"""Names what is compared: a mode of reuse, over KV of one kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.generation.modes import Chooser, GoesBy, ReuseMode
from shared.kv_types import KvContext

CLOSED = "closed book"
MODES = tuple(mode for mode in ReuseMode if mode.row.stored and mode.row.chooser is not Chooser.CALLER)


@dataclass(frozen=True, slots=True)
class ReadingArm:
    """``mode`` None: without any chunk. ``context`` None: nothing that is stored is used."""

    mode: ReuseMode | None
    context: KvContext | None = None
    ratio: float | None = None

    @property
    def label(self) -> str:
        if self.mode is None:
            return CLOSED
        parts = [self.mode.value]
        if self.ratio is not None:
            parts.append(f"{self.ratio:.0%}")
        if self.context is not None:
            parts.append(self.context.value)
        return " ".join(parts)


FULL = ReadingArm(ReuseMode.FULL)
BASELINES = (ReadingArm(None), FULL)


def arms_of(modes: Sequence[ReuseMode], contexts: Sequence[KvContext], ratio: float) -> Iterator[ReadingArm]:
    """The baselines, and each of ``modes`` over each kind of KV."""
    yield from BASELINES
    for context in contexts:
        for mode in modes:
            yield ReadingArm(mode, context, ratio if mode.row.goes_by is GoesBy.RATIO else None)


def parse_modes(names: str) -> tuple[ReuseMode, ...]:
    """
    Raises:
        InvalidRequest: names what reuses nothing by itself.
    """
    known = {mode.value: mode for mode in MODES}
    return tuple(known[name] for name in _chosen("--modes", names, known))


def parse_contexts(names: str) -> tuple[KvContext, ...]:
    """
    Raises:
        InvalidRequest: names no kind of KV.
    """
    known = {context.value: context for context in KvContext}
    return tuple(known[name] for name in _chosen("--kv-context", names, known))


def _chosen(option: str, names: str, known: Collection[str]) -> list[str]:
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in known]:
        raise InvalidRequest(f"{option}: {unknown[0]!r} is not one of {', '.join(known)}")
    return chosen
