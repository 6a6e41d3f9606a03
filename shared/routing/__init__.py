"""Chooses the replica that answers a question soonest, by what its chunks cost there: plain values and
arithmetic, without torch, Ray or clocks.

``costs`` is what an answer costs at one replica, in milliseconds. ``reports`` is what holders of KV tell,
which ``journal`` keeps for them; ``residency`` what a router knows of them by that, ``recent`` what it knows
by its own decisions. ``homes`` says where chunks go that nobody holds. ``router`` ranks replicas by all of
it; ``decision`` says why.
"""
