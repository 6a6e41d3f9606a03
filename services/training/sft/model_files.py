"""Writes a fine-tuned model as a directory that stock ``transformers`` and the engine load: weights in the
base model's type, and what else the base model brings, as it is there: tokenizer, chat template,
``kvquilt.json``, ``quilt.yaml``, an auxiliary model beside it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.config import read_yaml
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext

CARD = "README.md"
_BROUGHT = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model"),
    *("chat_template*", "generation_config.json", "kvquilt.json", "quilt.yaml", "LICENSE*", "NOTICE*"),
)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Facts that readers are told. ``base``: name or path of the base model; ``mixture``: a line per kind of
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
        if ReuseMode(reuse).row.stored:
            read = f"chunks placed as `{reuse}` serves them, computed behind `kv_context: {self.kv_context}`"
        else:
            read = f"plain text (`{reuse}`): the naive twin of a model that is tuned for stored chunks"
        how = "the whole model" if rank == "0" else f"a LoRA of rank {rank} on all rows, merged"
        lines = [
            f"# {name}",
            f"`{self.base}`, fine-tuned on labelled answers over {read}; {how} (`kvquilt train sft`).",
            f"Its fingerprint is `{self.fingerprint}`, the base model's `{self.base_fingerprint}`. Chunks "
            "that another model stored cannot be used with it: ingest them again.",
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
            if path.is_dir():
                shutil.copytree(path, out / path.name, dirs_exist_ok=True)
            else:
                path.chmod(0o644)
                path.replace(out / path.name)


def _bring_rest(source: str, to: Path) -> None:
    if not Path(source).is_dir():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(source).save_pretrained(to)
        return
    for path in sorted(Path(source).iterdir()):
        if path.is_file() and any(path.match(pattern) for pattern in _BROUGHT):
            shutil.copyfile(path, to / path.name)
    if (settings := to / "quilt.yaml").is_file():
        selector = read_yaml(settings.read_text(encoding="utf-8"), str(settings)).get("selector") or {}
        if (auxiliary := selector.get("model")) and (Path(source) / auxiliary).is_dir():
            shutil.copytree(Path(source) / auxiliary, to / auxiliary)
