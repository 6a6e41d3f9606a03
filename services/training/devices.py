"""Prepares a process for training on its device."""

from __future__ import annotations

import os

import torch

_PREPARED = "64"  # oneDNN's own default is 1,024


def prepare_device(device: torch.device, repeatable: bool = True) -> None:
    """Before anything is computed there.

    On a GPU sums are added in an order that is always the same (``repeatable``), and attention is not
    cuDNN's, which prepares anew for every shape of a batch. On a CPU oneDNN keeps few of the products that it
    has prepared: every number of rows has its own, and updates hardly ever have the same.
    """
    if device.type != "cuda":
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _PREPARED)
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for that
    torch.use_deterministic_algorithms(repeatable)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_cudnn_sdp(False)
