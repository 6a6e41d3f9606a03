"""The generator: one model, served by the engine.

It owns the model, what of the chunk KV is resident, and the batch of running requests. It knows nothing of
documents, retrieval or where KV files come from: chunks arrive as token ids (or text), KV through the
kv_store's client, and what is not stored is computed. Start reading at ``service``: a request's way from
pieces to events; below it ``prompts`` (pieces to ids), ``reuse_modes`` (which mode it really runs in),
``selection`` (the selector, and what to do without it), ``chunk_texts`` (where in a text tokens are),
``events`` (what callers are told beyond the engine's events), ``margins`` (notes on the chunks before an
answer), ``messages`` (protos to values and back) and ``engine_thread`` (asyncio to the engine and back).
Which replica a question goes to is ``routing`` (Ray's side) and ``replica_choice``, by what ``telling`` tells
and ``listening`` hears. The store's KV comes and goes by ``shared.stored_segments``.
"""
