"""Starts a stack with the demo's tiny model, brings a few documents in, has ``flows`` look at the console in
a browser, and stops the stack: ``python -m tests.console build/console/bin/python docs/console``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from cluster.local import launcher
from cluster.paths import DEMO_ASSETS, PROJECT_ROOT
from tests.e2e import stack as stacks

COLLECTION = "towns"


def main(browser_python: str, out: str) -> int:
    """Returns the exit status of ``flows``."""
    with tempfile.TemporaryDirectory() as folder:
        running = stacks.start(Path(folder) / "data", ingestion={"chunk_tokens": 96})
        try:
            towns = DEMO_ASSETS / "documents" / "towns"
            ingested = running.cli("ingest", str(towns), "-c", COLLECTION)
            assert ingested.returncode == 0, ingested.stdout + ingested.stderr
            command = [browser_python, str(PROJECT_ROOT / "tests/console/flows.py"), running.state.http, out]
            return subprocess.run(command, check=False, timeout=500).returncode
        finally:
            launcher.stop(running.data_dir)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
