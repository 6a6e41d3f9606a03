"""The description of a generator, and of chunks that it prefilled."""

from __future__ import annotations

from dataclasses import dataclass

from shared.identity import digest, ids_hash
from shared.kv_buffers import ITEM_SIZES, PACKED_BITS


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """``tokenizer_hash`` is empty for a model without a tokenizer, which is served by ids only.
    ``kv_encoding``: how new KV is stored (exact, int8, …). ``prompt``: where its prompt comes from.
    ``kv_scope``: the scope in which the KV of whoever asked is shared (``shared.sharing``); empty: none."""

    model: str
    fingerprint: str
    tokenizer_hash: str
    prefix_ids: tuple[int, ...]
    chunk_template: str
    question_template: str
    max_positions: int
    dtype: str
    kv_bytes_per_token: int
    device: str
    eos_ids: tuple[int, ...]
    kv_encoding: str = ""
    prompt: str = ""
    kv_scope: str = ""

    @property
    def least_stored_bytes_per_token(self) -> int:
        """Bytes that files of new KV take, without their headers and ranges."""
        packed = PACKED_BITS.get(self.kv_encoding)
        if packed is None:
            return self.kv_bytes_per_token
        return self.kv_bytes_per_token * packed // (8 * ITEM_SIZES[self.dtype])

    @property
    def made_for(self) -> MadeFor:
        """Conditions that this model makes KV of a chunk's text for."""
        template = text_hash(self.tokenizer_hash, self.chunk_template)
        return MadeFor(self.fingerprint, ids_hash(self.prefix_ids), template, kv_scope=self.kv_scope)


@dataclass(frozen=True, slots=True)
class MadeFor:
    """Conditions that a document's KV and token ids depend on besides its text. ``prefix``, ``template``:
    hashes; empty: not known, since an earlier version stored the document. An answer over another one would
    be wrong.

    ``kv_context``: what its KV is computed behind (``shared.kv_types.KvContext``; empty: the prefix alone).
    Each chunk names its own parent, so answers over any are right, and a model has none of its own.
    ``kv_scope``: as of a ``Manifest``; answers over any are right, too."""

    fingerprint: str
    prefix: str = ""
    template: str = ""
    kv_context: str = ""
    kv_scope: str = ""

    def differs_from(self, now: MadeFor) -> str:
        """Names the first thing that is another one now; empty: none."""
        if self.fingerprint != now.fingerprint:
            return "model"
        if self.prefix and self.prefix != now.prefix:
            return "prompt prefix"
        return "chunk template" if self.template and self.template != now.template else ""

    def stored_apart_from(self, now: MadeFor) -> str:
        """Names the first thing for which its KV is stored under other identities now; empty: none."""
        return self.differs_from(now) or ("sharing scope" if self.kv_scope != now.kv_scope else "")


def text_hash(tokenizer_hash: str, chunk_template: str) -> str:
    """Stands for how a chunk's text becomes ids: 16 hex digits."""
    return digest(tokenizer_hash.encode(), chunk_template.encode(), size=8)


@dataclass(frozen=True, slots=True)
class PrefilledChunk:
    """One chunk whose KV is durable. ``existed``: it was so before the call."""

    index: int
    chunk_id: str
    token_ids: tuple[int, ...]
    existed: bool


@dataclass(frozen=True, slots=True)
class RecomputedChunk:
    """A stored chunk whose KV was computed once more. ``deviation``: the largest one of a token's keys or
    values in a layer, as a part of their length; more than ``tolerance`` is not what the model makes of its
    tokens."""

    index: int
    chunk_id: str
    encoding: str
    deviation: float
    tolerance: float

    @property
    def forged(self) -> bool:
        return not self.deviation <= self.tolerance  # True for NaN
