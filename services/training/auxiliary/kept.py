"""Keeps labels on disk, which are computed once. What is missing, cut short or of another model is
computed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from services.training.auxiliary.contexts import SelectionContext
from services.training.auxiliary.labels import SelectionLabels
from services.training.auxiliary.settings import AuxiliarySettings
from services.training.twin_request import Ids

_ARRAYS = ("gain_W", "pairs_N2", "pair_gain_N", "attended_W")


@dataclass(frozen=True, slots=True)
class KeptLabels:
    """``of``: the primary and the prefix that all of them belong to."""

    directory: Path
    of: str

    @classmethod
    def at(cls, directory: Path, fingerprint: str, prefix_ids: Ids) -> KeptLabels:
        directory.mkdir(parents=True, exist_ok=True)
        return cls(directory, f"{fingerprint} {prefix_ids}")

    def labels(
        self, context: SelectionContext, settings: AuxiliarySettings
    ) -> tuple[SelectionLabels, ...] | None:
        try:
            arrays = load_file(self._path(context, settings))
            return tuple(
                SelectionLabels(
                    tuple(arrays[f"{i}.answer"].tolist()),
                    *arrays[f"{i}.logprobs"].tolist(),
                    *(arrays[f"{i}.{name}"] for name in _ARRAYS),
                )
                for i in range(len(context.primary.questions))
            )
        except (SafetensorError, OSError):
            return None

    def keep(
        self, context: SelectionContext, settings: AuxiliarySettings, labels: tuple[SelectionLabels, ...]
    ) -> None:
        arrays = {}
        for i, one in enumerate(labels):
            arrays[f"{i}.answer"] = np.array(one.answer)
            arrays[f"{i}.logprobs"] = np.array([one.stored, one.computed])
            arrays |= {f"{i}.{name}": np.ascontiguousarray(getattr(one, name)) for name in _ARRAYS}
        path = self._path(context, settings)
        written = path.with_suffix(f".{os.getpid()}")
        save_file(arrays, written)
        written.replace(path)

    def _path(self, context: SelectionContext, settings: AuxiliarySettings) -> Path:
        by = (settings.pair_windows, settings.answer_tokens, settings.stop)
        of = f"{self.of} {context.primary} {context.windows} {by}"
        return self.directory / f"labels-{hashlib.sha256(of.encode()).hexdigest()[:40]}.safetensors"
