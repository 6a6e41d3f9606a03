"""Measures what it saves that KV of earlier turns is kept: `python -m load_tests.conversations`."""
