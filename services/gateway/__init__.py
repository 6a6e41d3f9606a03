"""The front door: a question in, a cited answer out.

Owns the RAG pipeline (retrieve, then generate over the retrieved chunks), the fusion of several questions'
rankings, citations, ratings, the comparison of answers with the reference's, files and vector stores
(``kept``), and the state of the whole system. Knows nothing of indexes, KV files or models: it asks
``retrieval`` and ``generator`` through ``ports``. Computes nothing, so torch stays
out of its process. Start reading at ``pipeline``.
"""
