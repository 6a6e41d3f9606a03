"""Orders to the generator: pieces of text or ids, and choices that may be left to the
service."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shared.errors import InvalidRequest
from shared.generation.asked import Decoding, SamplingParams
from shared.generation.modes import Ape, GoesBy, Recompute, ReuseMode
from shared.generation.pieces import Piece
from shared.generation.selection import Grouping, Reading
from shared.kv_types import KvContext


class Auto(enum.StrEnum):
    """The mode and ratio that the model's verdict names (``shared.verdict``)."""

    AUTO = "auto"


NO_ADAPTER = "none"
AskedMode = ReuseMode | Auto
ASKED_MODES: tuple[AskedMode, ...] = (*ReuseMode, *Auto)
MODES_BY_NAME: tuple[AskedMode, ...] = tuple(
    mode for mode in ASKED_MODES if isinstance(mode, Auto) or mode.row.goes_by is not GoesBy.TOKENS
)
"""Those that need no more than their name, and a ratio."""


def mode_named(name: str, field: str) -> AskedMode:
    """
    Raises:
        InvalidRequest: there is none, or it needs more than its name; ``field`` is what named it.
    """
    for mode in MODES_BY_NAME:
        if mode == name:
            return mode
    raise InvalidRequest(f"{field}: {name!r} is not one of {', '.join(MODES_BY_NAME)}")


def may_reuse(mode: AskedMode) -> bool:
    """Whether stored KV may be of use to it."""
    return isinstance(mode, Auto) or mode.row.stored


@dataclass(frozen=True, slots=True)
class Reuse:
    """The way in which the context's KV is reused. ``mode``, ``grouping``, ``reading`` None: the service's
    own; the last two are of mode ``cacheclip``. ``adapter``: what question and answer, and tokens computed
    anew, go with; empty: the service's own, ``NO_ADAPTER``: the model alone."""

    mode: AskedMode | None = None
    recompute: Recompute = field(default_factory=Recompute)
    ape: Ape = field(default_factory=Ape)
    grouping: Grouping | None = None
    reading: Reading | None = None
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class GenerationOrder:
    """Questions over one context: the prefix (None: the model's own; ``()``: none), then the chunks.
    ``explain``: scores and places in the text are told of what is selected. ``kv_context``: the setting that
    all chunks were made under, by which a verdict is chosen; None: nobody knows, or they differ. ``idle``:
    nobody waits for the answer, which is begun while nothing else is asked, and given up when something
    is. ``chunk_ids``: identities of the chunks as the caller knows them, in order, by which the question is
    routed and nothing else; empty: he does not. ``conversation``: the questions begin with earlier turns, see
    ``GenerateRequest``. ``route``, ``route_held``: why it was sent to this replica,
    and how many of its chunks should be resident there; whoever sends it there says so."""

    chunks: tuple[Piece, ...]
    questions: tuple[Piece, ...]
    prefix: Piece | None = None
    reuse: Reuse = field(default_factory=Reuse)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    decoding: Decoding = field(default_factory=Decoding)
    explain: bool = False
    kv_context: KvContext | None = None
    idle: bool = False
    chunk_ids: tuple[str, ...] = ()
    conversation: bool = False
    route: str = ""
    route_held: int = 0


@dataclass(frozen=True, slots=True)
class ForestOrder:
    """The context of a live forest; see ``GenerationOrder``."""

    chunks: tuple[Piece, ...]
    prefix: Piece | None = None
    reuse: Reuse = field(default_factory=Reuse)
    kv_context: KvContext | None = None
