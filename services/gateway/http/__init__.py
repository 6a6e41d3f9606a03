"""The gateway over HTTP, as OpenAI's clients speak it: ``/v1/chat/completions``,
``/v1/completions``, ``/v1/embeddings``, ``/v1/files``, ``/v1/vector_stores`` and ``/v1/models``.

Knows the pipeline only by its ``answer``: a request becomes an ``Inquiry``, its events a completion or chunks
of one. What is no question comes in through ``door``, as the RPCs do that do the same.
What is not supported is refused by name. Start reading at ``routes``; docs/http.md is for callers.
"""
