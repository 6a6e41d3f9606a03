"""Brings chunks to a node from where they are."""
