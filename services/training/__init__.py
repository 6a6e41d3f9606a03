"""Training: makes adapters and packets for models over stored KV, fine-tunes models, tunes auxiliary ones,
makes the demo model and the demo documents.

Owns the differentiable twin of the engine's step (`twin`), the training loop (`loop`), what it trains
(`adapter`, `packets`, `auxiliary`, `sft`), the invented worlds (`worlds.yaml`), documents written from
them, the tokenizer, the demo model's own loop and the evaluation of what that learned in the exact form in
which the generator serves it. Does not know services, storage or RPC: it ends with a directory that stock
``transformers`` loads, or one that PEFT does.

Start reading at `twin` (what trains is what serves), `loop` and `adapter`; for the demo model at `corpus`
(a document and its facts), then `contexts` (passages and questions), `rows` (what a model is trained on),
`recipe` and `trainer`; `demo`, `demo_documents` and `evaluate` are the commands.
"""
