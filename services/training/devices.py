"""Prepares a process for training on its device."""

from __future__ import annotations

import os

import torch


def prepare_device(device: torch.device, repeatable: bool = True) -> None:
    """On a GPU, before anything is computed there: sums are added in an order that is always the same
    (``repeatable``), and attention is not cuDNN's, which prepares anew for every shape of a batch."""
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for that
    torch.use_deterministic_algorithms(repeatable, warn_only=False)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_cudnn_sdp(False)
