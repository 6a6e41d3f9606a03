"""Compares ways of choosing a replica for a question: ``python -m load_tests.routing``."""
