"""Trains a request-side adapter by self-distillation: LoRA on private rows that makes up for what reading
stored chunks costs. Stored KV and ``full`` stay bitwise what they are.

The teacher is the model itself, which reads under ``full`` the whole blocks of the chunks that the pupil is
given (``teacher``); the pupil learns its distribution over its own greedy answers (``divergence``). What the
teacher says and the keys and values of chunks are computed once (``lessons``, ``kept``); gradients run
through question and answer alone. Start reading at ``trainer``.
"""
