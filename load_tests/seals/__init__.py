"""Measures what seals cost first tokens over KV on disk: `python -m load_tests.seals`."""
