"""Fine-tunes a model on labelled answers, over chunks placed as they are served (TurboRAG, arXiv 2410.07590,
section 3.3), or as plain text under ``full``, which makes its "naive" twin.

Every example goes through the twin of the engine's step: its chunks are computed behind the prefix (and their
chains), rotated to their places, and gradients run through everything, chunks included. What comes of it is a
model of its own (``SftRecipe.model``): its fingerprint differs, so collections are ingested again. A LoRA is
merged into the weights at every update, so what is trained is what is written. Start reading at ``recipe``.
"""
