"""Recognises that memory ran out. torch has a type for it where a GPU's own allocator says so; on a CPU, and
where a library of the GPU's asks for memory, it says so by text alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SAID = ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


@contextmanager
def told_alike() -> Iterator[None]:
    """Inside, memory that runs out is a ``torch.OutOfMemoryError``, whoever says so."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, torch.OutOfMemoryError) or not is_out_of_memory(error):
            raise
        raise torch.OutOfMemoryError(str(error)) from error
