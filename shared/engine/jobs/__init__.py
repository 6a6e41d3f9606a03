"""Requests while they are alive: their branches, their place in the pool, their clock, and what they do next.

``job`` is what the loop asks of every request, ``context`` one over a context, ``answers`` one of questions,
``forest`` a live forest, ``prefill`` one that fills the store.
"""
