"""Runs the local stack: one supervisor process per data directory, started and stopped by commands."""
