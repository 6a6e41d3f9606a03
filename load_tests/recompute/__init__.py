"""Measures what CacheClip costs and saves on this machine, selection included, in one run: ``python -m
load_tests.recompute --help``.

``text`` makes text that two tokenizers read, ``limits`` counts what no machine can leave out,
``clipper`` is the auxiliary model's part, ``primary`` the primary's. Start reading at ``measurements``, which
asks them in turn.
"""
