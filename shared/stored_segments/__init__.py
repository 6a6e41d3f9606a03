"""Segments in kv_store, for whoever computes with them: files are found, converted to tensors and back, and
handed over.

Read ``source`` (kv_store's answers to ``shared.engine.kv.source.SegmentSource``), then ``files`` (files to
tensors and back); ``forgetting`` lets go of what was deleted.
"""
