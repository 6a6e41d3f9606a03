"""The places of the pieces of a chunk's file, and the seal that says so.

All layers have the same shape, so four numbers describe the file. A body is the layer's buffers, each padded
to 8 bytes.

    0          head_len                                   tail
    │ head     │ message │ body │ message │ body │ …      │ end of stream │ seal │ footer │ its length │ ARROW1 │
                                                                          │      │
      ┌───────────────────────────────────────────────────────────────────┘      │
      │ XXH3-64 of each layer │ the four numbers │ XXH3-64 of the head │ XXH3-64 of the tail │ magic, version │

    version 3, sealed by an installation (``sealing``):

      │ XXH3-64 and then a tag of each layer │ the four numbers │ XXH3-64 of the head │ salt, key id, MAC │ XXH3-64 … │

The seal is read from its end, where every version of the format has its magic and number.
"""  # noqa: E501

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from shared.errors import NewerFormat

FORMAT_VERSION = 3
"""The newest that can be read: with a MAC."""
PLAIN_VERSION = 2
"""What is written before an installation seals it, and what files without a MAC have."""
ARROW_MAGIC = b"ARROW1"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_FOOTER_LEN = struct.Struct("<i")
CLOSING_BYTES = _FOOTER_LEN.size + len(ARROW_MAGIC)
# magic and version, followed by a check of both: a flipped bit must not look like another version
_MARK = struct.Struct("<8sI")
_MARK_BYTES = _MARK.size + 4
_MAGIC = b"KVQSEAL\n"
_SIZES = struct.Struct("<QQQQQ")
_CHECKSUM = struct.Struct("<Q")
_MAC = struct.Struct("<16s8s32s")
TAG_BYTES, SALT_BYTES, KEY_ID_BYTES, MAC_BYTES = 16, 16, 8, 32
_FIXED_BYTES = _SIZES.size + _CHECKSUM.size + _MARK_BYTES
_MAGIC_1, _SEAL_1_BYTES = b"KVQSEAL1", 48  # version 1 had its magic in front


def padded(num_bytes: int) -> int:
    """Arrow pads every buffer to 8 bytes."""
    return -(-num_bytes // 8) * 8


class ShortTail(Exception):
    """The last ``needed_bytes`` of the file are needed to know more."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"the last {needed_bytes} bytes are needed")
        self.needed_bytes = needed_bytes


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

    def layers(self) -> tuple[tuple[int, int], ...]:
        """(offset, length) of every layer's record batch: its message and its body."""
        return tuple((self.head_len + i * self.layer_len, self.layer_len) for i in range(self.num_layers))


@dataclass(frozen=True, slots=True)
class Mac:
    """Says which installation sealed the file (``sealing``). ``layer_tags`` are over what the checksums are
    over; ``code`` is over all else that the seal says, and the footer."""

    key_id: bytes
    salt: bytes
    layer_tags: tuple[bytes, ...]
    code: bytes = bytes(MAC_BYTES)


@dataclass(frozen=True, slots=True)
class Seal:
    """``layer_checksums`` are over each layer's message and body. ``mac`` None: nobody sealed it."""

    layout: Layout
    layer_checksums: tuple[int, ...]
    head_checksum: int
    mac: Mac | None = None

    def pack(self, footer: bytes) -> bytes:
        """``footer`` runs to the end of the file."""
        fields, version = self._fields(), PLAIN_VERSION
        if self.mac is not None:
            fields += _MAC.pack(self.mac.salt, self.mac.key_id, self.mac.code)
            version = FORMAT_VERSION
        return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields + footer)) + _mark(version)

    def covered(self, footer: bytes) -> bytes:
        """Returns the bytes that the MAC is over."""
        mac = self.mac or Mac(bytes(KEY_ID_BYTES), bytes(SALT_BYTES), ())
        return self._fields() + mac.salt + mac.key_id + footer

    def _fields(self) -> bytes:
        layout = self.layout
        sizes = _SIZES.pack(
            layout.head_len, layout.num_layers, layout.message_len, layout.body_len, self.head_checksum
        )
        tags = b"" if self.mac is None else b"".join(self.mac.layer_tags)
        return b"".join(map(_CHECKSUM.pack, self.layer_checksums)) + tags + sizes


def seal_of_tail(tail: bytes, size_bytes: int) -> tuple[Seal, int]:
    """The seal in the last bytes of a file of ``size_bytes``, verified with the footer, and where in ``tail``
    the footer begins.

    Raises:
        ShortTail: ``tail`` does not reach far enough back.
        NewerFormat: a later version wrote the file.
        ValueError: it is not a whole file of this version.
    """
    footer_len = _footer_len(tail, size_bytes)
    _need(tail, min(size_bytes, footer_len + _SEAL_1_BYTES), size_bytes)
    is_sealed = _version_of(tail[:-footer_len]) != PLAIN_VERSION
    fixed_bytes = _FIXED_BYTES + is_sealed * _MAC.size
    _need(tail, footer_len + fixed_bytes, size_bytes)
    footer_at = len(tail) - footer_len
    *sizes, head_checksum = _SIZES.unpack_from(tail, footer_at - fixed_bytes)
    layout = Layout(*sizes)
    seal_bytes = layout.num_layers * (_CHECKSUM.size + is_sealed * TAG_BYTES) + fixed_bytes
    if min(sizes) < 1 or layout.tail_offset + len(END_OF_STREAM) + seal_bytes + footer_len != size_bytes:
        raise ValueError("it is not of the length that its seal names")
    _need(tail, size_bytes - layout.tail_offset, size_bytes)
    packed = tail[footer_at - seal_bytes : footer_at]
    checksums = struct.unpack_from(f"<{layout.num_layers}Q", packed)
    mac = _mac_of(packed, layout.num_layers) if is_sealed else None
    seal = Seal(layout, checksums, head_checksum, mac)
    if (
        seal.pack(tail[footer_at:]) != packed
        or tail[layout.tail_offset - size_bytes :][: len(END_OF_STREAM)] != END_OF_STREAM
    ):
        raise ValueError("seal or footer fail their checksum")
    return seal, footer_at


def _mac_of(packed: bytes, num_layers: int) -> Mac:
    tags_at = num_layers * _CHECKSUM.size
    tags = (packed[tags_at + i * TAG_BYTES :][:TAG_BYTES] for i in range(num_layers))
    mac_at = len(packed) - _MARK_BYTES - _CHECKSUM.size - _MAC.size
    salt, key_id, code = _MAC.unpack_from(packed, mac_at)
    return Mac(key_id, salt, tuple(tags), code)


def footer_of(closing: bytes) -> int:
    """Length of Arrow's footer with its closing, from the last ``CLOSING_BYTES`` of a file.

    Raises:
        ValueError: no Arrow file ends like this.
    """
    (length,) = _FOOTER_LEN.unpack_from(closing, len(closing) - CLOSING_BYTES)
    if not closing.endswith(ARROW_MAGIC) or length <= 0:
        raise ValueError("it does not end like an Arrow file; it may be truncated")
    return int(length) + CLOSING_BYTES


def _footer_len(tail: bytes, size_bytes: int) -> int:
    if size_bytes < CLOSING_BYTES:
        raise ValueError("it is too short for an Arrow file; it may be truncated")
    _need(tail, CLOSING_BYTES, size_bytes)
    length = footer_of(tail)
    if length + _MARK_BYTES > size_bytes:
        raise ValueError("its footer is longer than the file; it may be truncated")
    return length


def _need(tail: bytes, num_bytes: int, size_bytes: int) -> None:
    if num_bytes > size_bytes:
        raise ValueError("it is too short for what it says it holds; it may be truncated")
    if len(tail) < num_bytes:
        raise ShortTail(num_bytes)


def _version_of(before_footer: bytes) -> int:
    mark = before_footer[-_MARK_BYTES:]
    magic, version = _MARK.unpack_from(mark)
    if magic != _MAGIC or mark != _mark(version):
        if before_footer[-_SEAL_1_BYTES:].startswith(_MAGIC_1):
            raise _older(1)
        raise ValueError("it is not sealed")
    if version > FORMAT_VERSION:
        raise NewerFormat(
            f"it has format version {version}, this program reads {FORMAT_VERSION}: run a newer kvquilt"
        )
    if version < PLAIN_VERSION:
        raise _older(version)
    return int(version)


def _older(version: int) -> ValueError:
    return ValueError(
        f"it has the older format version {version}, this program reads {PLAIN_VERSION} and later; compute "
        "it again"
    )


def _mark(version: int) -> bytes:
    mark = _MARK.pack(_MAGIC, version)
    return mark + xxhash.xxh32_digest(mark)
