"""The source of stored KV, to which computed KV goes: the engine's only view of the outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from shared.engine.kv.encodings import EXACT
from shared.engine.kv.segment import Segment
from shared.generation.asked import Chunk
from shared.identity import TokenIds


@dataclass(frozen=True, slots=True)
class ComputedChunk:
    """A complete segment, computed behind ``prefix_ids`` and the chain that ends with ``parent_id``, that is
    to be stored for ``tenant``. ``replace``: what is stored now was found broken. ``write_back``: no answer
    waits for it, so durable on this machine is enough for now. ``encoding`` empty: the source's own.
    ``asked_by``: as of a ``GenerateRequest``."""

    key: str
    prefix_ids: TokenIds
    token_ids: TokenIds
    segment: Segment
    replace: bool
    write_back: bool
    encoding: str = ""
    tenant: str = ""
    parent_id: str = ""
    asked_by: str = ""


class StoredSegment(Protocol):
    """KV of one chunk, readable layer by layer. Closed by the engine."""

    @property
    def in_order(self) -> bool:
        """Its layers come one after the other, as from a connection: one thread at a time may read it, and
        reading another layer next is dear. Else several threads may read it at once."""
        ...

    def when_begun(self, tell: Callable[[], None]) -> None:
        """Waits, where layers come in order: calls ``tell`` once, as soon as the first one is on its way or
        will not come; from whichever thread notices."""
        ...

    @property
    def tier(self) -> str:
        """Tier it is read from, for traces and metrics: ``memory``, ``disk``, ``objects`` or ``peer``;
        empty: somewhere else."""
        ...

    @property
    def encoding(self) -> str:
        """The one that it is stored in (``shared.kv_buffers.ENCODINGS``): other values come of another. Waits
        and raises like ``read_layers`` where nobody has seen it yet."""
        ...

    def read_layers(self, layers: range, k_out_LHTD: Sequence[Tensor], v_out_LHTD: Sequence[Tensor]) -> None:
        """Fills, for each of these layers, both tensors ([kv_heads, tokens, head_dim], contiguous, the
        model's dtype) with verified bytes. On a GPU in the order of the calling thread's current stream: what
        fills them is ordered when it returns, and need not have ended. Values lie right behind keys, and
        layers behind each other, where a layer's bytes are a multiple of 64.

        Keys come out rotated at local positions 0, 1, 2, …

        Raises:
            CorruptData: the bytes are not what was stored. The engine then recomputes the chunk and calls
            ``save``, to replace it. Unavailable: they cannot be had now. The chunk is recomputed; what is
            stored stays. NotFound: they are not stored after all.
        """
        ...

    def close(self) -> None: ...


class SegmentSource(Protocol):
    """Called from the engine's loader threads; every method may block. No method but ``save`` raises for a
    chunk's sake: a chunk that cannot be had is absent."""

    @property
    def encoding(self) -> str:
        """That computed KV is stored in (``shared.kv_buffers.ENCODINGS``)."""
        ...

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        """The stored ones of these chunks (id → number of tokens). Absent ones are left out. ``traceparent``:
        of the request that they are for, if it is traced. ``tenant``: whose request it is.

        ``encoding`` not empty: they are to be stored in that one. What is stored otherwise is converted if
        nothing was lost when it was stored; else it raises ``CorruptData`` when read.
        """
        ...

    def as_stored(self, k_LHTD: Sequence[Tensor], v_LHTD: Sequence[Tensor], saved: bool = True) -> None:
        """Gives just computed KV, in place, the values that it will be read with once ``save`` has stored
        these very tensors in ``encoding``.

        Called before they are used first, so that first and later answers agree. ``saved`` False: they are
        stored already, and ``save`` will not be called.
        """
        ...

    def chain(self, chunk: Chunk, tenant: str, prefix_ids: TokenIds) -> Sequence[Chunk] | None:
        """The chunks in front of this one in its document, one of the tenant's, the first of its chain first,
        so that it can be computed as it was; None: nobody knows them any more. They have the identities that
        they have behind ``prefix_ids``, whichever the document was made with."""
        ...

    def prefetch(self, chunk_ids: Sequence[str], tenant: str = "") -> None:
        """These will be opened soon: brings them nearer, if it can. Need not wait for that."""
        ...

    def save(self, chunk: ComputedChunk) -> None:
        """Makes it durable: returns once it is.

        Raises:
            KvquiltError: it could not be stored (``StorageFull``, ``Unavailable``, …).
        """
        ...


class NoSource:
    """Stores nothing, has nothing: the engine as a plain library."""

    encoding = EXACT

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        return {}

    def as_stored(self, k_LHTD: Sequence[Tensor], v_LHTD: Sequence[Tensor], saved: bool = True) -> None:
        pass

    def chain(self, chunk: Chunk, tenant: str, prefix_ids: TokenIds) -> Sequence[Chunk] | None:
        return None

    def prefetch(self, chunk_ids: Sequence[str], tenant: str = "") -> None:
        pass

    def save(self, chunk: ComputedChunk) -> None:
        pass
