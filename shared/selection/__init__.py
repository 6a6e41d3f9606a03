"""Selects the tokens of a context that a small auxiliary model would have recomputed, as a plain library
(torch, transformers, tokenizers).

Read ``scoring`` (what the question attends to), ``grouping`` (which tokens that makes worth recomputing),
``spans`` and ``mapping`` (how a choice among the auxiliary's tokens becomes one among the primary's), then
``selector``, which joins them.
"""
