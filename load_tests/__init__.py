"""Benchmarks, run from a checkout: ``python -m load_tests.NAME``. They are not installed."""
