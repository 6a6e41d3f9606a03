"""One file per chunk: its KV as a sealed Apache Arrow IPC file, readable layer by layer without a memory map.

    ┌ ARROW1 ┬ schema message ┬ layer 0 ─────────────┬ … ┬ layer L-1 ┬ end ┬ seal ┬ footer ┬ ARROW1 ┐
    │        │ header (JSON)  │ message │ K ░ │ V ░  │   │           │     │      │        │        │
    └────────┴── head ────────┴─────────┴── body ────┴───┴───────────┴──── tail ─────────────────────┘

- One record batch per layer, one row per KV head; columns ``k`` and ``v`` are fixed-size binaries of [tokens, head_dim] values.
  K and V of a layer are therefore each one contiguous [kv_heads, tokens, head_dim] run, padded (░) to 8 bytes.
- The schema's metadata holds the header (identity, model fingerprint, RoPE, shapes, token ids) and XXH3-64 of every layer's K
  then V.
- The seal lies between Arrow's end-of-stream marker and its footer, a place that Arrow readers skip because the footer is found
  from the end of the file. It names the layout and carries XXH3-64 of everything that is not K or V: head, messages, itself,
  footer. So no single byte of a file can change unseen, and nothing is parsed before it is verified.

``ChunkFile.open`` verifies all but the bodies; ``read_layer`` fills the caller's buffers with one ``preadv`` and verifies them.
Start reading at ``header``, then ``layout``, ``writer``, ``reader``.
"""

from shared.kv_format.header import ChunkHeader
from shared.kv_format.reader import ChunkFile, ChunkSummary, inspect_chunk, verify_chunk
from shared.kv_format.writer import storage_error, write_chunk

__all__ = ["ChunkFile", "ChunkHeader", "ChunkSummary", "inspect_chunk", "storage_error", "verify_chunk", "write_chunk"]
