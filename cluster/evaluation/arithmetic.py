"""Counts the arithmetic of an answer: what the model that answers has to compute for it, when all KV that is
stored is there."""

from __future__ import annotations

from typing import Any

from shared.generation.modes import Chooser, ReuseMode
from shared.generation.told import Usage
from shared.measuring.shapes import Shape

TERA = 1e12


def shape_of(config: Any) -> Shape:
    """``config``: of ``transformers``."""
    heads = config.num_attention_heads
    return Shape(
        config.hidden_size,
        config.num_hidden_layers,
        heads,
        config.num_key_value_heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
        config.intermediate_size,
        config.vocab_size,
    )


def answer_tflop(shape: Shape, mode: ReuseMode, usage: Usage, question_len: int) -> float:
    """Rows of the context see half of it, those of the question all of it; a mode that goes by the question's
    attention reads it twice. Without what an auxiliary model takes."""
    total = usage.prompt_tokens
    of_context = max(0, usage.recomputed_tokens - question_len)
    rows = of_context + question_len
    flops = shape.flops(rows, (of_context * total // 2 + question_len * total) // rows)
    flops += max(0, usage.generated_tokens - 1) * shape.flops(1, total + usage.generated_tokens // 2)
    if mode.row.chooser is Chooser.QUESTION:
        flops += shape.flops(question_len, total)
    return flops / TERA
