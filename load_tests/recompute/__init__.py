"""What CacheClip costs and saves on this machine, selection included, in one run: ``python -m
load_tests.recompute --help``.

``text`` makes text that two tokenizers read, ``limits`` says what no machine with these rates can beat,
``clipping`` is the auxiliary model's part, ``serving`` the primary's. Start reading at ``measuring``, which
asks them in turn.
"""
