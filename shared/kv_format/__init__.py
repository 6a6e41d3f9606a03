"""One file per chunk: its KV as a sealed Apache Arrow IPC file, readable layer by layer without a memory map.

    ┌ ARROW1 ┬ schema message ┬ layer 0 ─────────────────┬ … ┬ layer L-1 ┬ end ┬ seal ┬ footer ┬ ARROW1 ┐
    │        │ header (JSON)  │ message │ K ░ │ V ░ │ … ░│   │           │     │      │        │        │
    └────────┴── head ────────┴─────────┴── body ────────┴───┴───────────┴──── tail ─────────────────────┘

- One record batch per layer, one row per KV head; the columns are the buffers of the chunk's encoding
  (``shared.kv_buffers``):
  ``k`` and ``v`` where it is exact, ranges besides where it is not. Each is a fixed-size binary, so a buffer
  of a layer is one contiguous [kv_heads, …] run, padded (░) to 8 bytes.
- The schema's metadata holds the header (identity, model fingerprint, RoPE, shapes, encoding, token ids);
  Arrow's footer repeats it.
- The seal lies between Arrow's end-of-stream marker and its footer, a place that Arrow readers skip because
  the footer is found from the end of the file. It names the layout and holds XXH3-64 of every layer (message
  and body), of the head, and of itself with the footer. So no single byte of a file can change unseen,
  nothing is parsed before it is verified, and the tail alone says all that is needed to read layers of a file
  whose other parts are still arriving.

``ChunkFile.open`` verifies tail and head; ``read_layer`` fills the caller's buffers directly and verifies the
layer on the way.

Version 3 is version 2 with a MAC of the installation that stored it (``sealing``): files are written without
one, and the store seals what it takes over. Files of version 1 (exact only, one checksum for head and
messages) are refused as corrupt, so their chunks are computed again and replaced; files of later versions
raise ``NewerFormat`` and are left alone.

Start reading at ``header``, then ``layout``, ``writer``, ``frame``, ``reader``; ``progress`` is how far a
file has arrived, ``remote`` reads one that is elsewhere.
"""

from shared.kv_format.frame import (
    Array,
    ChunkSummary,
    Frame,
    read_frame,
    reading_frame,
)
from shared.kv_format.header import ChunkHeader
from shared.kv_format.layout import ShortTail
from shared.kv_format.progress import ProgressReader, ProgressWriter
from shared.kv_format.reader import ChunkFile, inspect_chunk, verify_chunk
from shared.kv_format.resealing import seal_chunk
from shared.kv_format.sealing import SealKey, SealKeys
from shared.kv_format.writer import storage_error, write_chunk

__all__ = [
    "Array",
    "ChunkFile",
    "ChunkHeader",
    "ChunkSummary",
    "Frame",
    "ProgressReader",
    "ProgressWriter",
    "SealKey",
    "SealKeys",
    "ShortTail",
    "inspect_chunk",
    "read_frame",
    "reading_frame",
    "seal_chunk",
    "storage_error",
    "verify_chunk",
    "write_chunk",
]
