"""Values that the KV store is told and answers, shared by the store and its clients."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from itertools import compress

from shared.generation.described import MadeFor
from shared.identity import TokenIds, chunk_identity, ids_hash, kv_owner
from shared.principals.principal import Principal
from shared.readers import EVERYBODY, Readers, SectionReaders, may_read, readers_below, reads_everything

PIECE_BYTES = 1 << 20
"""How much of a chunk's file travels in one message: larger ones are slower."""


@dataclass(frozen=True, slots=True)
class ChunkStat:
    """``modified_s``: seconds since 1970."""

    chunk_id: str
    exists: bool
    size_bytes: int = 0
    modified_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """A copy in a node's own tiers. ``location``: of the Arrow Flight server that streams it."""

    chunk_id: str
    size_bytes: int
    location: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Location of a chunk's file in the object store, if it has it. ``url``: answers a GET, ranges included,
    for a while; a credential, so it is never logged. ``ca_file``: PEM file of the authority that signed the
    server's certificate, empty for the usual ones."""

    url: str = field(repr=False)
    ca_file: str = ""


@dataclass(frozen=True, slots=True)
class OpenedChunk:
    """``path`` is valid on the reader's node; ``layers`` are (offset, length) of the record batches in the
    file.

    ``progress`` not empty: the file is still arriving; that file beside it says which layers are there
    (``shared.kv_format.progress``). ``tier``: where it is read from, "memory", "disk" or "objects".
    ``remote``: only with "objects", and instead of all else: the reader receives it itself. ``source``: where
    the node has it from, "objects" or "peer", while it is arriving.
    """

    chunk_id: str
    exists: bool
    path: str = ""
    size_bytes: int = 0
    layers: tuple[tuple[int, int], ...] = ()
    progress: str = ""
    tier: str = ""
    remote: RemoteFile | None = None
    source: str = ""

    @property
    def came_from(self) -> str:
        """Tier that its reader has to wait for: "memory", "disk", "objects" or "peer"."""
        return self.source or self.tier


@dataclass(frozen=True, slots=True)
class ChunkPage:
    chunks: tuple[ChunkStat, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class DeletedChunks:
    """``referenced`` ones were kept because a document needs them."""

    deleted: tuple[str, ...]
    referenced: tuple[str, ...]


def header_text(title: str, heading: str) -> str:
    """Returns the header of a block whose first chunk stands below ``heading``; empty: it has none."""
    return "\n".join(line for line in (title.strip(), heading) if line)


class KvContext(enum.StrEnum):
    """Context that the chunks of a document are computed behind, besides the prefix."""

    DOCUMENT = "document"
    HEADER = "header"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ManifestChunk:
    """``char_start``, ``char_end``: characters of the document's extracted text. ``auxiliary_id``: identity
    of the chunk's KV by the auxiliary model that selects tokens; empty: it has none, or is computed when it
    is asked for.

    ``parent_id``: identity of what it is computed behind, the chunk in front of it or its block's header
    (empty: nothing but the prefix); ``header_ids``: of a block's first chunk, that header.
    """

    chunk_id: str
    token_ids: TokenIds
    char_start: int = 0
    char_end: int = 0
    text: str = ""
    heading: str = ""
    auxiliary_id: str = ""
    parent_id: str = ""
    header_ids: TokenIds = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Parts of a chunk's identity, besides its tenant and what its file says
    (``shared.identity.chunk_identity``). ``stored``: the same as what is stored by that identity, in whatever
    encoding; nothing else is said. ``asked_by``: the principal in whose request it was computed; empty: it is
    not known, or nobody's."""

    prefix_ids: TokenIds = ()
    parent_id: str = ""
    stored: bool = False
    asked_by: str = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """The token ids of what a chunk is computed behind, the first first, and what else their identities are
    made of (``shared.identity.chunk_identity``). ``texts``: what they say, without a template; of a header
    that was cut, all of it. ``kv_scope``: as of a ``Manifest``."""

    tenant: str
    model_fingerprint: str
    prefix_ids: TokenIds
    links: tuple[TokenIds, ...]
    texts: tuple[str, ...] = ()
    kv_scope: str = ""

    @property
    def identities(self) -> tuple[str, ...]:
        """Of the links. Whoever asked for a parent believes the chain only if the last of them is it."""
        of = (kv_owner(self.tenant, self.kv_scope), self.model_fingerprint, self.prefix_ids)
        found: list[str] = []
        for ids in self.links:
            found.append(chunk_identity(*of, ids, found[-1] if found else ""))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A document and what it is made of. ``source_hash`` covers the source and the settings of parser and
    chunker; ``auxiliary``: identity of the auxiliary model that all its chunks were encoded with, if any;
    ``kv_context``: ``document`` or ``header``, empty of documents without it and of earlier versions;
    ``readers``, ``sections``: who may read it (``shared.readers``); ``kv_scope``: the scope in which its KV
    is shared (``shared.sharing``), empty: none."""

    tenant: str
    collection: str
    document_id: str
    title: str = ""
    source_hash: str = ""
    model_fingerprint: str = ""
    prefix_ids: TokenIds = ()
    chunks: tuple[ManifestChunk, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    created_s: float = 0.0
    auxiliary: str = ""
    kv_context: str = ""
    readers: Readers = EVERYBODY
    sections: tuple[SectionReaders, ...] = ()
    kv_scope: str = ""

    @property
    def kv_owner(self) -> str:
        return kv_owner(self.tenant, self.kv_scope)

    @property
    def derived_ids(self) -> set[str]:
        """Identities that its chunks and headers have by their token ids, those of the auxiliary excepted."""
        of = (self.kv_owner, self.model_fingerprint, self.prefix_ids)
        headers = {chunk_identity(*of, chunk.header_ids) for chunk in self.chunks if chunk.header_ids}
        return headers | {chunk_identity(*of, c.token_ids, c.parent_id) for c in self.chunks}

    @property
    def made_for(self) -> MadeFor:
        """Returns the model and prompt that it was made for when it was stored."""
        _, _, template = self.source_hash.partition(".")
        prefix = ids_hash(self.prefix_ids)
        return MadeFor(self.model_fingerprint, prefix, template, self.kv_context, self.kv_scope)

    @property
    def source(self) -> str:
        """Hash of what it was made of, whatever settings made it; empty: not known."""
        return self.source_hash.split(".")[0].rpartition("-")[0]

    @property
    def kv_ids(self) -> tuple[str, ...]:
        """Each chunk of KV that it refers to, the auxiliary's included, once."""
        auxiliaries = (c.auxiliary_id for c in self.chunks if c.auxiliary_id)
        return tuple(dict.fromkeys((*(c.chunk_id for c in self.chunks), *auxiliaries)))

    def readers_of(self, index: int) -> Readers:
        """Of the chunk ``index``, and of all that it is computed behind."""
        return readers_below(self.chunks[index].heading, self.readers, self.sections)

    def readable_by(self, principal: Principal) -> Manifest | None:
        """Without what ``principal`` may not read; None: all of it."""
        if not may_read(principal, self.readers):
            return None
        if not self.sections or reads_everything(principal):
            return self
        shown = [may_read(principal, self.readers_of(i)) for i in range(len(self.chunks))]
        return replace(
            self,
            chunks=tuple(compress(self.chunks, shown)),
            sections=tuple(one for one in self.sections if may_read(principal, one.readers)),
        )

    def block_start(self, index: int) -> int:
        """Of the block of the chunk ``index`` the first chunk."""
        while index and self.chunks[index].parent_id and not self.chunks[index].header_ids:
            index -= 1
        return index

    def block(self, index: int) -> range:
        """Of the block of the chunk ``index`` all chunks."""
        start, end = self.block_start(index), len(self.chunks)
        return range(start, next((i for i in range(start + 1, end) if self.block_start(i) == i), end))

    def links_of(self, index: int) -> tuple[TokenIds, ...]:
        """Token ids of all that the chunk ``index`` is computed behind, the first of it first."""
        start = self.block_start(index)
        header_ids = self.chunks[start].header_ids
        chunks = tuple(chunk.token_ids for chunk in self.chunks[start:index])
        return (header_ids, *chunks) if header_ids else chunks

    def link_texts_of(self, index: int) -> tuple[str, ...]:
        """Returns the texts of ``links_of``, without a template; a header's text may go on behind its ids."""
        start = self.block_start(index)
        first = self.chunks[start]
        chunks = tuple(chunk.text for chunk in self.chunks[start:index])
        return (header_text(self.title, first.heading), *chunks) if first.header_ids else chunks

    def chain_to(self, parent_id: str) -> Chain | None:
        """Returns the chain that a chunk with this parent is computed behind; None: it has none."""
        index = next((i for i, chunk in enumerate(self.chunks) if chunk.parent_id == parent_id), None)
        if index is None:
            return None
        of = (self.tenant, self.model_fingerprint, self.prefix_ids)
        return Chain(*of, self.links_of(index), self.link_texts_of(index), self.kv_scope)

    def without_auxiliary(self) -> Manifest:
        return replace(self, auxiliary="", chunks=tuple(replace(c, auxiliary_id="") for c in self.chunks))

    def cursor(self, collection: str) -> str:
        """``start_after`` for what follows this one in a listing of ``collection`` (empty: of all
        collections)."""
        return self.document_id if collection else f"{self.collection}/{self.document_id}"


@dataclass(frozen=True, slots=True)
class AlikeDocuments:
    """Documents of a collection that were made for the same; see ``MadeFor``."""

    collection: str
    num_documents: int
    model_fingerprint: str
    prefix_hash: str = ""
    template_hash: str = ""
    kv_context: str = ""
    kv_scope: str = ""

    @property
    def made_for(self) -> MadeFor:
        return MadeFor(
            self.model_fingerprint, self.prefix_hash, self.template_hash, self.kv_context, self.kv_scope
        )


@dataclass(frozen=True, slots=True)
class ManifestPage:
    manifests: tuple[Manifest, ...]
    truncated: bool
