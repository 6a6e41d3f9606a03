"""Documents on their way in: the values that ingestion and its clients share."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shared.readers import EVERYBODY, Readers, SectionReaders

SOURCE_KEY = "source"
"""The key in a document's metadata that says which folder or bucket it came from."""


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """``document_id`` is unique within its collection; its ending names the format unless ``media_type``
    does. ``readers``, ``sections``: who may read it (``shared.readers``)."""

    document_id: str
    content: bytes
    media_type: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    readers: Readers = EVERYBODY
    sections: tuple[SectionReaders, ...] = ()


class Stage(enum.Enum):
    """The last five end a document. REMOVED: it was in the index, but there is no such document. WOULD_STORE:
    it is new or changed, in a dry run."""

    PARSED = "parsed"
    PREFILLED = "prefilled"
    STORED = "stored"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    REMOVED = "removed"
    WOULD_STORE = "would_store"


@dataclass(frozen=True, slots=True)
class UpsertProgress:
    """The progress of one document. ``num_chunks_reused``: chunks whose KV existed already. ``error`` says
    what to do; ``warnings`` what of a document that is stored was not read, or will be found badly."""

    document_id: str
    stage: Stage
    num_chunks: int = 0
    num_chunks_done: int = 0
    num_tokens: int = 0
    num_chunks_reused: int = 0
    error: str = ""
    error_code: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletedDocuments:
    """``num_chunks`` counts chunks whose KV was removed because no other document refers to them."""

    num_documents: int
    num_chunks: int
    not_found: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """``current``: made for the model that is being served. ``created_s``: seconds since 1970. ``source``:
    the folder or bucket it came from; empty where nobody said. ``kv_context``: what its KV is computed
    behind. ``readers``, ``sections``: who may read it (``shared.readers``)."""

    collection: str
    document_id: str
    title: str
    num_chunks: int
    model_fingerprint: str
    current: bool
    created_s: float
    source: str = ""
    kv_context: str = ""
    readers: Readers = EVERYBODY
    sections: tuple[SectionReaders, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentPage:
    documents: tuple[DocumentInfo, ...]
    truncated: bool

    def after(self, collection: str) -> str:
        """Returns the place at which the next page begins; ``collection`` is the one that was asked for,
        empty: all."""
        last = self.documents[-1]
        return last.document_id if collection else f"{last.collection}/{last.document_id}"
