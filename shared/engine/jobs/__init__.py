"""What the engine keeps of a request while it is alive: its branches, its place in the pool, its clock.

``job`` is what the loop asks of every request, ``context`` one over a context, ``answers`` one of questions,
``forest`` a live forest, ``prefill`` one that fills the store.
"""
