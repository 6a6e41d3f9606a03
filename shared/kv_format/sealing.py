"""Seals with a key: an installation tells what it stored itself from what somebody else put in its place.

Checksums find accidents. They are not keyed, so whoever can write a file can write fitting ones. The seal of
a stored file therefore carries

- a tag per layer: AES-256-GMAC of what its checksum is over, by a key that is the file's own (derived from
  the installation's and a random salt), the layer's number being the nonce;
- a code over everything else that the seal says, tags and checksums included, and the footer with the
  header: BLAKE2b with the installation's key.

Who opens a file checks the code: a few microseconds, whatever the size. Tags are checked where all bytes are
read anyway and nobody waits: when the store takes a file over, by ``kvquilt store verify`` and by repair. At
a load the layers are checked by their checksums alone, since tags of every byte would make it dearer by a
quarter to a half: whoever can write the disk can still exchange a layer for one of the same XXH3-64, until
the next ``verify``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from shared.errors import NewerFormat
from shared.kv_format.layout import KEY_ID_BYTES, MAC_BYTES, SALT_BYTES, Mac, Seal

_LEAST_SECRET_BYTES = 32
_NONCE_BYTES = 12


class LayerTag:
    """GMAC of one layer, fed in the order of its bytes."""

    def __init__(self, key: bytes, layer: int) -> None:
        nonce = layer.to_bytes(_NONCE_BYTES, "big")
        self._gcm = Cipher(algorithms.AES(key), modes.GCM(nonce)).encryptor()

    def update(self, piece: bytes | memoryview) -> None:
        self._gcm.authenticate_additional_data(piece)

    def digest(self) -> bytes:
        """Once."""
        self._gcm.finalize()
        return self._gcm.tag


@dataclass(frozen=True, slots=True)
class SealKey:
    """``id`` stands in the files, and tells nothing of ``secret``."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < _LEAST_SECRET_BYTES:
            raise ValueError(
                f"a key of seals has {_LEAST_SECRET_BYTES} bytes at least, got {len(self.secret)}"
            )

    @property
    def id(self) -> bytes:
        return self._keyed(b"kvq-key-id", b"", KEY_ID_BYTES)

    def code_of(self, covered: bytes) -> bytes:
        return self._keyed(b"kvq-seal", covered, MAC_BYTES)

    def record_code_of(self, covered: bytes) -> bytes:
        """Of what is no chunk: manifests and pins."""
        return self._keyed(b"kvq-record", covered, MAC_BYTES)

    def tag(self, salt: bytes, layer: int) -> LayerTag:
        return LayerTag(self._keyed(b"kvq-layers", salt, 32), layer)

    def _keyed(self, person: bytes, data: bytes, num_bytes: int) -> bytes:
        return hashlib.blake2b(data, key=self.secret[:64], person=person, digest_size=num_bytes).digest()


class SealKeys:
    """The keys of an installation. The first seals; all are believed, so that another one can take over
    while files of the former are still there. ``required``: what has no MAC is refused as damaged, and so
    computed again; else it is believed, as all files of earlier versions must be."""

    def __init__(self, keys: Sequence[SealKey], required: bool = False) -> None:
        if not keys:
            raise ValueError("no key to seal with")
        self._keys = {key.id: key for key in keys}
        self._required = required
        self.current = keys[0]

    def find(self, key_id: bytes) -> SealKey | None:
        return self._keys.get(key_id)

    def check(self, seal: Seal, footer: bytes) -> None:
        """
        Raises:
            NewerFormat: it is sealed with a key that is not here.
            ValueError: no key of this installation sealed what it says.
        """
        if seal.mac is None:
            self.check_unsealed()
        elif not hmac.compare_digest(
            self._known(seal.mac.key_id).code_of(seal.covered(footer)), seal.mac.code
        ):
            raise ValueError("its seal is not of this installation: it was forged, or damaged")

    def check_record(self, key_id: bytes, code: bytes, covered: bytes) -> None:
        """Raises like ``check``."""
        if not hmac.compare_digest(self._known(key_id).record_code_of(covered), code):
            raise ValueError("its seal is not of this installation: it was forged, or damaged")

    @property
    def for_new(self) -> SealKeys:
        """The same keys for what comes in, and so has no seal yet."""
        return SealKeys(tuple(self._keys.values()))

    def check_unsealed(self) -> None:
        """Checks what has no MAC. Raises ``ValueError`` where it must have one."""
        if self._required:
            raise ValueError("it has no seal of this installation, which auth.require_seals demands")

    def is_current(self, key_id: str) -> bool:
        """Whether what is sealed with that key (hexadecimal; empty: with none) need not be sealed again."""
        return key_id == self.current.id.hex()

    def sealed(self, seal: Seal, salt: bytes, layer_tags: Sequence[bytes], footer: bytes) -> Seal:
        """``seal`` with a MAC of the current key."""
        coded = replace(seal, mac=Mac(self.current.id, salt, tuple(layer_tags)))
        assert coded.mac is not None
        return replace(coded, mac=replace(coded.mac, code=self.current.code_of(coded.covered(footer))))

    def _known(self, key_id: bytes) -> SealKey:
        key = self.find(key_id)
        if key is None:
            raise NewerFormat(
                f"it is sealed with the key {key_id.hex()}, which this installation does not have: add it "
                "to the secret file again, behind the current one"
            )
        return key


def new_salt() -> bytes:
    return secrets.token_bytes(SALT_BYTES)
