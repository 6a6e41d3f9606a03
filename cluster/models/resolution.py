"""Finds the directory of a model by what an operator calls it: a name of a model that comes along, a GGUF
file, a pulled ``ID@REVISION``, a directory, a Hugging Face id."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.models.names import DEMO, SMOLLM2, gguf_of, models_dir, pulled_dir, split_revision
from cluster.paths import DEMO_MODEL
from shared.errors import ConfigError

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
Progress = Callable[[int, int], None]


def resolve_model(
    model: str,
    setting: str,
    environ: Mapping[str, str],
    on_progress: Progress = lambda done, total: None,
    on_wait: Callable[[], None] = lambda: None,
) -> str:
    """An absolute directory, or a Hugging Face id as it is. A GGUF file is converted, once.

    Raises:
        ConfigError: neither; names the setting.
        ModelUnsupported, StorageFull: of a GGUF file, see ``ModelCache.converted``.
    """
    if model == DEMO:
        return str(DEMO_MODEL)
    if gguf := gguf_of(model):
        from cluster.models.cache import ModelCache

        cache = ModelCache(models_dir(environ))
        return str(cache.converted(*gguf, on_progress=on_progress, on_wait=on_wait))
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"{setting}: {model} holds no config.json; give a directory written by transformers' "
                "save_pretrained"
            )
        return str(path.absolute())
    if pulled := split_revision(model):
        if (directory := pulled_dir(*pulled, environ)).is_dir():
            return str(directory)
        raise ConfigError(f"{setting}: {model} is not here yet; `kvquilt models pull {model}` brings it")
    if not _HUB_ID.fullmatch(model):
        raise ConfigError(
            f"{setting}: there is no directory {model}; give a model directory, a GGUF file, {SMOLLM2}, "
            f"{DEMO}, or a Hugging Face id such as Qwen/Qwen2.5-0.5B"
        )
    return model


def bring_model(
    model: str,
    to: Path | None,
    environ: Mapping[str, str],
    on_progress: Progress = lambda done, total: None,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Pulls ``ID@REVISION`` of the hub, or converts a GGUF file, into ``to`` or a place of its own.

    Raises:
        KvquiltError: see ``cluster.models.pulling.pull`` and ``ModelCache.converted``.
    """
    target = to and to.expanduser().absolute()
    if gguf := gguf_of(model):
        from cluster.models.cache import ModelCache

        cache = ModelCache(models_dir(environ))
        return cache.converted(*gguf, target=target, on_progress=on_progress, on_wait=on_wait)
    if (pulled := split_revision(model)) is None:
        raise ConfigError(
            f"model: {model!r} is neither ID@REVISION (a commit or a tag, such as "
            f"Qwen/Qwen2.5-0.5B-Instruct@COMMIT), nor a GGUF file, nor {SMOLLM2}"
        )
    from cluster.models.hub import HuggingFaceHub
    from cluster.models.pulling import pull
    from shared.engine.model.loader import read_config

    hub = HuggingFaceHub(environ.get("HF_TOKEN", ""))
    return pull(
        hub, *pulled, target or pulled_dir(*pulled, environ), lambda found: read_config(str(found)), on_wait
    )
