"""The selector: an auxiliary model on the CPU that says which tokens of a context are worth recomputing.

It owns the auxiliary model, what of its chunk KV is resident, and the order in which requests get at the
model. It knows nothing of documents or of the primary model beyond its tokenizer: chunks arrive as text with
the primary's token ids. How tokens are chosen is ``shared.selection``; how KV comes from the store and goes
there is ``shared.stored_segments``. Start reading at ``service``: a request's way from texts to tokens;
below it ``chains`` (what a chunk's KV stands behind), ``auxiliary_kv`` (that KV: resident, else stored, else
computed) and ``worker_thread`` (who gets at the model next).
"""
