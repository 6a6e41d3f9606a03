"""Starts a stack with the demo's tiny model and documents, has Schemathesis call whatever `/openapi.json`
says may be called, right and wrong, and stops it: ``python -m tests.openapi build/tools/openapi/bin/python``.

Nothing may end as an error of the server, every answer must be one that the document names, and what does not
fit the document must be refused."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from cluster.paths import PROJECT_ROOT
from tests.e2e import stack as stacks

CONFIG = PROJECT_ROOT / "tests/openapi/schemathesis.toml"


def main() -> int:
    """Returns the exit status of Schemathesis."""
    parser = argparse.ArgumentParser(prog="python -m tests.openapi", description=__doc__)
    parser.add_argument("python", help="of an environment with Schemathesis")
    parser.add_argument("--examples", type=int, default=25, help="calls per endpoint and phase")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with stacks.with_towns("demo") as running:
        asked = command(args.python, running.state.http, args.examples, args.seed)
        return subprocess.run(asked, cwd=running.data_dir.parent, check=False, timeout=1800).returncode


def command(python: str, address: str, examples: int, seed: int) -> list[str]:
    return [
        str(Path(python).absolute()),
        *("-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", f"{address}/openapi.json"),
        *("--phases", "coverage,fuzzing", "--max-examples", str(examples), "--seed", str(seed)),
        "--continue-on-failure",
    ]


if __name__ == "__main__":
    sys.exit(main())
