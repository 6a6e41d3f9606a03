"""Request-side adapters (LoRA, arXiv 2106.09685): what one adds to which linear layers of which model.

Such an adapter acts on the private rows of requests that name it (question, tokens computed anew, scoring,
generated tokens), never on stored KV: see ``shared.engine.model.adapting``. Its files are PEFT's
(``lora_files``). Shapes: I inputs and O outputs of a linear layer, P rows, r rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from shared.errors import ModelMismatch
from shared.kv_types import KvContext

Shape = tuple[int, int]


class Site(NamedTuple):
    """A linear layer of a model: the one called ``path`` (``self_attn.q_proj``) in decoder layer
    ``layer``."""

    layer: int
    path: str


@dataclass(frozen=True, slots=True)
class LoraPair:
    """Adds ``scale · B·A·x`` to what a linear layer makes of x. PEFT's scale is ``lora_alpha / r``, under
    ``use_rslora`` ``lora_alpha / √r``."""

    a_rI: Tensor
    b_Or: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.a_rI.shape[0]

    @property
    def shape(self) -> Shape:
        """Of the linear layer's weight, [O, I]."""
        return self.b_Or.shape[0], self.a_rI.shape[1]

    def delta(self) -> Tensor:
        """Returns what a copy of the weight with the adapter merged has more [O, I]."""
        return self.scale * (self.b_Or @ self.a_rI)


class LowRank(NamedTuple):
    """A pair where the model computes: adds B·A·x; the scale is in B."""

    a_rI: Tensor
    b_Or: Tensor

    def __call__(self, x_PI: Tensor) -> Tensor:
        """In the type of ``x_PI``."""
        return linear(linear(x_PI.to(self.a_rI.dtype), self.a_rI), self.b_Or).to(x_PI.dtype)


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """Facts on how an adapter was made; PEFT's own files have no place for it.

    fingerprint: of the base model (``LoadedModel.fingerprint``); empty: unknown, then shapes alone tell
    whether it fits. kv_context: what the chunks it was trained over were computed behind. recipe: settings of
    the training, for readers.
    """

    fingerprint: str = ""
    kv_context: KvContext | None = None
    recipe: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """``base``: name or path of the base model, for readers."""

    name: str
    pairs: Mapping[Site, LoraPair]
    base: str = ""
    facts: AdapterFacts = field(default_factory=AdapterFacts)

    @property
    def rank(self) -> int:
        """The largest."""
        return max(pair.rank for pair in self.pairs.values())

    @property
    def paths(self) -> list[str]:
        """The linear layers that it changes in any decoder layer."""
        return sorted({site.path for site in self.pairs})

    @property
    def num_parameters(self) -> int:
        return sum(pair.a_rI.numel() + pair.b_Or.numel() for pair in self.pairs.values())

    def check_base(self, shapes: Mapping[Site, Shape], fingerprint: str) -> None:
        """
        shapes: of the linear layers that the model has.

        Raises:
            ModelMismatch: it was made for another model; names what differs, and the remedy.
        """
        made_for = f" ({self.base})" if self.base else ""
        remedy = f"serve it with the model that it was trained on{made_for}, or train one on this model"
        if self.facts.fingerprint not in ("", fingerprint):
            raise ModelMismatch(
                f"adapter {self.name!r}: fingerprint: it was trained on a model with "
                f"{self.facts.fingerprint}, this one has {fingerprint} (weights, their type, rotation): "
                f"{remedy}"
            )
        num_layers = 1 + max((site.layer for site in shapes), default=-1)
        paths = {site.path for site in shapes}
        for site, pair in sorted(self.pairs.items(), key=lambda item: item[0]):
            if site.path not in paths:
                raise ModelMismatch(
                    f"adapter {self.name!r}: target_modules: the model has no {site.path!r}; it has "
                    f"{', '.join(sorted(paths))}: {remedy}"
                )
            if site not in shapes:
                raise ModelMismatch(
                    f"adapter {self.name!r}: it has weights of layer {site.layer}, counted from 0, and the "
                    f"model has {num_layers} layers: {remedy}"
                )
            if shapes[site] != pair.shape:
                raise ModelMismatch(
                    f"adapter {self.name!r}: layer {site.layer}, {site.path}: it is made for weights of "
                    f"{_told(pair.shape)}, the model's are {_told(shapes[site])}: {remedy}"
                )


def linear_shapes(layers: Iterable[torch.nn.Module]) -> dict[Site, Shape]:
    """Returns the weights' shapes of the linear layers that see every row of a step, which are those directly
    within attention and MLP: what adapters may change. Of a model that is not packed yet."""
    return {
        Site(number, path): (module.out_features, module.in_features)
        for number, layer in enumerate(layers)
        for path, module in layer.named_modules()
        if type(module) is torch.nn.Linear and path.count(".") == 1
    }


def _told(shape: Shape) -> str:
    return f"{shape[0]} × {shape[1]}"
