"""Measures what int8 weights cost in quality."""
