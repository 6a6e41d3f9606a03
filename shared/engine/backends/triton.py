"""All segments of a step in one launch per layer, on a GPU, with one launch before it to append and one after
it to merge.

Every resident segment is read once per kv head, whoever looks at it, unless more rows look than a tile holds.
Shapes: H query heads, K kv heads, R rows, D head_dim, L layers, P pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.attention import Lane
from shared.engine.backends import triton_kernels as kernels
from shared.engine.backends.tables import BLOCK_KEYS, LOG2_E, Tables, Tiling, plan_tables
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec
from shared.errors import ConfigError

_MIN_DOT = 16  # the smallest side of a matrix product
_ALIGNMENT = 16


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
        self._num_processors = 1
        if spec.device.type == "cuda":
            self._num_processors = torch.cuda.get_device_properties(spec.device).multi_processor_count

    def plan(self, lanes: Sequence[Lane]) -> TritonAttention:
        tables = plan_tables(lanes, self._spec, self._tiling, self._num_processors)
        # With fixed tiles also one program for all steps: without exclusions it is compiled anew and might
        # round elsewhere.
        excludes = tables.excludes or self._tiling is not None
        return TritonAttention(self._spec, tables, excludes, self._rotation)


class TritonAttention:
    """Device-side tables, made once; from layer to layer only the number of the layer changes."""

    def __init__(self, spec: ModelSpec, tables: Tables, excludes: bool, rotation: Rotation) -> None:
        device = spec.device
        self._spec, self._num_items, self._split_len = spec, len(tables.items_I4), tables.tiling.split_len
        self._append_settings, self._merge_settings = append_settings(spec), merge_settings(spec)
        self._attend_settings = attend_settings(spec, tables.tiling, excludes)
        self._pieces = tables.pieces  # keeps alive what the tables point to
        self._cos_PF, self._sin_PF = rotation.table(tables.num_positions)
        self._items, self._piece_rows, self._looks, self._first_slot, self._own, self._joint, *floats = (
            _to_device(
                [
                    *(tables.items_I4, tables.pieces_P3, tables.looks_N5, tables.first_slot_R, tables.own_R3),
                    *(tables.joint_R2, tables.sharpness_N.view(np.int32), tables.more_R.view(np.int32)),
                ],
                device,
            )
        )
        self._sharpness, self._more = (x.view(torch.float32) for x in floats)
        self._addresses, self._hidden = _to_device([tables.addresses, tables.hidden_N], device)
        self._out = torch.empty(tables.num_slots, spec.num_heads, spec.head_dim, device=device)
        self._lse = torch.empty(tables.num_slots, spec.num_heads, device=device)

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
        kernels.attend_kernel[(self._num_items, self._spec.num_kv_heads)](
            q_HRD,
            self._out,
            self._lse,
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
        settings = self._merge_settings
        kernels.merge_kernel[(triton.cdiv(num_rows * num_heads, settings["BLOCK_PAIRS"]),)](
            self._out,
            self._lse,
            self._first_slot,
            self._joint,
            self._more,
            merged_RHD,
            num_rows,
            **settings,
        )
        return merged_RHD.transpose(0, 1)


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
        "WIDEN": spec.device.type != "cuda",
        "BLOCK_ROWS": tiling.block_rows,
        "BLOCK_KEYS": BLOCK_KEYS,
        "num_warps": 8 if tiling.block_rows > 64 else 4,
        "num_stages": 3 if tiling.block_rows == 16 else 2,  # few rows: all is loading
    }


def merge_settings(spec: ModelSpec) -> dict[str, Any]:
    return _heads(spec) | {
        "NUM_HEADS": spec.num_heads,
        "BLOCK_PAIRS": 2 if spec.device.type == "cuda" else 64,
        "BLOCK_SLOTS": 8,  # everywhere: it is the order of a sum
    }


def _heads(spec: ModelSpec) -> dict[str, Any]:
    return {"HEAD_DIM": spec.head_dim, "BLOCK_DIM": max(_MIN_DOT, triton.next_power_of_2(spec.head_dim))}


def _to_device(tables: Sequence[NDArray[Any]], device: torch.device) -> tuple[Tensor, ...]:
    """In one copy. Each begins at a multiple of 16 bytes: Triton compiles anew for a pointer that does
    not."""
    step = _ALIGNMENT // tables[0].itemsize
    sizes = [-(-table.size // step) * step for table in tables]
    padded = [
        np.pad(table.ravel(), (0, size - table.size)) for table, size in zip(tables, sizes, strict=True)
    ]
    packed = torch.from_numpy(np.concatenate(padded))
    return torch.split(
        packed.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else packed, sizes
    )
