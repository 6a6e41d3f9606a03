"""Keeps what is learned of a model, in float32, and makes of it the weights that the model computes with
while it is trained: in its own type, as they will serve.

::

    masters (float32)    whole model: W         LoRA: A, B
    weights that serve   W                      W₀ + alpha / rank · B·A       rounded to the model's type

Gradients of the weights are handed on to the masters as soon as there are any, in float32, so passes add up
there. Shapes: I inputs and O outputs of a linear layer, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from services.training.adapter.lora import TrainedAdapter
from services.training.sft.settings import SftSettings
from shared.engine.model.model import LoadedModel
from shared.errors import ConfigError


class LearnedWeights(Protocol):
    def parameters(self) -> Iterator[Tensor]:
        """The masters."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """They by name."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None: ...

    def apply(self) -> None:
        """Makes the model's weights what the masters say."""
        ...


def learned_weights(model: LoadedModel, settings: SftSettings) -> LearnedWeights:
    """
    Raises:
        ConfigError: the model has no such linear layers, or is in float16.
    """
    if model.spec.dtype == torch.float16:
        raise ConfigError(
            "generator.engine.dtype: gradients of float16 vanish; train in bfloat16 or float32, and serve in "
            "that"
        )
    model.hf_model.requires_grad_(False)
    return MergedLora(model, settings) if settings.rank else WholeModel(model)


class WholeModel:
    """Weights in float32 are their own masters."""

    def __init__(self, model: LoadedModel) -> None:
        self._weights: dict[str, Parameter] = dict(model.hf_model.named_parameters())
        self._masters: dict[str, Tensor] = {}
        for name, weight in self._weights.items():
            weight.requires_grad_(True)
            self._masters[name] = weight
            if weight.dtype != torch.float32:
                self._masters[name] = master = weight.detach().float().requires_grad_(True)
                weight.register_post_accumulate_grad_hook(_handing_on(master))  # type: ignore[no-untyped-call]

    def parameters(self) -> Iterator[Tensor]:
        yield from self._masters.values()

    def state(self) -> dict[str, Tensor]:
        return dict(self._masters)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, master in self._masters.items():
            master.copy_(state[name])

    @torch.no_grad()
    def apply(self) -> None:
        for name, master in self._masters.items():
            if master is not self._weights[name]:
                self._weights[name].copy_(master)


class MergedLora:
    """
    Raises:
        ConfigError: the model has no such linear layers.
    """

    def __init__(self, model: LoadedModel, settings: SftSettings) -> None:
        self._lora = TrainedAdapter(model, settings)
        self._merged: list[tuple[Parameter, Tensor, Tensor, Tensor]] = []
        for site, (a_rI, b_Or) in self._lora.pairs.items():
            layer = model.hf_model.model.layers[site.layer]
            weight = layer.get_submodule(site.path).weight.requires_grad_(True)
            weight.register_post_accumulate_grad_hook(self._handing_on(a_rI, b_Or))
            self._merged.append((weight, weight.detach().clone(), a_rI, b_Or))

    def parameters(self) -> Iterator[Tensor]:
        return self._lora.parameters()

    def state(self) -> dict[str, Tensor]:
        return self._lora.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._lora.load(state)

    @torch.no_grad()
    def apply(self) -> None:
        for weight, base, a_rI, b_Or in self._merged:
            weight.copy_(base.float() + self._lora.scale * (b_Or @ a_rI))

    def _handing_on(self, a_rI: Tensor, b_Or: Tensor) -> Callable[[Tensor], None]:
        def hand_on(weight: Tensor) -> None:
            assert weight.grad is not None
            gradient_OI = self._lora.scale * weight.grad.float()
            weight.grad = None
            _add(a_rI, b_Or.detach().T @ gradient_OI)
            _add(b_Or, gradient_OI @ a_rI.detach().T)

        return hand_on


def _handing_on(master: Tensor) -> Callable[[Tensor], None]:
    def hand_on(weight: Tensor) -> None:
        assert weight.grad is not None
        _add(master, weight.grad.float())
        weight.grad = None

    return hand_on


def _add(master: Tensor, gradient: Tensor) -> None:
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
