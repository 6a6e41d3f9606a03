"""Fuzzes for as long as it is told: `python -m tests.fuzz --seconds 3600 --seed 7`; `make fuzz`."""

from __future__ import annotations

import argparse
import secrets
import sys

from tests.fuzz.rounds import fuzz_files


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="of an earlier run")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    findings = fuzz_files(asked.seconds, asked.seed)
    print(f"{findings.rounds} rounds")
    for what, times in sorted(findings.told.items()):
        print(f"  {times:7d} {what}")
    for what in findings.wrong:
        print(f"WRONG: {what}")
    sys.exit(bool(findings.wrong))


if __name__ == "__main__":
    main()
