"""Brings documents in: parse, chunk, prefill, store, index.

Owns the formats, the chunker and the order of steps in which a chunk becomes retrievable only when its KV is
durable. Knows nothing of models beyond the tokenizer, and keeps no state: manifests in kv_store are the
truth, so an interrupted run is simply run again.

Start reading at ``upsert.py`` (the steps of one document; ``auxiliary.py``: the one for the selector), then
``run.py`` (many documents), ``upkeep.py`` (index and KV of stored documents made whole), ``parsing/`` (the
processes that read documents), ``formats/`` and ``chunker.py``.
"""
