"""An auxiliary model as it is loaded: scorer, tokenizer, and what stands around its questions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.engine.model.loader import load_model
from shared.engine.model.packing import bfloat16_is_fast
from shared.engine_config import EngineConfig
from shared.errors import ConfigError, ModelUnsupported
from shared.prompt import PromptTokenizer
from shared.selection.scoring import EngineScorer, Scorer
from shared.selection.spans import SpanTokenizer
from shared.selection.stock import load_stock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """``prompts``: its own prefix and its own template for questions. Chunks are the primary's: the same text
    for both."""

    scorer: Scorer
    tokenizer: SpanTokenizer
    prompts: PromptTokenizer


def load_auxiliary(path: str, config: EngineConfig | None = None) -> Auxiliary:
    """A model directory or hub id. ``config.dtype`` ``auto`` is bfloat16 where the processor computes it,
    else float32. A model that the engine does not drive is read by its own code, chunk by chunk only; a line
    in the log says why.

    Raises:
        ConfigError: the model has no tokenizer, or one that cannot be loaded.
        InvalidRequest: nothing loadable is there, or it is not a causal LM.
        ModelUnsupported: its attention cannot be seen, or its tokenizer gives no offsets; says which.
    """
    config = config or EngineConfig()
    prompts = PromptTokenizer.of_model(path)  # by its own template, whatever the primary's is
    if prompts is None:
        raise ConfigError(
            f"model: {path!r} has no tokenizer; an auxiliary model reads text, so it needs its own"
        )
    tokenizer = SpanTokenizer(prompts.tokenizer, path)
    return Auxiliary(_scorer(path, config, prompts.prefix_ids), tokenizer, prompts)


def _scorer(path: str, config: EngineConfig, prefix_ids: Sequence[int]) -> Scorer:
    dtype = _fastest(config.device) if config.dtype == "auto" else config.dtype
    try:
        model = load_model(path, dtype=dtype, device=config.device, weights=config.weights)
        return EngineScorer(model, prefix_ids, config)
    except ModelUnsupported as error:
        if config.weights == "int8":
            raise
        log.info("auxiliary model: %s; its own code reads chunks one by one", error.detail)
    return load_stock(path, dtype, config.device, prefix_ids)


def _fastest(device: str) -> str:
    on_cpu = torch.device(device).type == "cpu"
    return "float32" if on_cpu and not bfloat16_is_fast() else "bfloat16"
