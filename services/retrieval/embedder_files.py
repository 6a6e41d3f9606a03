"""Reads what the files of a sentence-transformers model say besides its weights: modules, pooling, texts in
front, languages."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shared.errors import ConfigError

POOLINGS = ("mean", "cls")
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
_LEGACY_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_DOCUMENT_PROMPTS = ("document", "passage")


@dataclass(frozen=True, slots=True)
class EmbedderFiles:
    """``encoder``: the directory of the encoder itself. ``query_prefix``, ``document_prefix``: the texts
    that the model wants in front. ``window_len``: most tokens, special ones included; None: whatever the
    encoder takes. ``languages``: ISO 639 codes that the model's card names; empty: it names none."""

    encoder: Path
    pooling: str
    query_prefix: str
    document_prefix: str
    window_len: int | None
    languages: tuple[str, ...]
    digest: str

    @classmethod
    def read(cls, root: Path) -> EmbedderFiles:
        """
        Raises:
            ConfigError: a module or a pooling is not covered, or a file is not what it should be.
        """
        modules = _read_json(root / "modules.json", default=[])
        unknown = [m["type"] for m in modules if m["type"].rsplit(".", 1)[-1] not in _KNOWN_MODULES]
        if unknown:
            raise ConfigError(
                f"embedder: module {unknown[0]} of {root.name!r} is not supported (only "
                f"{', '.join(_KNOWN_MODULES)})"
            )
        folders = {m["type"].rsplit(".", 1)[-1]: root / m["path"] for m in modules}
        encoder = folders.get("Transformer", root)
        prompts = _read_json(root / "config_sentence_transformers.json", default={}).get("prompts") or {}
        window = _read_json(encoder / "sentence_bert_config.json", default={}).get("max_seq_length")
        return cls(
            encoder,
            _pooling(root, folders.get("Pooling", root / "1_Pooling")),
            prompts.get("query") or "",
            next((prompts[name] for name in _DOCUMENT_PROMPTS if prompts.get(name)), ""),
            None if window is None else int(window),
            _languages(root / "README.md"),
            _digest(root),
        )


def _pooling(root: Path, folder: Path) -> str:
    settings = _read_json(folder / "config.json", default={"pooling_mode_mean_tokens": True})
    named = settings.get("pooling_mode")
    active = ([named] if isinstance(named, str) else list(named or [])) or sorted(
        key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True
    )
    poolings = [_LEGACY_POOLINGS.get(name, name) for name in active]
    if len(poolings) != 1 or poolings[0] not in POOLINGS:
        raise ConfigError(
            f"embedder: pooling {', '.join(active) or 'unset'} of {root.name!r} is not supported (only "
            f"{' and '.join(POOLINGS)})"
        )
    if settings.get("include_prompt") is False:
        raise ConfigError(
            f"embedder: {root.name!r} leaves its prompts out of the pooling (include_prompt: false): not "
            "supported"
        )
    return poolings[0]


def _languages(card: Path) -> tuple[str, ...]:
    """Of the card's front matter."""
    try:
        text = card.read_text(encoding="utf-8", errors="replace")
        front = text.split("---", 2)[1] if text.startswith("---") else ""
        said = (yaml.safe_load(front) or {}).get("language") or ()
    except (OSError, IndexError, AttributeError, yaml.YAMLError):
        return ()
    return tuple(map(str, said)) if isinstance(said, list) else (str(said),) if said else ()


def _digest(root: Path) -> str:
    """Twelve hex digits over the files that decide about the vectors."""
    h = hashlib.blake2b(digest_size=6)
    for file in sorted(root.rglob("*")):
        if file.suffix in (".safetensors", ".bin", ".json", ".txt") and file.is_file():
            h.update(file.relative_to(root).as_posix().encode())
            with file.open("rb") as stream:
                h.update(hashlib.file_digest(stream, "blake2b").digest())
    return h.hexdigest()


def _read_json(path: Path, default: Any) -> Any:
    if not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"embedder: {path.name} is not valid JSON: {error}") from None
