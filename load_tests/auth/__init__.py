"""Measures what it costs to know who calls: `python -m load_tests.auth`."""
