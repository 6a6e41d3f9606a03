"""Searching the index: the values that retrieval, its clients and the gateway share."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shared.errors import InvalidRequest
from shared.generation.described import MadeFor
from shared.generation.pieces import Conditioned, Piece, Tokenized
from shared.kv_types import KvContext
from shared.readers import EVERYBODY, Readers

BUILT_IN_FIELDS = ("document_id", "title")
FoundT = TypeVar("FoundT")


class SearchMode(enum.Enum):
    """AUTO is hybrid where the index offers it, else dense."""

    AUTO = "auto"
    DENSE = "dense"
    BM25 = "bm25"
    HYBRID = "hybrid"


class ContextOrder(enum.StrEnum):
    """Places the best of the chunks that were found in a context: in front, or next to the question."""

    BEST_FIRST = "best_first"
    BEST_LAST = "best_last"

    def arrange(self, found: Sequence[FoundT]) -> tuple[FoundT, ...]:
        """``found``: best first."""
        return tuple(found if self is ContextOrder.BEST_FIRST else reversed(found))


class FilterOp(enum.Enum):
    EQ = "eq"
    NE = "ne"
    IN = "in"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition on a metadata key, or on ``document_id`` or ``title``. NE also holds where the key is
    absent."""

    field: str
    op: FilterOp
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a document whose chunks are computed behind its header, if it has one, and behind each other.
    ``number`` in the document, from 1; ``heading``: above its first chunk, which has the place ``first``."""

    number: int
    heading: str
    first: int
    has_header: bool


@dataclass(frozen=True, slots=True)
class IndexedChunk:
    """A chunk as it goes into the index; ``char_start`` and ``char_end`` count characters of the document's
    text. ``parent_id``: identity of what its KV is computed behind; empty: the prefix alone. ``place``: its
    number in the document, from 1; 0: not known. ``block`` None: its document has none. ``readers``: as in
    ``shared.readers``."""

    chunk_id: str
    text: str
    token_ids: tuple[int, ...]
    heading: str = ""
    char_start: int = 0
    char_end: int = 0
    parent_id: str = ""
    place: int = 0
    block: Block | None = None
    readers: Readers = EVERYBODY

    @property
    def piece(self) -> Piece:
        """As the generator is told it: one without ids, which was handed over, by its text."""
        if not self.token_ids:
            return self.text
        piece = Tokenized(self.token_ids, self.text)
        return Conditioned(piece, parent_id=self.parent_id) if self.parent_id else piece


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """All chunks of one document, computed by one model; hashes and ``kv_context`` are those of
    ``MadeFor``."""

    document_id: str
    title: str
    model_fingerprint: str
    chunks: tuple[IndexedChunk, ...]
    metadata: dict[str, str] = field(default_factory=dict)
    prefix_hash: str = ""
    template_hash: str = ""
    kv_context: str = ""


@dataclass(frozen=True, slots=True)
class IndexChange:
    """Outcome of indexing a document. ``changed``: exactly these chunks were not searchable before;
    ``warnings``: why they will be found badly."""

    changed: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchHit:
    """``score``: larger is better; comparable within one ranking only. ``similarity``: cosine of query and
    chunk by the embedder; of one that words alone found, the least of those that were found by meaning, which
    it does not exceed; None: the search had no embedder."""

    chunk: IndexedChunk
    document_id: str
    title: str
    model_fingerprint: str
    score: float
    metadata: dict[str, str] = field(default_factory=dict)
    similarity: float | None = None
    prefix_hash: str = ""
    template_hash: str = ""
    kv_context: str = ""

    @property
    def made_for(self) -> MadeFor:
        return MadeFor(self.model_fingerprint, self.prefix_hash, self.template_hash, self.kv_context)


def common_kv_context(hits: Iterable[SearchHit]) -> KvContext | None:
    """The setting that all of these chunks were made under; None: there is none, or one that this version
    does not know."""
    names = {hit.kv_context or KvContext.NONE.value for hit in hits}
    return next((context for context in KvContext if names == {context.value}), None)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One ranking per query, best first, and the mode that was used (never AUTO)."""

    rankings: tuple[tuple[SearchHit, ...], ...]
    mode: SearchMode


@dataclass(frozen=True, slots=True)
class EmbeddedTexts:
    """``vectors``: of length 1, one per text. ``embedder`` names the vector space. ``num_tokens``: of all
    texts."""

    embedder: str
    vectors: tuple[tuple[float, ...], ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    name: str
    num_chunks: int


@dataclass(frozen=True, slots=True)
class IndexedIds:
    """The documents of a collection that the index holds, sorted. ``other_embedder``: it has vectors of
    another embedder than the one being served, and must be indexed anew."""

    document_ids: tuple[str, ...] = ()
    other_embedder: bool = False


def check_metadata(metadata: Mapping[str, str]) -> None:
    """
    Raises:
        InvalidRequest: a key is empty or has the name of a built-in field.
    """
    for key in metadata:
        if not key or key in BUILT_IN_FIELDS:
            raise InvalidRequest(
                f"metadata: {key!r} cannot be a key ({', '.join(BUILT_IN_FIELDS)} are built in, empty "
                "ones are refused)"
            )
