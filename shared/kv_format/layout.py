"""Where the pieces of a chunk's file lie, and the seal that says so.

All layers have the same shape, so four numbers describe the file. ``body`` is K, padding, V, padding.

    0          head_len                                   tail
    │ head     │ message │ body │ message │ body │ …      │ end of stream │ seal │ footer │ its length │ ARROW1 │
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

ARROW_MAGIC = b"ARROW1"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
SEAL_MAGIC = b"KVQSEAL1"
_FIELDS = struct.Struct("<8sQQQQ")
_CHECKSUM = struct.Struct("<Q")
_FOOTER_LEN = struct.Struct("<i")
SEAL_BYTES = _FIELDS.size + _CHECKSUM.size
CLOSING_BYTES = _FOOTER_LEN.size + len(ARROW_MAGIC)


def padded(num_bytes: int) -> int:
    """Arrow pads every buffer to 8 bytes."""
    return -(-num_bytes // 8) * 8


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes in bytes."""

    head_len: int
    num_layers: int
    message_len: int
    body_len: int

    @property
    def layer_len(self) -> int:
        return self.message_len + self.body_len

    @property
    def tail_offset(self) -> int:
        return self.head_len + self.num_layers * self.layer_len

    def body_offset(self, layer: int) -> int:
        return self.head_len + layer * self.layer_len + self.message_len

    def layers(self) -> tuple[tuple[int, int], ...]:
        """(offset, length) of every layer's record batch: its message and its body."""
        return tuple((self.head_len + i * self.layer_len, self.layer_len) for i in range(self.num_layers))

    def messages(self) -> Iterator[tuple[int, int]]:
        """(offset, length) of every layer's message: what is neither head, body nor tail."""
        for offset, _ in self.layers():
            yield offset, self.message_len


def seal_of(layout: Layout, head: bytes, messages: bytes, footer: bytes) -> bytes:
    """``footer`` runs to the end of the file."""
    fields = _FIELDS.pack(SEAL_MAGIC, layout.head_len, layout.num_layers, layout.message_len, layout.body_len)
    checksum = xxhash.xxh3_64()
    for part in (fields, head, messages, footer):
        checksum.update(part)
    return fields + _CHECKSUM.pack(checksum.intdigest())


def footer_len(closing: bytes) -> int:
    """Length of Arrow's footer with its closing, from the last ``CLOSING_BYTES`` of a file.

    Raises:
        ValueError: no Arrow file ends like this.
    """
    (length,) = _FOOTER_LEN.unpack_from(closing)
    if not closing.endswith(ARROW_MAGIC) or length <= 0:
        raise ValueError("it does not end like an Arrow file; it may be truncated")
    return int(length) + CLOSING_BYTES


def layout_of(seal: bytes, footer_offset: int) -> Layout:
    """The layout that the seal in front of the footer names, if it accounts for every byte up to there.

    Raises:
        ValueError: there is no such seal.
    """
    magic, *sizes = _FIELDS.unpack_from(seal)
    layout = Layout(*sizes)
    if magic != SEAL_MAGIC or min(sizes) < 1 or layout.tail_offset + len(END_OF_STREAM) + SEAL_BYTES != footer_offset:
        raise ValueError("it is not sealed, or not of the length that its seal names")
    return layout
