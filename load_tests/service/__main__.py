"""Runs the load test: ``python -m load_tests.service``."""

from __future__ import annotations

import sys

from load_tests.service.command import main

if __name__ == "__main__":
    sys.exit(main())
