"""Trains the auxiliary model of ``cacheclip``: its scores learn which windows of a context are worth
computing anew for a question.

What they are worth is measured (``labels``): a branch per window, and per pair of windows, recomputes only it
over the stored context and is forced through the reference's answer (``counterfactual``); the gain is what
the answer's log-probability rises by. The other target is what the primary itself attends to, as CacheClip
has it. The auxiliary's scores are those that the selector serves, with gradients (``scores``). ``ceiling``
chooses by true gain, and ``judge`` compares all choices, question by question. Start reading at ``contexts``
and ``labels``, then ``trainee``.
"""
