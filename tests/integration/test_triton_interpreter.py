"""Runs the tests of ``tests/interpreter`` in processes where Triton interprets its kernels, on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.name for path in (ROOT / "tests" / "interpreter").glob("test_*.py"))


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed; there is none but for Linux"
)
@pytest.mark.parametrize("module", MODULES)
def test_the_triton_kernels_pass_their_tests_in_the_interpreter(module: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/interpreter/{module}"]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    print(result.stdout[-10_000:], result.stderr[-2000:])
    assert result.returncode == 0, result.stdout[-2000:]
    assert " passed" in result.stdout
