"""All segments of a step in one call per layer, on a CPU, by the C kernels of ``native.c``.

Tables, tiles and slots are those of the Triton backend (``backends.tables``). The library is compiled when
the package is built; where there was no compiler it is missing, and ``torch`` serves. Shapes: H query heads,
K kv heads, R rows, D head_dim.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.attention import Lane
from shared.engine.backends.decode_tables import DecodeTables
from shared.engine.backends.tables import LOG2_E, Tiling, plan_tables
from shared.engine.compiled import compiled_library
from shared.engine.model.spec import ModelSpec
from shared.errors import ConfigError

LIBRARY = "shared.engine._kernels"
LEVELS = {1: "AVX2", 2: "AVX-512 with bfloat16", 3: "AMX"}
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_MAX_HEAD_DIM = 512  # as in native.c


class _Step(ctypes.Structure):
    """``Step`` of native.c."""

    _fields_ = tuple(
        (name, kind)
        for kind, names in (
            (c_void_p, ("items", "pieces", "looks", "hidden", "first_slot", "own", "addresses")),
            (c_void_p, ("cos", "sin", "out", "lse", "workspace")),
            (c_int64, ("workspace_bytes",)),
            (c_int32, ("num_items", "num_rows", "num_layers", "num_heads", "num_kv_heads", "head_dim")),
            (c_int32, ("half", "split_len", "block_rows", "dtype", "num_threads", "passes_over")),
            (c_void_p, ("sharpness", "joint", "more")),
        )
        for name in names
    )


class _Rows(ctypes.Structure):
    """``Rows`` of native.c."""

    _fields_ = (("data", c_void_p), ("head", c_int64), ("row", c_int64))


@functools.cache
def library() -> ctypes.CDLL | None:
    """None: see ``compiled_library``."""
    loaded = compiled_library(LIBRARY, fits)
    if loaded is None:
        return None
    loaded.kvquilt_level.restype = c_int
    loaded.kvquilt_level()  # asks for the matrix units: without, level 3 is no legal instruction
    loaded.kvquilt_workspace_bytes.restype = c_int64
    loaded.kvquilt_workspace_bytes.argtypes = (c_int, c_int, c_int)
    loaded.kvquilt_run.restype = None
    loaded.kvquilt_run.argtypes = (c_int, POINTER(_Step), c_int, _Rows, _Rows, _Rows, c_void_p, c_float)
    return loaded


def fits(loaded: ctypes.CDLL) -> bool:
    """Its ``Step`` is the one above."""
    step_bytes = getattr(loaded, "kvquilt_step_bytes", None)
    return step_bytes is not None and step_bytes() == ctypes.sizeof(_Step)


def best_level() -> int:
    """Of ``LEVELS``, what this processor runs; 0: nothing, or there is no library."""
    found = library()
    return 0 if found is None else int(found.kvquilt_level())


class NativeBackend:
    """``tiling``: of every step, so that no row's bits depend on its company (``FIXED``); None chooses for
    each step. ``level``: of ``LEVELS``, None for the best one here."""

    def __init__(self, spec: ModelSpec, tiling: Tiling | None = None, level: int | None = None) -> None:
        """
        Raises:
            ConfigError: there is no library, or the processor or the model is not one that it knows.
        """
        loaded, self._level = library(), best_level() if level is None else level
        if loaded is None:
            raise ConfigError(
                "engine.backend: 'native' was not compiled with this installation; reinstall kvquilt "
                "where gcc is on PATH, "
                "or set the backend to 'torch'"
            )
        if not self._level or spec.device.type != "cpu":
            raise ConfigError("engine.backend: 'native' needs a CPU with AVX2; set the backend to 'auto'")
        if spec.head_dim % 2 or spec.head_dim > _MAX_HEAD_DIM:
            raise ConfigError(
                f"engine.backend: 'native' knows even head_dim up to {_MAX_HEAD_DIM}, not "
                f"{spec.head_dim}; set it to 'torch'"
            )
        self._library = loaded
        self._spec = spec
        self._rotation = spec.rotation()
        self._tiling = tiling
        self._workspace = torch.empty(0, dtype=torch.uint8)
        self._decoding: tuple[DecodeTables, NativeAttention] | None = None

    def plan(self, lanes: Sequence[Lane]) -> NativeAttention:
        num_threads = torch.get_num_threads()
        if self._decoding is not None:
            decoding, attention = self._decoding
            if attention.step.num_threads == num_threads and decoding.advance(lanes):
                return attention
        return self._plan(lanes, num_threads)

    def _plan(self, lanes: Sequence[Lane], num_threads: int) -> NativeAttention:
        spec = self._spec
        tables = plan_tables(lanes, spec, self._tiling, num_threads)
        tiling = tables.tiling
        tempering = tables.sharpness_N, tables.joint_R2, tables.more_R
        arrays = (
            tables.items_I4,
            tables.pieces_P3,
            tables.looks_N5,
            tables.hidden_N,
            tables.first_slot_R,
            tables.own_R3,
            tables.addresses,
        )
        tensors = (
            *self._rotation.table(tables.num_positions),
            torch.empty(tables.num_slots, spec.num_heads, spec.head_dim),
            torch.empty(tables.num_slots, spec.num_heads),
            self._room(tiling, num_threads),
        )
        step = _Step(
            *(array.ctypes.data for array in arrays),
            *(tensor.data_ptr() for tensor in tensors),
            self._workspace_bytes(tiling),
            len(tables.items_I4),
            len(tables.own_R3),
            spec.num_layers,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            len(spec.rope.inv_freq),
            tiling.split_len,
            tiling.block_rows,
            _DTYPES[spec.dtype],
            num_threads,
            self._tiling is None,
            *(array.ctypes.data for array in tempering),
        )
        decoding = DecodeTables.of(lanes, tables, most_positions=len(tensors[0]))
        kept = (tables if decoding is None else decoding.tables, tensors)
        attention = NativeAttention(self._library, self._level, step, kept)
        self._decoding = None if decoding is None else (decoding, attention)
        return attention

    def _workspace_bytes(self, tiling: Tiling) -> int:
        """Of one thread."""
        return int(self._library.kvquilt_workspace_bytes(self._level, tiling.block_rows, self._spec.head_dim))

    def _room(self, tiling: Tiling, num_threads: int) -> Tensor:
        """Workspaces of all threads; steps follow each other, so they can have the same."""
        num_bytes = num_threads * self._workspace_bytes(tiling)
        if len(self._workspace) < num_bytes:
            self._workspace = torch.empty(num_bytes, dtype=torch.uint8)
        return self._workspace


@dataclass(frozen=True, slots=True)
class NativeAttention:
    """Calls ``kvquilt_run`` on a step; ``points_to`` keeps alive what the step points to."""

    library: ctypes.CDLL
    level: int
    step: _Step
    points_to: object

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        q_HRD, k_KRD, v_KRD = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_HRD, k_KRD, v_KRD))
        merged_RHD = torch.empty(q_HRD.shape[1], q_HRD.shape[0], q_HRD.shape[2], dtype=q_HRD.dtype)
        rows = (_Rows(x.data_ptr(), *x.stride()[:2]) for x in (q_HRD, k_KRD, v_KRD))
        out, score_scale = merged_RHD.data_ptr(), to_base_2(scale)
        self.library.kvquilt_run(self.level, self.step, layer, *rows, out, score_scale)
        return merged_RHD.transpose(0, 1)


def to_base_2(scale: float) -> float:
    """By what the kernels multiply scores, which are logarithms to that base."""
    return scale * LOG2_E
