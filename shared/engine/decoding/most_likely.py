"""Finds the most likely token of each row of logits, and the logarithm of the sum of the row's exponentials,
which makes log-probabilities of logits. Shapes: B rows, V vocabulary."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_int, c_int64, c_void_p

import torch
from torch import Tensor

from shared.engine.compiled import compiled_library

LIBRARY = "shared.engine._kernels"


def most_likely(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ids [B], of equally likely tokens the first, and log Σ exp(logit) [B]. ``logits_BV``: float32,
    on a CPU."""
    loaded = library()
    if loaded is None:
        return logits_BV.argmax(-1), logits_BV.logsumexp(-1)
    logits_BV = logits_BV.contiguous()
    ids_B = torch.empty(len(logits_BV), dtype=torch.int64)
    log_sums_B = torch.empty(len(logits_BV))
    pointers = logits_BV.data_ptr(), *logits_BV.shape, ids_B.data_ptr(), log_sums_B.data_ptr()
    loaded.kvquilt_most_likely(*pointers, torch.get_num_threads())
    return ids_B, log_sums_B


@functools.cache
def library() -> ctypes.CDLL | None:
    """None: see ``compiled_library``, or the processor has no AVX-512, and torch serves."""
    loaded = compiled_library(LIBRARY, lambda found: hasattr(found, "kvquilt_most_likely"))
    if loaded is None or not loaded.kvquilt_knows_logits():
        return None
    loaded.kvquilt_most_likely.restype = None
    loaded.kvquilt_most_likely.argtypes = (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int)
    return loaded
