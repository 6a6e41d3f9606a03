"""The values that a selector is asked by, and tells: which of a context's tokens are worth computing anew."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from shared.identity import TokenIds


class Grouping(enum.StrEnum):
    """The way in which single tokens become runs (``shared.selection.grouping``)."""

    BUDGET = "budget"
    PAPER = "paper"
    SLIDING = "sliding"


class Reading(enum.StrEnum):
    """The chunks that a question sees when they are scored: all of them at once, or one at a time."""

    STITCHED = "stitched"
    EACH = "each"


@dataclass(frozen=True, slots=True)
class SelectionLink:
    """A header or a chunk that others stand behind. ``token_ids``: the primary's, of all of ``text`` or, of a
    header that was cut, of its beginning."""

    text: str
    token_ids: TokenIds


@dataclass(frozen=True, slots=True)
class SelectionChunk:
    """``text``: exactly what the primary's ``token_ids`` were made of, the primary's chunk template
    included.

    What it stands behind in its document is its ``context``, the first of it first; or what is known of
    ``parent_id``, the identity of the primary's KV in front of it: a chunk with that ``chunk_id`` before it
    in the request, else the chunk of a stored document.
    """

    text: str
    token_ids: TokenIds
    chunk_id: str = ""
    parent_id: str = ""
    context: tuple[SelectionLink, ...] = ()


@dataclass(frozen=True, slots=True)
class SelectionOrder:
    """Order to select the tokens of ``chunks`` that each of ``questions`` needs computed anew, ``ratio`` (0
    to 1) of them."""

    chunks: tuple[SelectionChunk, ...]
    questions: tuple[str, ...]
    ratio: float
    grouping: Grouping = Grouping.BUDGET
    reading: Reading = Reading.STITCHED


@dataclass(frozen=True, slots=True)
class SelectionTimings:
    """Seconds; see the proto for what each stage covers. ``encode_s``: KV of the auxiliary that was not
    stored. ``wait_s``: for the auxiliary model, with all KV there."""

    load_s: float = 0.0
    encode_s: float = 0.0
    wait_s: float = 0.0
    score_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SelectedTokens:
    """Of one question.

    tokens: of the primary, counted from 0 over all chunks in order; ascending.
    scores: one per token of the primary's context.
    reading: how the chunks were scored; None: they were not, since the ratio left nothing to choose.
    num_picked: the auxiliary's tokens that the ratio asked for.
    num_grouped: the auxiliary's tokens that grouping made of them.
    timings: of the call, for all its questions.
    num_isolated: chunks that were read without what stands in front of them, because it could not be had.
    """

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    reading: Reading | None
    num_picked: int
    num_grouped: int
    timings: SelectionTimings
    num_isolated: int = 0


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk whose auxiliary KV is durable. ``num_tokens``: of the auxiliary. ``existed``: it was durable
    before the call."""

    index: int
    auxiliary_id: str
    num_tokens: int
    existed: bool


@dataclass(frozen=True, slots=True)
class AuxiliaryDescription:
    """``chains``: whether its KV of a chunk stands behind the chunks in front of it, as the primary's."""

    model: str
    fingerprint: str
    tokenizer_hash: str
    prefix_ids: TokenIds
    question_template: str
    max_positions: int
    dtype: str
    kv_bytes_per_token: int
    device: str
    primary_tokenizer_hash: str
    chains: bool = False

    @property
    def identity(self) -> str:
        """Of all that decides which KV a text gets, 32 hex digits: what was encoded under another identity is
        not used."""
        chains = ("chains",) if self.chains else ()
        decides = repr((self.fingerprint, self.tokenizer_hash, self.prefix_ids, *chains))
        return hashlib.blake2b(decides.encode(), digest_size=16).hexdigest()
