"""Trains soft-token packets by self-distillation (KV Packet, arXiv 2604.13226): vectors in front of and
behind every chunk that make isolated chunks read like a text. The model stays as it is; chunks are stored
with them.

Its teacher and its lessons are those of ``services.training.distillation``; gradients run through question,
answer and chunks. Start reading at ``trainee``, which ``services.training.loop`` trains.
"""
