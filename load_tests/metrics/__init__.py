"""Measures what counting costs: `python -m load_tests.metrics`."""
