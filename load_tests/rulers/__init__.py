"""Lets other people's benchmarks measure the HTTP door, as they are: ``python -m load_tests.rulers``."""
