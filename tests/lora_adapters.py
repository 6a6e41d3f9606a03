"""Adapters for tests: random ones that fit a model, and copies of a stock model with one merged."""

from __future__ import annotations

import copy
from typing import Any

import torch

from shared.engine.model.lora import LoraAdapter, linear_shapes
from shared.measuring import shapes as measuring


def random_adapter(
    hf_model: Any,
    name: str = "qa",
    seed: int = 0,
    rank: int = 4,
    strength: float = 0.5,
    only: tuple[str, ...] = (),
) -> LoraAdapter:
    """Of all linear layers, or those whose last name is one of ``only``, in every decoder layer."""
    shapes = {
        site: shape
        for site, shape in linear_shapes(hf_model.model.layers).items()
        if not only or site.path.rpartition(".")[2] in only
    }
    return measuring.random_adapter(shapes, rank, name, seed, strength)


def merged(hf_model: Any, adapter: LoraAdapter) -> Any:
    """A stock model whose weights have the adapter in them. Where ``tests.oracles`` store prefix and chunks,
    they do so by the model without it."""
    model = copy.deepcopy(hf_model)
    model.__dict__["stored_by"] = hf_model  # not as a part of it
    with torch.no_grad():
        for site, pair in adapter.pairs.items():
            weight = model.model.layers[site.layer].get_submodule(site.path).weight
            delta_OI = pair.scale * (pair.b_Or.float() @ pair.a_rI.float())
            weight.copy_((weight.float() + delta_OI).to(weight.dtype))
    return model
