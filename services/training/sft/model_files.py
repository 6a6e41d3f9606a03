"""Writes a fine-tuned model as a directory that stock ``transformers`` and the engine load: weights in the base
model's type, and whatever else the base model brings (tokenizer, chat template, ``kvquilt.json``,
``quilt.yaml``) as it is there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.kv_types import KvContext

CARD = "README.md"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".index.json")
_OURS = ("config.json", CARD, "losses.jsonl")  # what training writes itself


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What readers are told. ``base``: name or path of the base model; ``mixture``: a line per kind of
    examples."""

    base: str
    base_fingerprint: str
    fingerprint: str
    kv_context: KvContext
    settings: Mapping[str, str]
    mixture: tuple[str, ...]

    def text(self, name: str) -> str:
        settings = self.settings
        reuse, rank = settings["reuse"], settings["rank"]
        if reuse == "full":
            read = "plain text (`full`): the naive twin of a model that is tuned for stored chunks"
        else:
            read = f"chunks placed as `{reuse}` serves them, computed behind `kv_context: {self.kv_context}`"
        how = "the whole model" if rank == "0" else f"a LoRA of rank {rank} on all rows, merged"
        lines = [
            f"# {name}",
            f"`{self.base}`, fine-tuned on labelled answers over {read}; {how} (`kvquilt train sft`).",
            f"Its fingerprint is `{self.fingerprint}`, the base model's `{self.base_fingerprint}`. Chunks that "
            "another model stored cannot be used with it: ingest them again.",
            "## Trained on\n\n" + "\n".join(f"- {line}" for line in self.mixture),
            "## Settings\n\n| | |\n| --- | --- |\n"
            + "\n".join(f"| {field} | {value or 'all'} |" for field, value in settings.items()),
        ]
        return "\n\n".join(lines) + "\n"


def write_model(hf_model: Any, source: str, out: Path, card: ModelCard) -> None:
    """``source``: directory or hub id of the base model. Each file is whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as made:
        new = Path(made)
        hf_model.save_pretrained(new)
        _bring_rest(source, new)
        (new / CARD).write_text(card.text(out.name), encoding="utf-8")
        for path in sorted(new.iterdir()):
            path.replace(out / path.name)


def _bring_rest(source: str, to: Path) -> None:
    if not Path(source).is_dir():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(source).save_pretrained(to)
        return
    for path in _rest(Path(source)):
        shutil.copyfile(path, to / path.name)


def _rest(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name not in _OURS and not path.name.endswith(_WEIGHTS):
            yield path
