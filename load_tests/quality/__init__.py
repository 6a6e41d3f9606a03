"""Measures what reuse costs in right answers, and how much of that each way of recomputing wins back:
``python -m load_tests.quality``. The measuring is ``cluster.gate``, by which `kvquilt gate` judges models;
this is its door with all the knobs.
"""
