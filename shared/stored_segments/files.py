"""KV of a chunk between a file and the model's tensors, in whatever encoding the file has.

Shapes: L layers, H KV heads, T tokens, D head_dim.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from shared.engine.kv.encodings import EXACT, Buffers, encoding_of
from shared.engine.kv.segment import copy_layers
from shared.engine.model.rope import RopeSpec, Rotation
from shared.engine.model.spec import ModelSpec
from shared.errors import CorruptData
from shared.identity import ids_hash
from shared.kv_format import ChunkFile, ChunkHeader, write_chunk
from shared.kv_format.remote import RemoteChunk

Array = np.ndarray[Any, np.dtype[Any]]
_BITS = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
}  # numpy has no bfloat16: values travel as integers of their size
_ALIGNMENT = 64
_PINNED_PIECES = 4


class FingerprintedModel(Protocol):
    """``shared.engine.LoadedModel``, or an auxiliary model's ``shared.selection.scoring.Scorer``."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def fingerprint(self) -> str: ...


@dataclasses.dataclass(frozen=True, slots=True)
class KvShape:
    """Facts that all chunks of one model have in common, in the words of ``ChunkHeader``."""

    model_fingerprint: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    rope: RopeSpec
    tokenizer_hash: str = ""

    @classmethod
    def of_model(cls, model: FingerprintedModel, tokenizer_hash: str = "") -> KvShape:
        s = model.spec
        return cls(
            model.fingerprint, s.num_layers, s.num_kv_heads, s.head_dim, s.dtype_name, s.rope, tokenizer_hash
        )

    def header(
        self, chunk_id: str, prefix_ids: Sequence[int], token_ids: Sequence[int], encoding: str = EXACT
    ) -> ChunkHeader:
        return ChunkHeader(
            chunk_id=chunk_id,
            model_fingerprint=self.model_fingerprint,
            tokenizer_hash=self.tokenizer_hash,
            prefix_hash=ids_hash(prefix_ids),
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            num_tokens=len(token_ids),
            head_dim=self.head_dim,
            dtype=self.dtype,
            encoding=encoding,
            rope=str(self.rope),
            ids_hash=ids_hash(token_ids),
            token_ids=tuple(token_ids),
        )

    def check(self, header: ChunkHeader, chunk_id: str, num_tokens: int) -> None:
        """The identity binds tenant, prefix and ids; what remains is that the file is the one that it is said
        to be.

        Raises:
            CorruptData: it is another chunk's, another model's, or of another shape.
        """
        ours = self.header(chunk_id, (), header.token_ids, header.encoding)
        ours = dataclasses.replace(ours, prefix_hash=header.prefix_hash, tokenizer_hash=header.tokenizer_hash)
        if header != ours or header.num_tokens != num_tokens:
            raise CorruptData(f"chunk {chunk_id}: its file was written for another chunk or model")


class Scratch(threading.local):
    """Memory that a thread reuses from layer to layer: host memory, pinned where there is a GPU, and the
    tables of the rotation. Of pinned memory there are several pieces, taken in turn: while the device copies
    out of one, the next layers are read into another. A piece has room for the most that was read so far."""

    def __init__(self, rope: RopeSpec) -> None:
        self._rope = rope
        self._rotations: dict[torch.device, Rotation] = {}
        self._memory: torch.Tensor | None = None
        self._pinned: deque[PinnedPiece] = deque(PinnedPiece() for _ in range(_PINNED_PIECES))

    def rotation(self, device: torch.device) -> Rotation:
        if device not in self._rotations:
            self._rotations[device] = Rotation(self._rope, device)
        return self._rotations[device]

    def piece(self) -> PinnedPiece:
        """The one that was used longest ago; the device has copied all out of it."""
        self._pinned.rotate(-1)
        self._pinned[0].wait()
        return self._pinned[0]

    def memory(self, num_bytes: int) -> torch.Tensor:
        """Host memory, valid until the next call."""
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = torch.empty(num_bytes, dtype=torch.uint8)
        return self._memory[:num_bytes]


class PinnedPiece:
    """Host memory for layers on their way to a GPU."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def memory(self, num_bytes: int) -> torch.Tensor:
        """Valid until the next call."""
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = torch.empty(num_bytes, dtype=torch.uint8).pin_memory()
        return self._memory[:num_bytes]

    def ordered(self) -> None:
        """The copies out of it are in the order of the current stream."""
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()


class FileSegment:
    """``shared.engine.kv.source.StoredSegment`` in an open file, which it closes."""

    def __init__(self, file: ChunkFile | RemoteChunk, scratch: Scratch, tier: str = "") -> None:
        self.tier = tier
        self._file = file
        self._scratch = scratch

    @property
    def header(self) -> ChunkHeader:
        return self._file.header

    @property
    def encoding(self) -> str:
        return self.header.encoding

    @property
    def in_order(self) -> bool:
        return isinstance(self._file, RemoteChunk)

    def when_begun(self, tell: Callable[[], None]) -> None:
        if isinstance(self._file, RemoteChunk):
            self._file.when_begun(tell)
        else:
            tell()

    def read_layers(
        self, layers: range, k_out_LHTD: Sequence[torch.Tensor], v_out_LHTD: Sequence[torch.Tensor]
    ) -> None:
        """Exact KV goes from the file into host tensors directly. To a GPU it goes as it is stored, in one
        copy: exact KV straight to where it stays, what is encoded is decoded there."""
        if k_out_LHTD[0].device.type == "cuda":
            self._read_there(layers, k_out_LHTD, v_out_LHTD)
            return
        for layer, k_out_HTD, v_out_HTD in zip(layers, k_out_LHTD, v_out_LHTD, strict=True):
            if self.encoding == EXACT:
                self._file.read_layer(layer, array_of(k_out_HTD), array_of(v_out_HTD))
            else:
                buffers = layer_buffers(self.header, self._scratch.memory(layer_bytes(self.header)))
                self._file.read_layer(layer, *map(array_of, buffers.values()))
                self._decode(buffers, k_out_HTD, v_out_HTD)

    def _read_there(
        self, layers: range, k_out_LHTD: Sequence[torch.Tensor], v_out_LHTD: Sequence[torch.Tensor]
    ) -> None:
        """Copies are in the order of the current stream; pinned memory is used again when they are done."""
        piece, header = self._scratch.piece(), self.header
        memory = piece.memory(len(layers) * layer_bytes(header))
        here = [layer_buffers(header, part) for part in memory.view(len(layers), -1).unbind()]
        for layer, buffers in zip(layers, here, strict=True):
            self._file.read_layer(layer, *map(array_of, buffers.values()))
        if self.encoding == EXACT:
            kv = [x_HTD for buffers in here for x_HTD in (buffers["k"], buffers["v"])]
            copy_layers(kv, k_out_LHTD, v_out_LHTD)
        else:
            there = memory.to(k_out_LHTD[0].device, non_blocking=True).view(len(layers), -1).unbind()
            for part, *kv_HTD in zip(there, k_out_LHTD, v_out_LHTD, strict=True):
                self._decode(layer_buffers(header, part), *kv_HTD)
        piece.ordered()

    def _decode(self, buffers: Buffers, k_out_HTD: torch.Tensor, v_out_HTD: torch.Tensor) -> None:
        rotation = self._scratch.rotation(k_out_HTD.device)
        encoding_of(self.encoding).decode(buffers, rotation, k_out_HTD, v_out_HTD)

    def close(self) -> None:
        self._file.close()


def layer_bytes(header: ChunkHeader) -> int:
    """Of one layer in memory."""
    return _starts(header)[-1]


def layer_buffers(header: ChunkHeader, memory: torch.Tensor) -> dict[str, torch.Tensor]:
    """The places in ``memory`` [layer_bytes] of one layer's buffers, in their order in the file."""
    heads = header.num_kv_heads
    return {
        spec.name: memory[start : start + heads * spec.row_bytes]
        .view(getattr(torch, spec.dtype))
        .view(heads, *spec.shape)
        for spec, start in zip(header.buffers, _starts(header), strict=False)
    }


def _starts(header: ChunkHeader) -> list[int]:
    """Of the buffers, and the end. Values lie right behind the keys where nothing else does."""
    alignment = 1 if header.encoding == EXACT else _ALIGNMENT
    starts = [0]
    for spec in header.buffers:
        starts.append(starts[-1] + -(-header.num_kv_heads * spec.row_bytes // alignment) * alignment)
    return starts


class BrokenSegment:
    """A stored file that cannot be read right."""

    in_order = False
    tier = encoding = ""

    def when_begun(self, tell: Callable[[], None]) -> None:
        tell()

    def __init__(self, error: CorruptData) -> None:
        self._error = error

    def read_layers(
        self, layers: range, k_out_LHTD: Sequence[torch.Tensor], v_out_LHTD: Sequence[torch.Tensor]
    ) -> None:
        raise self._error

    def close(self) -> None:
        pass


def encode_layers(
    encoding: str, k_LHTD: Sequence[torch.Tensor], v_LHTD: Sequence[torch.Tensor], scratch: Scratch
) -> list[Buffers]:
    rotation = scratch.rotation(k_LHTD[0].device)
    return [encoding_of(encoding).encode(k, v, rotation) for k, v in zip(k_LHTD, v_LHTD, strict=True)]


def write_layers(path: Path, header: ChunkHeader, layers: Sequence[Buffers]) -> None:
    """Raises like ``write_chunk``."""
    write_chunk(path, header, *([array_of(layer[spec.name]) for layer in layers] for spec in header.buffers))


def array_of(tensor: torch.Tensor) -> Array:
    """The bits of ``tensor`` as integers; a view, wherever it is in host memory and contiguous."""
    array: Array = tensor.detach().cpu().contiguous().view(_BITS[tensor.element_size()]).numpy()
    return array


def empty_layers(header: ChunkHeader) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Host tensors for the whole chunk: k and v of every layer [H, T, D]."""
    shape, dtype = (header.num_kv_heads, header.num_tokens, header.head_dim), getattr(torch, header.dtype)
    k_LHTD, v_LHTD = ([torch.empty(shape, dtype=dtype) for _ in range(header.num_layers)] for _ in "kv")
    return k_LHTD, v_LHTD
