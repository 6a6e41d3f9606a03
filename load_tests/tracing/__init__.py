"""Measures what tracing costs an answer: ``python -m load_tests.tracing``."""
