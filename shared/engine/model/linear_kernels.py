"""Calls the C kernels of ``linear_kernels.c``: products of rows with packed weights, and norms, on a CPU.

Shapes: O outputs, I inputs, R rows.
"""

from __future__ import annotations

import ctypes
import enum
import functools
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from shared.engine.compiled import compiled_library

LIBRARY = "shared.engine._kernels"
UNIT = 32  # outputs, as in linear_kernels.c
LEVELS = {1: "AVX2", 2: "AVX-512 with bfloat16 and byte permutations", 3: "AMX with bfloat16"}


class ProductKind(enum.IntEnum):
    """Of rows and weights, as in linear_kernels.c."""

    SINGLES_INT8 = 0
    PAIRS_INT8 = 1
    PAIRS_BFLOAT16 = 2


class _Product(ctypes.Structure):
    """``Product`` of linear_kernels.c."""

    _fields_ = (
        ("x", c_void_p),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("num_rows", c_int64),
        ("num_in", c_int64),
        ("num_out", c_int64),
        ("num_threads", c_int32),
        ("gated", c_int32),
        ("added_to", c_void_p),
        ("more", c_void_p),
        ("adapter_of", c_void_p),
        ("adapters", c_uint64),
    )


class _Weights(ctypes.Structure):
    """``Weights`` of linear_kernels.c."""

    _fields_ = (
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("out", c_void_p),
        ("num_in", c_int64),
        ("first", c_int64),
        ("units", c_int64),
        ("num_threads", c_int32),
    )


class _Norm(ctypes.Structure):
    """``Norm`` of linear_kernels.c."""

    _fields_ = (
        ("x", c_void_p),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("num_rows", c_int64),
        ("stride", c_int64),
        ("width", c_int64),
        ("eps", c_float),
        ("num_parts", c_int32),
        ("num_threads", c_int32),
        ("level", c_int32),
    )


class NativeStage(ctypes.Structure):
    """``Stage`` of linear_kernels.h: a norm (of ``num_parts`` of each row) or a product, and where among a
    call's rows those are that it reads, adds to (-1: none) and writes. ``adapter``: number of the one whose
    rows it is for; 0: of all. ``more``: where that lies which ``adapters`` (bit n: number n) add to its
    sums."""

    _fields_ = (
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("num_in", c_int64),
        ("num_out", c_int64),
        ("eps", c_float),
        ("gated", c_int32),
        ("x", c_int32),
        ("added_to", c_int32),
        ("out", c_int32),
        ("first_part", c_int32),
        ("num_parts", c_int32),
        ("adapter", c_int32),
        ("more", c_int32),
        ("adapters", c_uint64),
    )


class _Layer(ctypes.Structure):
    """``Layer`` of linear_kernels.h."""

    _fields_ = (
        ("in_front", POINTER(NativeStage)),
        ("behind", POINTER(NativeStage)),
        ("num_in_front", c_int32),
        ("num_behind", c_int32),
        ("number", c_int32),
        ("scale", c_float),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """None: see ``compiled_library``."""
    loaded = compiled_library(LIBRARY, fits)
    if loaded is None:
        return None
    loaded.kvquilt_linear_level.restype = c_int
    loaded.kvquilt_linear_level()  # asks for the matrix units: without, level 3 is no legal instruction
    loaded.kvquilt_linear_product.restype = loaded.kvquilt_linear_weights.restype = None
    loaded.kvquilt_linear_norm.restype, loaded.kvquilt_linear_norm.argtypes = None, (POINTER(_Norm),)
    loaded.kvquilt_linear_product.argtypes = (c_int, c_int, POINTER(_Product))
    loaded.kvquilt_linear_weights.argtypes = (c_int, c_int, POINTER(_Weights))
    stages, rows, layers = POINTER(NativeStage), POINTER(c_void_p), POINTER(_Layer)
    loaded.kvquilt_linear_stages.restype = loaded.kvquilt_layers.restype = None
    loaded.kvquilt_linear_stages.argtypes = (c_int, stages, c_int, rows, c_int64, c_int, c_char_p)
    loaded.kvquilt_layers.argtypes = (c_int, c_int, layers, c_int, c_void_p, rows, c_char_p)
    return loaded


def fits(loaded: ctypes.CDLL) -> bool:
    """Its structures and levels are those above."""
    sizes = getattr(loaded, "kvquilt_linear_sizes", None)
    if sizes is None:
        return False
    sizes.restype = c_int64
    layer, *ours = (ctypes.sizeof(one) for one in (_Layer, _Product, _Weights, _Norm, NativeStage))
    told = 1_000_000 * ours[0] + 10_000 * ours[1] + 100 * ours[2] + ours[3]
    return bool(sizes() == 10_000_000_000 * layer + 100_000_000 * (1 + len(LEVELS)) + told)


def best_level() -> int:
    """Of ``LEVELS``, what this processor runs; 0: nothing, or there is no library."""
    found = library()
    return 0 if found is None else int(found.kvquilt_linear_level())


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight · x / RMS(x) over the last dimension, in bfloat16."""
    loaded, x = library(), x.contiguous()
    assert loaded is not None
    out, width = torch.empty_like(x), x.shape[-1]
    norm = _Norm(
        x.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        x.numel() // width,
        width,
        width,
        eps,
        1,
        torch.get_num_threads(),
        best_level(),
    )
    loaded.kvquilt_linear_norm(norm)
    return out


class Stages:
    """Norms and products of the same rows, each of what others before it wrote, in one native call."""

    def __init__(self, *stages: NativeStage) -> None:
        loaded = library()
        assert loaded is not None
        self._run, self._level = loaded.kvquilt_linear_stages, best_level()
        self.stages = (NativeStage * len(stages))(*stages)

    def run(self, *places: Tensor, adapter_of: bytes | None = None) -> None:
        """
        places: the rows that stages name: [R, width], bfloat16, contiguous.
        adapter_of: number of each row's adapter, 0 for none, where stages have to do with adapters.
        """
        if num_rows := len(places[0]):
            pointers = (c_void_p * len(places))(*[rows.data_ptr() for rows in places])
            threads = torch.get_num_threads()
            self._run(self._level, self.stages, len(self.stages), pointers, num_rows, threads, adapter_of)


class LayerStages(NamedTuple):
    """What stands in front of a layer's attention and behind it. ``number``, ``scale``: its own, and by what
    attention multiplies scores, to base 2."""

    in_front: Stages
    behind: Stages
    number: int
    scale: float


class Layers:
    """Decoder layers one behind the other in one native call, attention included (layers.c)."""

    def __init__(self, layers: Sequence[LayerStages]) -> None:
        loaded = library()
        assert loaded is not None
        self._run, self._level = loaded.kvquilt_layers, best_level()
        self._stages = layers  # which the structures point to
        self._layers = (_Layer * len(layers))(
            *(
                _Layer(front.stages, behind.stages, len(front.stages), len(behind.stages), number, scale)
                for front, behind, number, scale in layers
            )
        )

    def run(
        self, attention_level: int, step: ctypes.Structure, places: Sequence[Tensor], adapter_of: bytes
    ) -> None:
        """``attention_level``, ``step``: of the kernels of attention; ``places``: as those of ``Stages``, the
        first ones in the order of layers.c."""
        pointers = (c_void_p * len(places))(*[rows.data_ptr() for rows in places])
        layers, address = self._layers, ctypes.addressof(step)
        self._run(self._level, attention_level, layers, len(layers), address, pointers, adapter_of)


class LinearKernels:
    """``level``: of ``LEVELS``, None for the best one here."""

    def __init__(self, kind: ProductKind, level: int | None = None) -> None:
        loaded = library()
        assert loaded is not None
        self._library, self._kind = loaded, kind
        self._level = best_level() if level is None else level

    def product(
        self,
        x_RI: Tensor,
        weight: Tensor,
        bias: Tensor,
        num_out: int,
        scale: Tensor | None = None,
        gated: bool = False,
    ) -> Tensor:
        """[R, O] in the type of ``x_RI``, which has as many inputs as the packed weight. ``bias``, ``scale``:
        in float32, of whole units."""
        x_RI = x_RI.contiguous()
        num_rows, num_in = x_RI.shape
        out_RO = torch.empty(num_rows, num_out, dtype=x_RI.dtype)
        if num_rows:
            product = _Product(
                x_RI.data_ptr(),
                weight.data_ptr(),
                None if scale is None else scale.data_ptr(),
                bias.data_ptr(),
                out_RO.data_ptr(),
                num_rows,
                num_in,
                num_out,
                torch.get_num_threads(),
                gated,
            )
            self._library.kvquilt_linear_product(self._level, self._kind, product)
        return out_RO

    def numbers(self, weight: Tensor, scale: Tensor, first: int, out_IO: Tensor) -> None:
        """Returns the numbers that int8 weights stand for, from unit ``first`` on: as many as ``out_IO`` has
        outputs."""
        num_in, num_columns = out_IO.shape
        weights = _Weights(
            weight.data_ptr(),
            scale.data_ptr(),
            out_IO.data_ptr(),
            num_in,
            first,
            num_columns // UNIT,
            torch.get_num_threads(),
        )
        self._library.kvquilt_linear_weights(self._level, self._kind, weights)
