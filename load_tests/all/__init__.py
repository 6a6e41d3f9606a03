"""Runs every benchmark and writes one page of their figures: ``python -m load_tests.all``."""
