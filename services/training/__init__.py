"""Training: makes the demo model and the demo documents.

Owns the invented worlds (`worlds.yaml`), documents written from them, the tokenizer, the training loop and
the evaluation of what it learned in the exact form in which the generator serves it. Does not know services,
storage or RPC: it ends with a directory that stock ``transformers`` loads.

Start reading at `corpus` (a document and its facts), then `contexts` (passages and questions), `rows` (what a
model is trained on), `recipe` and `trainer`; `demo`, `demo_documents` and `evaluate` are the commands.
"""
