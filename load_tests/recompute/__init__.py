"""What CacheClip costs and saves on this machine, selection included, in one run: ``python -m
load_tests.recompute --help``.

``text`` makes text that two tokenizers read, ``limits`` says what no machine with these rates can beat,
``clipper`` is the auxiliary model's part, ``primary`` the primary's. Start reading at ``measurements``, which
asks them in turn.
"""
