"""Starts a stack with the demo's tiny model, brings a few documents in, has ``flows`` look at the console in
a browser, and stops the stack: ``python -m tests.console build/tools/console/bin/python docs/console``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster.paths import PROJECT_ROOT
from tests.e2e import stack as stacks

COLLECTION = "towns"


def main(browser_python: str, out: str) -> int:
    """Returns the exit status of ``flows``."""
    with stacks.with_towns(COLLECTION) as running:
        command = [browser_python, "-m", "tests.console.flows", running.state.http, str(Path(out).absolute())]
        return subprocess.run(command, cwd=PROJECT_ROOT, check=False, timeout=500).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
