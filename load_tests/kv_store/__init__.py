"""Measures how fast stored KV is opened, loaded and used: ``python -m load_tests.kv_store``."""
