"""Distils the model into itself: a pupil over stored chunks learns what the model says that reads more.

The teacher is the model itself, which reads under ``full`` the whole blocks of the chunks that the pupil is
given (``teacher``); the pupil learns its distribution over its own greedy answers (``Taught.divergence``).
What the teacher says and the keys and values of chunks are computed once (``lessons``, ``kept``). Recipes of
pupils: ``services.training.adapter``.
"""
