"""Stand-in until ``shared.kv_format`` reads frames from the end of a file."""

from __future__ import annotations

import io

import pyarrow as pa

from shared.errors import CorruptData, FailedPrecondition
from shared.kv_format import ChunkSummary
from shared.kv_format.header import from_metadata
from shared.kv_format.layout import CLOSING_BYTES, SEAL_BYTES, footer_len, layout_of

TAIL_GUESS_BYTES = 64 << 10


class NewerFormat(FailedPrecondition):
    pass


class ShortTail(Exception):
    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes of the end are needed")
        self.needed_bytes = needed_bytes


def summary_of_tail(tail: bytes, size_bytes: int) -> ChunkSummary:
    try:
        length = footer_len(tail[-CLOSING_BYTES:])
        if len(tail) < min(length + SEAL_BYTES, size_bytes):
            raise ShortTail(length + SEAL_BYTES)
        layout = layout_of(tail[len(tail) - length - SEAL_BYTES : len(tail) - length], size_bytes - length)
        file = io.BytesIO(b"ARROW1\0\0" + tail)
        header, _ = from_metadata(pa.ipc.open_file(file).schema.metadata)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise CorruptData(f"not a chunk: {error}") from None
    return ChunkSummary(header, size_bytes, layout.layers())
