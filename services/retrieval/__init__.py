"""Finds the chunks that may answer a question.

Owns the embedder and the index over chunks (Milvus: embedded, or a server). Knows nothing of models, KV or
files: the index can be rebuilt from the manifests in kv_store at any time, and what it returns (text, token
ids, fingerprint) is what was put in.

Start reading at ``service.py`` (search, index, unindex), then ``index.py`` (Milvus), ``filters.py`` and
``embedder.py``.
"""
