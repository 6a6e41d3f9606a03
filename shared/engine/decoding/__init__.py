"""Branches and forests: how answers grow."""
