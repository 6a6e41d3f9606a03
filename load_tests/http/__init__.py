"""Measures what HTTP costs beside gRPC: ``python -m load_tests.http``."""
