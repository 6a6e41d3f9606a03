"""Trains a request-side adapter: LoRA on private rows that makes up for what reading stored chunks costs, by
self-distillation, or that says what labelled answers say. Stored KV and ``full`` stay bitwise what they are.

Its teacher and its lessons are those of ``services.training.distillation``; a labelled answer is the lesson
of a teacher who is certain. Gradients run through question and answer alone. Start reading at ``trainee``,
which ``services.training.loop`` trains.
"""
