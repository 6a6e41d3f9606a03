"""Keeps on disk what is computed once: what the teacher said, and keys and values of chunks. What is missing,
cut short or of another model is computed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.training.distillation.lessons import AskedContext, Taught
from services.training.distillation.settings import DistillationSettings
from services.training.twin_request import Ids, PlacedChunk, SegmentKv


@dataclass(frozen=True, slots=True)
class Kept:
    """``of``: the model and the prefix that all of it belongs to."""

    directory: Path
    of: str

    @classmethod
    def at(cls, directory: Path, fingerprint: str, prefix_ids: Ids) -> Kept:
        directory.mkdir(parents=True, exist_ok=True)
        return cls(directory, f"{fingerprint} {prefix_ids}")

    def segment(self, chunk: PlacedChunk) -> SegmentKv | None:
        tensors = self._read(self._kv_path(chunk))
        return None if tensors is None else SegmentKv(tensors["k"], tensors["v"])

    def has_segment(self, chunk: PlacedChunk) -> bool:
        """Whole, by the length that its head tells."""
        try:
            with safe_open(self._kv_path(chunk), framework="pt"):
                return True
        except (SafetensorError, OSError):
            return False

    def keep_segment(self, chunk: PlacedChunk, segment: SegmentKv) -> None:
        self._write(self._kv_path(chunk), {"k": segment.k_LTKD, "v": segment.v_LTKD})

    def taught(self, context: AskedContext, settings: DistillationSettings) -> tuple[Taught, ...] | None:
        tensors = self._read(self._taught_path(context, settings))
        if tensors is None:
            return None
        return tuple(
            Taught(tuple(tensors[f"{i}.answer"].tolist()), *(tensors[f"{i}.{name}"] for name in _TAUGHT))
            for i in range(len(context.questions))
        )

    def keep_taught(
        self, context: AskedContext, settings: DistillationSettings, taught: tuple[Taught, ...]
    ) -> None:
        tensors = {f"{i}.answer": torch.tensor(one.answer) for i, one in enumerate(taught)}
        for i, one in enumerate(taught):
            of_one = (one.top_AK, one.logprobs_AK, one.rest_A)
            tensors |= {f"{i}.{name}": x.contiguous() for name, x in zip(_TAUGHT, of_one, strict=True)}
        self._write(self._taught_path(context, settings), tensors)

    def _kv_path(self, chunk: PlacedChunk) -> Path:
        return self._path("kv", (chunk.chain, chunk.token_ids))

    def _taught_path(self, context: AskedContext, settings: DistillationSettings) -> Path:
        by = (settings.top_k, settings.answer_tokens, settings.stop)
        return self._path("taught", (context.blocks, context.questions, by))

    def _path(self, kind: str, what: object) -> Path:
        digest = hashlib.sha256(f"{self.of} {what}".encode()).hexdigest()[:40]
        return self.directory / f"{kind}-{digest}.safetensors"

    @staticmethod
    def _read(path: Path) -> dict[str, Tensor] | None:
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except (SafetensorError, OSError):
            return None
        return tensors

    @staticmethod
    def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
        written = path.with_suffix(f".{os.getpid()}")
        save_file({name: x.cpu().contiguous() for name, x in tensors.items()}, written)
        written.replace(path)


_TAUGHT = ("top", "logprobs", "rest")
