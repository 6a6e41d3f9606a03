"""Tells what is known of the models on this machine: their size, positions, prompt, KV, verdict."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from cluster.models.names import CONVERTED, DEMO, PULLED, SMOLLM2, SMOLLM2_INSTALL, models_dir, smollm2_file
from cluster.paths import DEMO_MODEL
from services.ingestion.config import IngestionConfig
from shared.chat_template import CHAT
from shared.errors import ConfigError
from shared.prompt_template import TEMPLATE_FILE
from shared.verdict import VERDICT_FILE
from shared.verdicts import read_verdicts, told

_VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_TIED = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``path`` empty: it is not here yet; ``note`` says how it comes. ``kv_bytes_per_token``: of exact KV, as
    the model computes it. Numbers are None where the model does not tell them."""

    name: str
    path: str = ""
    parameters: int | None = None
    positions: int | None = None
    template: str = ""
    kv_bytes_per_token: int | None = None
    chunk_tokens: int | None = None
    verdict: str = ""
    note: str = ""

    @property
    def kv_bytes_per_chunk(self) -> int | None:
        if self.kv_bytes_per_token is None or self.chunk_tokens is None:
            return None
        return self.kv_bytes_per_token * self.chunk_tokens


def models_here(environ: Mapping[str, str]) -> list[ModelFacts]:
    """Those that come along, then what was converted and pulled."""
    converted = dict(_converted(models_dir(environ)))
    packaged = smollm2_file()
    found = [facts_of(DEMO, DEMO_MODEL)]
    if packaged is None:
        found.append(ModelFacts(SMOLLM2, note=f"not installed: {SMOLLM2_INSTALL}"))
    elif own := [path for path, source in converted.items() if source == str(packaged)]:
        found.append(facts_of(SMOLLM2, own[-1]))
        for path in own:
            del converted[path]
    else:
        found.append(ModelFacts(SMOLLM2, note="converted when it is first used"))
    found += [facts_of(source, path) for path, source in sorted(converted.items())]
    for record in sorted(models_dir(environ).glob(f"*/{PULLED}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(record.read_text(encoding="utf-8"))
            found.append(facts_of(f"{told['id']}@{told['revision']}", record.parent))
    return found


def facts_of(name: str, directory: Path) -> ModelFacts:
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        return ModelFacts(
            name,
            str(directory),
            _num_parameters(directory, bool(config.get("tie_word_embeddings"))),
            config.get("max_position_embeddings"),
            _template(directory),
            _kv_bytes(config),
            _chunk_tokens(directory),
            _verdict(directory),
        )
    except KeyError as error:
        return ModelFacts(name, str(directory), note=f"cannot be read: {error} is missing")
    except (OSError, ValueError, AttributeError, TypeError, ArithmeticError, struct.error) as error:
        return ModelFacts(name, str(directory), note=f"cannot be read: {error}")


def _converted(directory: Path) -> Iterator[tuple[Path, str]]:
    for record in sorted(directory.glob(f"*/{CONVERTED}")):
        try:
            yield record.parent, str(json.loads(record.read_text(encoding="utf-8"))["source"])
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _num_parameters(directory: Path, tied: bool) -> int | None:
    shapes: dict[str, list[int]] = {}
    for path in directory.glob("*.safetensors"):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    if tied:
        shapes.pop(_TIED, None)
    return sum(map(prod, shapes.values())) or None


def _kv_bytes(config: Mapping[str, Any]) -> int | None:
    """Keys and values of one token in all layers."""
    heads = config.get("num_attention_heads")
    layers, kv_heads = config.get("num_hidden_layers"), config.get("num_key_value_heads") or heads
    if not (heads and layers and kv_heads):
        return None
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return int(2 * layers * kv_heads * head_dim * _VALUE_BYTES.get(dtype, 2))


def _template(directory: Path) -> str:
    """The prompt that it has unless the operator names another."""
    if (directory / TEMPLATE_FILE).is_file():
        return TEMPLATE_FILE
    told = directory / "tokenizer_config.json"
    has_chat = (directory / "chat_template.jinja").is_file() or (
        told.is_file() and "chat_template" in json.loads(told.read_text(encoding="utf-8"))
    )
    return CHAT if has_chat else "default"


def _chunk_tokens(directory: Path) -> int:
    from cluster.models.settings import model_settings

    try:
        own = model_settings(str(directory)).get("ingestion", {}).get("chunk_tokens")
    except ConfigError:
        own = None
    return int(own or IngestionConfig(model=str(directory)).chunk_tokens)


def _verdict(directory: Path) -> str:
    path = directory / VERDICT_FILE
    if not path.is_file():
        return ""
    try:
        return told(read_verdicts(path))
    except ConfigError as error:
        return error.detail
