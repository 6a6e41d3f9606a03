"""Trains a request-side adapter by self-distillation: LoRA on private rows that makes up for what reading
stored chunks costs. Stored KV and ``full`` stay bitwise what they are.

Its teacher and its lessons are those of ``services.training.distillation``; gradients run through question
and answer alone. Start reading at ``trainee``, which ``services.training.loop`` trains.
"""
