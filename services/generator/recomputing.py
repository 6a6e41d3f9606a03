"""Computes KV of stored chunks once more and compares: what somebody forged with a fitting checksum, or
before it was sealed, is not what the model makes of the tokens.

The engine prefills a chunk under a name that nobody stores, behind a chain under such names, so that nothing
of what is stored takes part; what would be stored then is compared with the stored file instead. Two
computations differ by rounding, and what was stored in fewer bits by that: ``TOLERANCES`` says by how much a
token's keys or values may differ, as a part of their length. Other tokens' KV differs by about that length.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from shared.engine.kv.encodings import EXACT
from shared.engine.kv.source import ComputedChunk, SegmentSource, StoredSegment
from shared.errors import KvquiltError, NotFound
from shared.generation.asked import Chunk
from shared.generation.described import RecomputedChunk
from shared.identity import TokenIds

TOLERANCES = {"float32": 0.02, "bfloat16": 0.2, "float16": 0.1, "int8": 0.25, "int4": 0.6}
"""Largest distance of a token's stored keys, or values, of one layer from those computed now, over the length
of these. By encoding; where nothing was lost, by the model's type."""
_NAME = "recompute:"


class Comparing:
    """A ``SegmentSource`` that compares what is computed under a name of ``named`` and passes all else on."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source
        self._found: dict[str, tuple[float, str]] = {}

    @property
    def encoding(self) -> str:
        return self._source.encoding

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        stored = {key: length for key, length in chunk_lens.items() if not key.startswith(_NAME)}
        return self._source.open(stored, encoding, traceparent, tenant) if stored else {}

    def as_stored(
        self, k_LHTD: Sequence[torch.Tensor], v_LHTD: Sequence[torch.Tensor], saved: bool = True
    ) -> None:
        self._source.as_stored(k_LHTD, v_LHTD, saved)

    def chain(self, chunk: Chunk, tenant: str, prefix_ids: TokenIds) -> Sequence[Chunk] | None:
        return self._source.chain(chunk, tenant, prefix_ids)

    def prefetch(self, chunk_ids: Sequence[str], tenant: str = "") -> None:
        self._source.prefetch(chunk_ids, tenant)

    def save(self, chunk: ComputedChunk) -> None:
        if not chunk.key.startswith(_NAME):
            self._source.save(chunk)
            return
        self._found[chunk.key] = self._compared(chunk)

    def take(self, key: str) -> tuple[float, str]:
        """The deviation of what was computed under this name, and the encoding that it is stored in. Once.

        Raises:
            NotFound: it is not stored.
        """
        deviation, encoding = self._found.pop(key)
        if not encoding:
            raise NotFound(f"chunk {key.rpartition(':')[2]}: not stored")
        return deviation, encoding

    def _compared(self, computed: ComputedChunk) -> tuple[float, str]:
        chunk_id, length = computed.key.rpartition(":")[2], len(computed.token_ids)
        stored = self._source.open({chunk_id: length}, tenant=computed.tenant).get(chunk_id)
        if stored is None:
            return 0.0, ""
        try:
            encoding = str(getattr(stored, "encoding", EXACT))
            return self._deviation(computed, stored), encoding
        except KvquiltError:  # it cannot be read: that is damage, and verify finds it
            return float("inf"), EXACT
        finally:
            stored.close()

    def _deviation(self, computed: ComputedChunk, stored: StoredSegment) -> float:
        largest, length = 0.0, len(computed.token_ids)
        for layer, kv_KTD in enumerate(zip(computed.segment.k_LKTD, computed.segment.v_LKTD, strict=True)):
            now_KTD = [x_KTD[:, :length].contiguous() for x_KTD in kv_KTD]
            then_KTD = [torch.empty_like(x_KTD) for x_KTD in now_KTD]
            stored.read_layers(range(layer, layer + 1), *([x_KTD] for x_KTD in then_KTD))
            for now, then in zip(now_KTD, then_KTD, strict=True):
                largest = max(largest, deviation(now, then))
        return largest


def deviation(now_KTD: torch.Tensor, then_KTD: torch.Tensor) -> float:
    """The largest distance of a token's vectors (of all heads) from another's, over their length, but no less
    than a tenth of the mean length: of a vector of zeros everything is far away."""
    now, then = (x_KTD.float().transpose(0, 1).flatten(1) for x_KTD in (now_KTD, then_KTD))
    lengths = now.norm(dim=1)
    distances = (now - then).norm(dim=1) / lengths.clamp(min=max(float(lengths.mean()) / 10, 1e-12))
    return float(distances.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def tolerance(encoding: str, dtype: str) -> float:
    return TOLERANCES[dtype if encoding == EXACT else encoding]


@dataclass(frozen=True, slots=True)
class Named:
    """Chunks, and what they are computed behind, under names that nobody stores."""

    chunks: tuple[Chunk, ...]
    links: tuple[Chunk, ...]


def named(chunks: Sequence[Chunk], links: Sequence[Chunk]) -> Named:
    round_of = f"{_NAME}{uuid.uuid4().hex}:"

    def renamed(chunk: Chunk) -> Chunk:
        parent_id = chunk.parent_id and round_of + chunk.parent_id
        return replace(chunk, chunk_id=round_of + chunk.chunk_id, parent_id=parent_id, isolated_id="")

    return Named(tuple(map(renamed, chunks)), tuple(map(renamed, links)))


def judged(index: int, chunk: Chunk, found: tuple[float, str], dtype: str) -> RecomputedChunk:
    largest, encoding = found
    return RecomputedChunk(index, chunk.chunk_id, encoding, largest, tolerance(encoding, dtype))
