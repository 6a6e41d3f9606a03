"""Finds the libraries of C kernels that are compiled when the package is built."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


def compiled_library(name: str, fits: Callable[[ctypes.CDLL], bool]) -> ctypes.CDLL | None:
    """``name``: of its module. None: this installation has none, or one that was compiled from other sources,
    which ``fits`` says."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return None
    loaded = ctypes.CDLL(found.origin)
    if not fits(loaded):
        log.warning("%s was compiled from other sources; reinstall kvquilt to use its kernels", found.origin)
        return None
    return loaded
