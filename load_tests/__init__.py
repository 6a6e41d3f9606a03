"""Benchmarks, run from a checkout: ``python -m load_tests.NAME``. They are not installed."""

from shared.openmp import spin_briefly

spin_briefly()
