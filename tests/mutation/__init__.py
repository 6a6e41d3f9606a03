"""Mutants of decisions, each against the nearest tests."""
