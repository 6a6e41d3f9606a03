"""An adapter while it is trained: in float32, whatever the model's type is.

Shapes: I inputs and O outputs of a linear layer, r rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from shared.engine.model.adapting import AdapterWeights
from shared.engine.model.lora import AdapterFacts, LoraAdapter, LoraPair, LowRank, Site, linear_shapes
from shared.engine.model.model import LoadedModel
from shared.errors import ConfigError


class LoraSettings(Protocol):
    """See ``AdapterSettings``."""

    @property
    def seed(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def targets(self) -> tuple[str, ...]: ...


class TrainedAdapter:
    """Begins by changing nothing: A at random by the seed, B zero. ``pairs``: A and B of every linear layer
    that it changes, to whose weight it adds ``scale`` · B·A.

    Raises:
        ConfigError: the model has no such linear layers.
    """

    def __init__(self, model: LoadedModel, settings: LoraSettings) -> None:
        self._model, self.scale = model, settings.alpha / settings.rank
        shapes = linear_shapes(model.hf_model.model.layers)
        _check_targets(settings.targets, {_last(site) for site in shapes})
        generator = torch.Generator().manual_seed(settings.seed)
        self.pairs: dict[Site, tuple[Tensor, Tensor]] = {}
        for site, (num_out, num_in) in sorted(shapes.items()):
            if not settings.targets or _last(site) in settings.targets:
                a_rI = (2 * torch.rand(settings.rank, num_in, generator=generator) - 1) / num_in**0.5
                b_Or = torch.zeros(num_out, settings.rank)
                device = model.spec.device
                self.pairs[site] = a_rI.to(device).requires_grad_(), b_Or.to(device).requires_grad_()

    def parameters(self) -> Iterator[Tensor]:
        for pair in self.pairs.values():
            yield from pair

    def weights(self) -> AdapterWeights:
        """As they serve, for gradients to flow through."""
        dtype, layers = self._model.spec.dtype, dict[int, dict[str, LowRank]]()
        for site, (a_rI, b_Or) in self.pairs.items():
            pair = LowRank(a_rI.to(dtype), (b_Or * self.scale).to(dtype))
            layers.setdefault(site.layer, {})[site.path] = pair
        return AdapterWeights(layers, self._model.spec.device)

    def adapter(self, name: str, base: str, facts: AdapterFacts, state: Mapping[str, Tensor]) -> LoraAdapter:
        """Of what was its ``state``."""
        pairs = {
            site: LoraPair(state[_key(site, "A")].detach(), state[_key(site, "B")].detach(), self.scale)
            for site in self.pairs
        }
        return LoraAdapter(name, pairs, base, facts)

    def state(self) -> dict[str, Tensor]:
        return {
            _key(site, half): x
            for site, pair in self.pairs.items()
            for half, x in zip("AB", pair, strict=True)
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


def _check_targets(targets: tuple[str, ...], there: set[str]) -> None:
    for target in targets:
        if target not in there:
            raise ConfigError(
                f"targets: the model has no linear layer {target!r}; it has {', '.join(sorted(there))}"
            )


def _last(site: Site) -> str:
    return site.path.rpartition(".")[2]


def _key(site: Site, half: str) -> str:
    return f"{site.layer}.{site.path}.{half}"
