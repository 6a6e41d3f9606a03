"""What callers are told of a request beyond the engine's own events: what was chosen and why, and what it
really ran as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.generator.reusing import Reusing
from services.generator.selecting import Decision
from shared.clients.recompute import TextSpan
from shared.clients.selection import SelectedTokens
from shared.generation.asked import Chunk
from shared.generation.modes import ReuseMode
from shared.generation.told import DoneEvent, Event, SelectedEvent


@dataclass(frozen=True, slots=True)
class SelectionEvent:
    """``selected`` with the scores that the selector gave, if one was asked and an explanation is wanted;
    ``chunks``: where in the text of each chunk the tokens are."""

    selected: SelectedEvent
    answer: SelectedTokens | None = None
    chunks: tuple[tuple[TextSpan, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The request is complete. ``mode``: what it really ran as; ``note``: why that is not what was asked for;
    ``chunk_ids``: of its chunks, in order."""

    done: DoneEvent
    chunk_ids: tuple[str, ...]
    mode: ReuseMode
    note: str = ""
    answer: SelectedTokens | None = None
    select_s: float = 0.0


Told = Event | SelectionEvent | EndEvent


def end_of(done: DoneEvent, chunks: Sequence[Chunk], reusing: Reusing, decision: Decision | None) -> EndEvent:
    """``decision``: of a request that was to be ``cacheclip``."""
    chunk_ids = tuple(chunk.chunk_id for chunk in chunks)
    if decision is None:
        return EndEvent(done, chunk_ids, reusing.mode, reusing.note)
    mode = decision.mode if decision.selected is None else reusing.mode
    return EndEvent(done, chunk_ids, mode, decision.note, decision.selected, decision.took_s)
