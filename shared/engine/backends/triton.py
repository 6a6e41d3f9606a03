"""All segments of a step in one launch per layer, on a GPU, with one launch before it to append and one after
it to merge.

Every resident segment is read once per kv head, whoever looks at it, unless more rows look than a tile holds.
Shapes: H query heads, K kv heads, R rows, D head_dim, L layers, P pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.attention import Lane, Piece
from shared.engine.backends import triton_kernels as kernels
from shared.engine.backends.tables import BLOCK_KEYS, LOG2_E, Tables, Tiling, plan_tables
from shared.engine.device_arrays import DeviceArrays
from shared.engine.model.rope import Angles
from shared.engine.model.spec import ModelSpec
from shared.errors import ConfigError

_MIN_DOT = 16  # the smallest side of a matrix product


class TritonBackend:
    """``tiling``: of every step, so that no row's bits depend on its company (``FIXED``); None chooses for
    each step."""

    def __init__(self, spec: ModelSpec, tiling: Tiling | None = None) -> None:
        """
        Raises:
            ConfigError: the device is no GPU (and Triton's interpreter is off).
        """
        if spec.device.type != "cuda" and not triton.knobs.runtime.interpret:
            raise ConfigError(
                f"engine.backend: 'triton' needs a GPU, engine.device is {spec.device}; set the "
                "backend to 'auto'"
            )
        self._spec = spec
        self._rotation = spec.rotation()
        self._tiling = tiling
        self._num_processors, self._high = 1, 64
        if spec.device.type == "cuda":
            processor = torch.cuda.get_device_properties(spec.device)
            self._num_processors = processor.multi_processor_count
            self._high = high_tile(spec, (processor.major, processor.minor))

    @property
    def fixed(self) -> bool:
        """No row's bits depend on its company."""
        return self._tiling is not None

    def plan(self, lanes: Sequence[Lane]) -> TritonAttention:
        return self.attention(self.tables(lanes))

    def tables(self, lanes: Sequence[Lane]) -> Tables:
        tables = plan_tables(lanes, self._spec, self._tiling, self._num_processors, self._high)
        # With fixed tiles also one program for all steps: without exclusions it is compiled anew and might
        # round elsewhere.
        return replace(tables, excludes=True) if self.fixed else tables

    def attention(self, tables: Tables) -> TritonAttention:
        return TritonAttention(self._spec, tables, self.angles(tables))

    def angles(self, tables: Tables) -> Angles:
        """Of all positions that the tables name, and others; the same tensors until positions are named that
        they lack."""
        return self._rotation.table(tables.num_positions)


class TritonAttention:
    """Device-side tables, made once; from layer to layer only the number of the layer changes."""

    def __init__(self, spec: ModelSpec, tables: Tables, angles: Angles) -> None:
        self._spec, self._split_len = spec, tables.tiling.split_len
        self._num_items, self._num_slots = len(tables.items_I4), tables.num_slots
        self._append_settings, self._merge_settings = append_settings(spec), merge_settings(spec)
        self._attend_settings = attend_settings(spec, tables.tiling, tables.excludes)
        self._cos_PF, self._sin_PF = angles
        self._pieces: Sequence[Piece] = tables.pieces  # keeps alive what the tables point to
        self._numbers = DeviceArrays(_arrays(tables), spec.device)
        self._addresses, self._hidden, self._items, self._piece_rows, self._looks, *rest = (
            self._numbers.tensors
        )
        self._first_slot, self._own, self._joint, self._sharpness, self._more = rest
        self._slots: tuple[Tensor, Tensor] | None = None

    def take(self, tables: Tables) -> None:
        """Goes on with tables of another step: of the same sizes, tiling and exclusion, and of positions that
        there are angles of. The caller keeps alive what they point to."""
        self._pieces = ()
        self._numbers.write(_arrays(tables))

    def forget_slots(self) -> None:
        """Frees what is between ``attend`` and ``merge`` of a layer, until the next layer runs."""
        self._slots = None

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        q_HRD, k_KRD, v_KRD = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_HRD, k_KRD, v_KRD))
        self._append(layer, k_KRD, v_KRD)
        self._attend(layer, q_HRD, scale)
        return self._merge(q_HRD)

    def _append(self, layer: int, k_KRD: Tensor, v_KRD: Tensor) -> None:
        num_kv_heads, num_rows, _ = k_KRD.shape
        settings = self._append_settings
        kernels.append_kernel[(triton.cdiv(num_rows * num_kv_heads, settings["BLOCK_PAIRS"]),)](
            k_KRD,
            v_KRD,
            self._cos_PF,
            self._sin_PF,
            self._own,
            self._piece_rows,
            self._addresses,
            layer,
            self._spec.num_layers,
            num_rows,
            *k_KRD.stride()[:2],
            *v_KRD.stride()[:2],
            **settings,
        )

    def _attend(self, layer: int, q_HRD: Tensor, scale: float) -> None:
        out, lse = self._partial
        kernels.attend_kernel[(self._num_items, self._spec.num_kv_heads)](
            q_HRD,
            out,
            lse,
            self._cos_PF,
            self._sin_PF,
            self._items,
            self._piece_rows,
            self._looks,
            self._sharpness,
            self._hidden,
            self._addresses,
            layer,
            self._spec.num_layers,
            *q_HRD.stride()[:2],
            scale * LOG2_E,
            self._split_len,
            **self._attend_settings,
        )

    def _merge(self, q_HRD: Tensor) -> Tensor:
        num_heads, num_rows, head_dim = q_HRD.shape
        merged_RHD = torch.empty(num_rows, num_heads, head_dim, dtype=q_HRD.dtype, device=q_HRD.device)
        out, lse = self._partial
        settings = self._merge_settings
        kernels.merge_kernel[(triton.cdiv(num_rows * num_heads, settings["BLOCK_PAIRS"]),)](
            out,
            lse,
            self._first_slot,
            self._joint,
            self._more,
            merged_RHD,
            num_rows,
            **settings,
        )
        return merged_RHD.transpose(0, 1)

    @property
    def _partial(self) -> tuple[Tensor, Tensor]:
        """Outputs and log-sum-exps of all slots."""
        if self._slots is None:
            num_heads, device = self._spec.num_heads, self._spec.device
            out = torch.empty(self._num_slots, num_heads, self._spec.head_dim, device=device)
            self._slots = out, torch.empty(self._num_slots, num_heads, device=device)
        return self._slots


def high_tile(spec: ModelSpec, capability: tuple[int, int]) -> int:
    """Rows of a high tile: 128 where a processor has the memory for them, as of an H100, else 64."""
    fits = capability >= (9, 0) and spec.dtype.itemsize == 2 and spec.head_dim <= 128
    return 128 if fits else 64


def append_settings(spec: ModelSpec) -> dict[str, Any]:
    """The constants that the kernel is compiled for."""
    return _heads(spec) | {
        "NUM_KV_HEADS": spec.num_kv_heads,
        "HALF": len(spec.rope.inv_freq),
        "BLOCK_PAIRS": 8 if spec.device.type == "cuda" else 64,  # the interpreter pays per program
    }


def attend_settings(spec: ModelSpec, tiling: Tiling, excludes: bool) -> dict[str, Any]:
    return _heads(spec) | {
        "GROUP": spec.num_heads // spec.num_kv_heads,
        "NUM_KV_HEADS": spec.num_kv_heads,
        "HALF": len(spec.rope.inv_freq),
        "EXCLUDES": excludes,
        "ALIKE": tiling.alike,
        "WIDEN": spec.device.type != "cuda",
        "BLOCK_ROWS": tiling.block_rows,
        "BLOCK_KEYS": BLOCK_KEYS,
        "num_warps": 8 if tiling.block_rows > 64 else 4,
        "num_stages": 3,
    }


def merge_settings(spec: ModelSpec) -> dict[str, Any]:
    return _heads(spec) | {
        "NUM_HEADS": spec.num_heads,
        "BLOCK_PAIRS": 1 if spec.device.type == "cuda" else 64,
        "BLOCK_SLOTS": 32,  # everywhere: it is the order of a sum
        "num_warps": 1,
    }


def _heads(spec: ModelSpec) -> dict[str, Any]:
    return {"HEAD_DIM": spec.head_dim, "BLOCK_DIM": max(_MIN_DOT, triton.next_power_of_2(spec.head_dim))}


def _arrays(tables: Tables) -> list[NDArray[Any]]:
    """In the order in which ``TritonAttention`` takes them apart."""
    return [
        *(tables.addresses, tables.hidden_N, tables.items_I4, tables.pieces_P3, tables.looks_N5),
        *(tables.first_slot_R, tables.own_R3, tables.joint_R2, tables.sharpness_N, tables.more_R),
    ]
