"""Measures what lossy encodings of stored KV cost and save: ``python -m load_tests.encodings``."""
