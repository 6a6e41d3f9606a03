"""Settings that suit a model, which its directory brings in a ``quilt.yaml`` of its own, and where what they
name lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.config import read_yaml
from shared.errors import ConfigError

SECTIONS = ("gateway", "ingestion", "retrieval", "kv_store", "generator", "selector")
SUITED = (*SECTIONS, "prompt", "limits")
"""What a model may bring settings for."""
MODEL_SETTINGS_FILE = "quilt.yaml"


def model_settings(model: str) -> dict[str, dict[str, Any]]:
    """Sections of the settings that suit the model. An auxiliary model, adapters and packets that are named
    there may lie beside it.

    Raises:
        ConfigError: the model's file holds something else.
    """
    path = Path(model) / MODEL_SETTINGS_FILE
    if not path.is_file():
        return {}
    settings = read_yaml(path.read_text(encoding="utf-8"), f"the model's {MODEL_SETTINGS_FILE}")
    for section, values in settings.items():
        if section not in SUITED or not isinstance(values, dict):
            raise ConfigError(
                f"the model's {MODEL_SETTINGS_FILE}: {section}: expected a section among {', '.join(SUITED)}"
            )
    auxiliary = settings.get("selector", {}).get("model")
    if auxiliary and (beside := Path(model) / str(auxiliary)).is_dir():
        settings["selector"]["model"] = str(beside.resolve())
    if generator := settings.get("generator"):
        settings["generator"] = under(located_adapters(generator, Path(model)), generator)
    if prompt := settings.get("prompt"):
        settings["prompt"] = under(located_packets(prompt, Path(model)), prompt)
    return settings


def located_auxiliary(named: str, model: str) -> str:
    """The whole path of an auxiliary model that lies in the model's directory; else ``named`` as it is. A
    directory of that name where the command runs is stronger."""
    beside = Path(model) / named
    return str(beside.resolve()) if named and not Path(named).is_dir() and beside.is_dir() else named


def located_adapters(generator: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Settings with whole paths of the adapters whose directories lie in ``folder``."""
    engine = generator.get("engine")
    adapters = engine.get("adapters") if isinstance(engine, Mapping) else None
    if not isinstance(adapters, Mapping):
        return {}
    places = {name: folder / Path(str(directory)).expanduser() for name, directory in adapters.items()}
    found = {name: str(place.resolve()) for name, place in places.items() if place.is_dir()}
    return {"engine": {"adapters": found}}


def own_adapter(generator: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Settings with the adapter that ``generator.adapter`` names and that lies in ``adapters`` beside the
    model."""
    name = generator.get("adapter")
    place = Path(model) / "adapters" / str(name)
    return {"engine": {"adapters": {name: str(place)}}} if name and place.is_dir() else {}


def located_packets(prompt: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Settings with the whole path of packets whose directory lies in ``folder``."""
    named = prompt.get("packets")
    place = folder / Path(str(named)).expanduser()
    return {"packets": str(place.resolve())} if named and place.is_dir() else {}


def own_packets(prompt: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Settings with the packets that ``prompt.packets`` names and that lie in ``packets`` beside the
    model."""
    return located_packets(prompt, Path(model) / "packets")


def under(given: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` where it says something, ``shared`` elsewhere; sections are merged. A section does not hide
    what is none in its place: whoever reads the settings refuses that."""
    result = dict(shared)
    for key, value in given.items():
        below = result.get(key)
        if isinstance(value, Mapping) and below is not None:
            result[key] = under(value, below) if isinstance(below, Mapping) else below
        else:
            result[key] = value
    return result
