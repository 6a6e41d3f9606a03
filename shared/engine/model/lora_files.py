"""Reads and writes adapters as PEFT keeps them: a directory with ``adapter_config.json`` and
``adapter_model.safetensors``. What PEFT has no place for stands in ``quilt.adapter.json`` beside them
(``AdapterFacts``), which an adapter trained elsewhere does not have.

The package ``peft`` is not needed. What this reader does not compute as PEFT would, it refuses by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from shared.config import load
from shared.engine.model.lora import AdapterFacts, LoraAdapter, LoraPair, Site
from shared.errors import ConfigError, CorruptData
from shared.whole_files import replacing

CONFIG, WEIGHTS, FACTS = "adapter_config.json", "adapter_model.safetensors", "quilt.adapter.json"
_PICKLE = "adapter_model.bin"
_KEY = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(.+)\.lora_([AB])\.weight")
# settings under which PEFT computes something else than W + scale · B·A on linear layers; harmless: empty
_OTHERWISE = {
    "modules_to_save": "whole layers replaced by trained ones",
    "layer_replication": "layers that are there several times",
    "trainable_token_indices": "trained embeddings",
    "target_parameters": "changes of weights that are no linear layers",
    "alora_invocation_tokens": "an adapter that begins at certain tokens (aLoRA)",
    "lora_bias": "a bias beside B",
    "fan_in_fan_out": "transposed weights",
}
# ways of initialising that change the base model's own weights as well
_BASE_CHANGES_WITH = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_adapter(directory: Path, name: str) -> LoraAdapter:
    """
    name: what requests call it.

    Raises:
        ConfigError: it is not there, or is something that is not supported; names the file and the field.
        CorruptData: its weights cannot be read, or are not all there.
    """
    reader = _Reader(directory, name)
    settings = reader.settings()
    return LoraAdapter(name, reader.pairs(settings), settings.base, reader.facts())


def write_adapter(adapter: LoraAdapter, directory: Path) -> None:
    """As PEFT would save it, tensors in their own types; each file whole or not at all, the configuration
    last."""
    first = next(iter(adapter.pairs.values()))
    ranks, alphas, tensors = {}, {}, {}
    for site, pair in adapter.pairs.items():
        module = f"model.layers.{site.layer}.{site.path}"
        tensors[f"base_model.model.{module}.lora_A.weight"] = pair.a_rI.detach().cpu().contiguous()
        tensors[f"base_model.model.{module}.lora_B.weight"] = pair.b_Or.detach().cpu().contiguous()
        if pair.rank != first.rank:
            ranks[module] = pair.rank
        if pair.scale * pair.rank != first.scale * first.rank:
            alphas[module] = pair.scale * pair.rank
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base,
        "r": first.rank,
        "lora_alpha": first.scale * first.rank,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "use_rslora": False,
        "target_modules": sorted({path.rpartition(".")[2] for path in adapter.paths}),
        "layers_to_transform": sorted({site.layer for site in adapter.pairs}),
        "bias": "none",
        "lora_dropout": 0.0,
        "use_dora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    directory.mkdir(parents=True, exist_ok=True)
    _replace(directory / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    _replace(directory / FACTS, _json_of(asdict(adapter.facts)))
    _replace(directory / CONFIG, _json_of(config))


@dataclass(frozen=True, slots=True)
class _Settings:
    """Of ``adapter_config.json``, what decides the result."""

    r: int
    lora_alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, Any]
    alpha_pattern: Mapping[str, Any]
    targets: tuple[str, ...]
    base: str

    def rank(self, module: str) -> int:
        return int(_by_pattern(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        alpha, rank = float(_by_pattern(self.alpha_pattern, module, self.lora_alpha)), self.rank(module)
        return alpha / (rank**0.5 if self.use_rslora else rank)


@dataclass(frozen=True, slots=True)
class _Reader:
    directory: Path
    name: str

    def settings(self) -> _Settings:
        values = self._json(CONFIG)
        if values is None:
            if (self.directory / "config.json").is_file():
                raise self._error(
                    str(self.directory),
                    "holds a model, into which what was trained is merged; serve it as `model`, and ingest "
                    "documents again",
                )
            raise self._error(CONFIG, "is not there; name the directory of an adapter that PEFT saved")
        self._refuse(values)
        r, alpha = values.get("r", 8), values.get("lora_alpha", 8)
        if not _is_number(r) or r != int(r) or r < 1:
            raise self._error(f"{CONFIG}: r", f"{r!r} is not a rank; it must be a whole number, at least 1")
        if not _is_number(alpha):
            raise self._error(f"{CONFIG}: lora_alpha", f"{alpha!r} is not a number")
        targets = values.get("target_modules")
        return _Settings(
            int(r),
            float(alpha),
            bool(values.get("use_rslora")),
            self._pattern(values, "rank_pattern"),
            self._pattern(values, "alpha_pattern"),
            targets=tuple(map(str, targets)) if isinstance(targets, list) else (),
            base=str(values.get("base_model_name_or_path") or ""),
        )

    def _pattern(self, values: Mapping[str, Any], field: str) -> dict[str, Any]:
        pattern = values.get(field) or {}
        try:
            if not all(
                _is_number(value) and value > 0 and re.compile(name) for name, value in pattern.items()
            ):
                raise ValueError("a value is no number above 0")
        except (AttributeError, ValueError, re.error) as error:
            raise self._error(f"{CONFIG}: {field}", f"expected numbers by name of module: {error}") from error
        return dict(pattern)

    def pairs(self, settings: _Settings) -> dict[Site, LoraPair]:
        halves: dict[Site, dict[str, Tensor]] = {}
        for key, tensor in self._tensors().items():
            found = _KEY.fullmatch(key)
            if found is None:
                raise self._error(
                    f"{WEIGHTS}: {key}",
                    "is no LoRA weight of a linear layer within a decoder layer; train without it "
                    "(DoRA, embeddings and heads are not supported)",
                )
            halves.setdefault(Site(int(found[1]), found[2]), {})[found[3]] = tensor
        if not halves:
            raise self._broken("has no weights")
        for target in settings.targets:
            if not any(f".{site.path}".endswith(f".{target}") for site in halves):
                raise self._broken(f"has no weights for {target!r} of target_modules ({CONFIG})")
        return {site: self._pair(site, halves[site], settings) for site in sorted(halves)}

    def facts(self) -> AdapterFacts:
        values = self._json(FACTS)
        where = f"adapter {self.name!r}: {FACTS}: "
        return AdapterFacts() if values is None else load(AdapterFacts, values, where)

    def _refuse(self, values: Mapping[str, Any]) -> None:
        """Refuses what PEFT would compute otherwise."""
        if values.get("peft_type") != "LORA":
            raise self._error(
                f"{CONFIG}: peft_type", f"{values.get('peft_type')!r} is not supported; train a LORA adapter"
            )
        if (bias := values.get("bias", "none")) != "none":
            raise self._error(f"{CONFIG}: bias", f"{bias!r} is not supported; train with bias='none'")
        for field, meaning in _OTHERWISE.items():
            if values.get(field):
                raise self._error(f"{CONFIG}: {field}", f"is not supported ({meaning}); train without it")
        for field, value in values.items():
            if field.startswith("use_") and field != "use_rslora" and value:
                raise self._error(f"{CONFIG}: {field}", "is not supported; train a plain LoRA")
        init = str(values.get("init_lora_weights", "")).lower()
        if init.startswith(_BASE_CHANGES_WITH):
            raise self._error(
                f"{CONFIG}: init_lora_weights",
                f"{init!r} changes the base model's own weights; save it with "
                "path_initial_model_for_weight_conversion, which makes a plain LoRA of it",
            )

    def _pair(self, site: Site, halves: Mapping[str, Tensor], settings: _Settings) -> LoraPair:
        module = f"model.layers.{site.layer}.{site.path}"
        for half in "AB":
            where = f"{module}.lora_{half}"
            if half not in halves:
                raise self._broken(f"lacks {where}")
            if halves[half].dim() != 2 or not halves[half].is_floating_point():
                raise self._broken(f"{where} is no matrix")
            if not halves[half].isfinite().all():
                raise self._broken(f"{where} has values that are not finite")
        pair = LoraPair(halves["A"], halves["B"], settings.scale(module))
        rank = settings.rank(module)
        if not (rank == pair.a_rI.shape[0] == pair.b_Or.shape[1]):
            raise self._broken(
                f"{module} has rank {pair.a_rI.shape[0]} (A) and {pair.b_Or.shape[1]} (B), and {CONFIG} "
                f"says {rank} (r, rank_pattern)"
            )
        return pair

    def _tensors(self) -> dict[str, Tensor]:
        path = self.directory / WEIGHTS
        if not path.is_file():
            if (self.directory / _PICKLE).exists():
                raise self._error(_PICKLE, f"is a pickle, which may run code; save the adapter as {WEIGHTS}")
            raise self._error(WEIGHTS, "is not there; name the directory of an adapter that PEFT saved")
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise self._broken(f"cannot be read ({error})") from error
        return tensors

    def _json(self, file: str) -> dict[str, Any] | None:
        """None: there is no such file."""
        try:
            values = json.loads((self.directory / file).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise self._error(file, f"cannot be read as JSON: {error}") from error
        if not isinstance(values, dict):
            raise self._error(file, "expected an object")
        return values

    def _error(self, field: str, reason: str) -> ConfigError:
        return ConfigError(f"adapter {self.name!r}: {field}: {reason}")

    def _broken(self, reason: str) -> CorruptData:
        return CorruptData(
            f"adapter {self.name!r}: {WEIGHTS}: {reason}: it is truncated or broken, or was saved with "
            f"another {CONFIG}; copy the adapter again"
        )


def _by_pattern(pattern: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """PEFT's rule: the first name that is the end of the module's, as a regular expression."""
    for name, value in pattern.items():
        if re.match(rf"(.*\.)?({name})$", module):
            return value
    return otherwise


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _json_of(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()


def _replace(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
