"""Compares the engine with stock ``transformers``, on this machine, in one run: ``python -m load_tests.engine
--help``.

``workers`` keeps each of the two in a process of its own, so that peak memory is its own; ``stock`` and
``ours`` are what they do; ``compare`` asks them in turn; ``sharing`` measures what one resident copy for many
requests buys; ``ceilings`` what the kernels of a step reach alone. Start reading at ``compare``.
"""
