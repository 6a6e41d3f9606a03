"""Runs ``tests/interpreter`` in a process where Triton interprets its kernels, on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)  # it is a suite of its own
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed; there is none but for Linux"
)
def test_the_triton_kernels_pass_their_tests_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/interpreter"]
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
