"""Gives sizes of public models, and models and adapters with random weights, for benchmarks: time does not
depend on what the weights say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from shared.engine import wrap_model
from shared.engine.model.lora import LoraAdapter, LoraPair, Site
from shared.engine.model.model import LoadedModel
from shared.engine_config import Weights
from shared.measuring.rates import Rates

MAX_POSITIONS = 131_072


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder, by default Qwen2-0.5B's."""

    hidden: int = 896
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 4864
    vocab: int = 151_936
    family: Literal["qwen2", "llama"] = "qwen2"

    @property
    def layer_weights(self) -> int:
        attention = (
            self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim
            + self.heads * self.head_dim * self.hidden
        )
        return attention + 3 * self.hidden * self.mlp

    @property
    def kv_bytes_per_token(self) -> int:
        """In two-byte numbers."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def flops(self, rows: int, context: int) -> float:
        """Of ``rows`` tokens that each see ``context`` keys, and of one row of logits."""
        return (
            rows * self.layers * (2 * self.layer_weights + 4 * self.heads * self.head_dim * context)
            + 2 * self.hidden * self.vocab
        )

    def bytes_read(self, context: int, weight_bytes: int = 2) -> float:
        """Weights once, of so many bytes each, and the context's KV once, in two-byte numbers."""
        weights = self.layers * self.layer_weights + self.hidden * self.vocab
        return weight_bytes * weights + self.kv_bytes_per_token * context

    def ttft_limit_s(self, rows: int, context: int, rates: Rates) -> float:
        return rates.limit_s(self.flops(rows, context), self.bytes_read(context))


QWEN2_05B = Shape()
SMOLLM2_135M = Shape(
    hidden=576, layers=30, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocab=49_152, family="llama"
)
QWEN2_7B = Shape(hidden=3584, layers=28, heads=28, kv_heads=4, head_dim=128, mlp=18_944, vocab=152_064)
SHAPES: Mapping[str, Shape] = {"smollm2-135m": SMOLLM2_135M, "qwen2-0.5b": QWEN2_05B, "qwen2-7b": QWEN2_7B}


def build_model(shape: Shape, device: str = "cpu", weights: Weights = "exact") -> LoadedModel:
    """In this process, for the engine as a library."""
    return wrap_model(random_model(shape, device), weights=weights)


def save_model(shape: Shape, directory: Path) -> None:
    """A model directory as ``transformers`` writes it, without a tokenizer: it is served by token ids
    only."""
    random_model(shape).save_pretrained(directory)


def random_model(shape: Shape, device: str = "cpu") -> Any:
    """A stock ``transformers`` model, bf16, drawn on the device itself; there the same weights every time."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.mlp,
        "vocab_size": shape.vocab,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
    with _default_dtype(torch.bfloat16), torch.device(device):
        if shape.family == "llama":
            return LlamaForCausalLM(LlamaConfig(**sizes, head_dim=shape.head_dim)).eval().to(device)
        return Qwen2ForCausalLM(Qwen2Config(**sizes)).eval().to(device)


def random_adapter(
    shapes: Mapping[Site, tuple[int, int]],
    rank: int,
    name: str = "random",
    seed: int = 0,
    strength: float = 0.5,
) -> LoraAdapter:
    """Of linear layers with weights of these shapes [O, I] (``LoadedModel.linear_shapes``). What it adds to a
    weight of usual size is about ``2 · strength`` times as large as the weight."""
    generator = torch.Generator().manual_seed(seed)
    pairs: dict[Site, LoraPair] = {}
    for site, (num_out, num_in) in sorted(shapes.items()):
        a_rI = torch.randn(rank, num_in, generator=generator) / num_in**0.5
        b_Or = torch.randn(num_out, rank, generator=generator) * strength / rank**0.5
        pairs[site] = LoraPair(a_rI, b_Or, 2.0)
    return LoraAdapter(name, pairs)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
