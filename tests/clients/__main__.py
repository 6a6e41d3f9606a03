"""Starts a stack with the demo's tiny model and documents, runs the examples of docs/clients.md against it,
and stops it: ``python -m tests.clients build/clients/bin/python``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from cluster.local import launcher
from cluster.paths import DEMO_ASSETS, PROJECT_ROOT
from tests.e2e import stack as stacks


def main(clients_python: str) -> int:
    """Returns the exit status of the examples."""
    with tempfile.TemporaryDirectory() as folder:
        running = stacks.start(Path(folder) / "data", ingestion={"chunk_tokens": 96})
        try:
            towns = DEMO_ASSETS / "documents" / "towns"
            ingested = running.cli("ingest", str(towns), "-c", "demo")
            assert ingested.returncode == 0, ingested.stdout + ingested.stderr
            examples, page = PROJECT_ROOT / "tests/clients/examples.py", PROJECT_ROOT / "docs/clients.md"
            command = [clients_python, str(examples), str(page), running.state.http]
            return subprocess.run(command, check=False, timeout=300).returncode
        finally:
            launcher.stop(running.data_dir)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
