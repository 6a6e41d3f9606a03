"""OpenMP reads how long its threads spin when torch loads it: services say it before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRINTED = "import {package}, os, sys; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"


@pytest.mark.parametrize("package", ["services.generator", "services.selector", "load_tests.engine"])
@pytest.mark.parametrize(("given", "read"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")], ids=str)
def test_it_is_said_before_torch_is_imported(package: str, given: dict[str, str], read: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"} | given
    command = [sys.executable, "-c", PRINTED.format(package=package)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.split() == [read, "False"]
