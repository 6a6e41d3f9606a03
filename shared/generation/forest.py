"""A live forest: the commands that edit it, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.pieces import Piece


@dataclass(frozen=True, slots=True)
class ForestRequest:
    """A forest over a context (prefix, then chunks in order) that lives until it is closed, cancelled, or
    late. ``links``, ``adapter``, ``traceparent``, ``tenant``, ``asked_by``, ``priority``: see
    ``GenerateRequest``."""

    request_id: str
    prefix_ids: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    reuse: ReuseMode = ReuseMode.REORDERED
    deadline_s: float | None = None
    recompute: Recompute = field(default_factory=Recompute)
    ape: Ape = field(default_factory=Ape)
    links: tuple[Chunk, ...] = ()
    adapter: str = ""
    traceparent: str = ""
    tenant: str = ""
    asked_by: str = ""
    priority: int = 0

    @property
    def context(self) -> tuple[str, tuple[int, ...], tuple[Chunk, ...]]:
        return self.request_id, self.prefix_ids, self.chunks

    @property
    def without_questions(self) -> GenerateRequest:
        """The request for its context alone."""
        return GenerateRequest(
            *self.context,
            questions=(),
            reuse=self.reuse,
            deadline_s=self.deadline_s,
            recompute=self.recompute,
            ape=self.ape,
            links=self.links,
            adapter=self.adapter,
            traceparent=self.traceparent,
            tenant=self.tenant,
            asked_by=self.asked_by,
            priority=self.priority,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """A new branch on the context. Ids of branches are the caller's choice. A ``piece`` of text goes through
    the model's template, as a question."""

    branch: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Fork:
    """A new branch with the first ``length`` tokens of ``source`` (None: all); what ``source`` still grows,
    it does not."""

    branch: int
    source: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """Takes the last tokens of a branch away. If it was growing, it rests."""

    branch: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Prune:
    """Ends a branch; what no other branch sees of it is freed at once."""

    branch: int


@dataclass(frozen=True, slots=True)
class Append:
    """Continues a resting branch with these tokens. A ``piece`` of text is tokenized as it is."""

    branch: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Grow:
    """Continues a resting branch by sampling. Noise is a function of (seed, branch, number of tokens in the
    branch)."""

    branch: int
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class Merge:
    """A new branch: the whole first source, then what the others have behind the first ``length`` tokens,
    which all share (None: as many as all begin with, and have more). Sources rest, and live on.

    ``placed``: the others' KV is moved there as it was computed, an approximation; False: their tokens are
    computed again, exactly.
    """

    branch: int
    sources: tuple[int, ...]
    length: int | None = None
    placed: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the forest as soon as every branch rests: ``DoneEvent``."""


Edit = Start | Fork | Rewind | Prune | Append | Grow | Merge

Command = Edit | Close
