"""Runs the kernels for matrix units (AMX) on a processor without them, compiled with tiles in plain C
(``emulated_tiles.h``): the same sources, and the same bits."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shared.engine.backends import native
from shared.engine.model import linear_kernels

ENGINE = Path(native.__file__).parents[1]
SOURCES = ("threads.c", "backends/native.c", "model/linear_kernels.c", "model/layers.c")
AVX512, AMX = 2, 3
HERE = linear_kernels.best_level()
EMULATED = HERE == AVX512 and shutil.which("gcc") is not None
TESTED = range(1, (AMX if EMULATED else HERE) + 1)
"""Levels of kernels that tests can run on this processor."""
_OPTIONS = ("-shared", "-fPIC", "-O1", "-pthread")
_keepers: list[tempfile.TemporaryDirectory[str]] = []


@contextmanager
def kernels_of(level: int) -> Iterator[None]:
    """The library in which that level runs, of those in ``TESTED``."""
    if not (level == AMX and EMULATED):
        yield
        return
    with pytest.MonkeyPatch.context() as patches:
        folder, name = _compiled()
        patches.syspath_prepend(str(folder))
        for of in (native, linear_kernels):
            patches.setattr(of, "LIBRARY", name)
            patches.setattr(of, "library", functools.cache(of.library.__wrapped__))
        yield


@functools.cache
def _compiled() -> tuple[Path, str]:
    """A folder, and the name of the module in it. The folder is deleted when the process ends."""
    keeper = tempfile.TemporaryDirectory(prefix="kvquilt-emulated-")
    _keepers.append(keeper)
    folder, name = Path(keeper.name), "kvquilt_emulated_kernels"
    library = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    header = Path(__file__).with_suffix(".h")
    define = f'-DEMULATED_TILES="{header}"'
    subprocess.run(["gcc", *_OPTIONS, define, "-o", library, *SOURCES], cwd=ENGINE, check=True)
    return folder, name
