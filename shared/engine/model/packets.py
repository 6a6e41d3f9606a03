"""Soft-token packets (KV Packet, arXiv 2604.13226): vectors in front of and behind every chunk, trained so
that isolated chunks read like a text. Reads and writes their files.

Packets are part of what a chunk's KV is computed from, and so of the model's fingerprint. Their directory
holds ``packets.safetensors`` (the header's and the trailer's vectors) and, with all that is known of them,
``quilt.packets.json``. Shapes: P vectors of a packet, E hidden size.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from shared.errors import CorruptData, ModelMismatch
from shared.packets import FACTS, PacketFacts, read_facts
from shared.whole_files import replacing

WEIGHTS = "packets.safetensors"
_HEADER, _TRAILER = "header", "trailer"


@dataclass(frozen=True, slots=True)
class Packets:
    """``vectors_PE``: float32, the header's first."""

    vectors_PE: Tensor
    facts: PacketFacts

    def check_base(self, fingerprint: str, vocab_size: int, hidden_size: int) -> None:
        """
        Raises:
            ModelMismatch: they were made for another model; names what differs, and the remedy.
        """
        facts, made_for = self.facts, f" ({self.facts.base})" if self.facts.base else ""
        remedy = f"serve them with the model that they were trained on{made_for}, or train some on this model"
        for name, ours, theirs in (
            ("vocab_size", facts.vocab_size, vocab_size),
            ("hidden size", self.vectors_PE.shape[1], hidden_size),
            ("fingerprint", facts.fingerprint, fingerprint),
        ):
            if ours != theirs:
                raise ModelMismatch(
                    f"packets: {name}: they were trained on a model with {ours}, this one has {theirs}: "
                    f"{remedy}"
                )

    def fingerprint(self, base: str) -> str:
        """Of a model with ``base`` whose chunks stand between them: 32 hex digits."""
        ids, vectors = self.facts.ids, self.vectors_PE.contiguous().numpy().tobytes()
        digest = hashlib.sha256(f"{base} {ids.num_header} {ids.num_trailer}".encode())
        digest.update(vectors)
        return digest.hexdigest()[:32]


def read_packets(directory: Path) -> Packets:
    """
    Raises:
        ConfigError: see ``read_facts``.
        CorruptData: the vectors cannot be read, or are not those that the file beside them speaks of.
    """
    facts = read_facts(directory)
    try:
        tensors: dict[str, Tensor] = load_file(directory / WEIGHTS)
        parts = [tensors[name] for name in (_HEADER, _TRAILER)]
    except KeyError as error:
        raise _broken(directory, f"has no tensor {error}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(directory, f"cannot be read ({error})") from error
    for name, part, count in zip(
        (_HEADER, _TRAILER), parts, (facts.num_header, facts.num_trailer), strict=True
    ):
        if part.dim() != 2 or len(part) != count or not part.is_floating_point():
            raise _broken(
                directory, f"{name} has the shape {tuple(part.shape)}, and {FACTS} speaks of {count} vectors"
            )
        if not part.isfinite().all():
            raise _broken(directory, f"{name} has values that are not finite")
    if parts[0].shape[1] != parts[1].shape[1]:
        raise _broken(directory, "header and trailer are not equally wide")
    return Packets(torch.cat(parts).float(), facts)


def write_packets(packets: Packets, directory: Path) -> None:
    """Each file whole or not at all, the facts last."""
    directory.mkdir(parents=True, exist_ok=True)
    vectors_PE = packets.vectors_PE.detach().cpu().float()
    num_header = packets.facts.num_header
    parts = {_HEADER: vectors_PE[:num_header].contiguous(), _TRAILER: vectors_PE[num_header:].contiguous()}
    _replace(directory / WEIGHTS, save(parts))
    _replace(directory / FACTS, (json.dumps(asdict(packets.facts), indent=2) + "\n").encode())


def _broken(directory: Path, reason: str) -> CorruptData:
    return CorruptData(
        f"packets: {directory / WEIGHTS}: {reason}: it is truncated or broken; copy the folder again"
    )


def _replace(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
