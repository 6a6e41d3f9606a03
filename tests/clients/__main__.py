"""Starts a stack with the demo's tiny model and documents, runs the examples of docs/clients.md against it,
and stops it: ``python -m tests.clients build/tools/clients/bin/python``."""

from __future__ import annotations

import subprocess
import sys

from cluster.paths import PROJECT_ROOT
from tests.e2e import stack as stacks


def main(clients_python: str) -> int:
    """Returns the exit status of the examples."""
    with stacks.with_towns("demo") as running:
        examples, page = PROJECT_ROOT / "tests/clients/examples.py", PROJECT_ROOT / "docs/clients.md"
        command = [clients_python, str(examples), str(page), running.state.http]
        return subprocess.run(command, check=False, timeout=300).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
