"""Keeps the store whole and small: scrubbing, repair, garbage collection."""
