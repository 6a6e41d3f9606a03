"""Measures, and reports what was measured: sizes of models, the machine's limits, the report's one form, the
verdict."""
