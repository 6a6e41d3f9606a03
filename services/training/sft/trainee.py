"""A model as the training loop fine-tunes it: its loss is the cross-entropy of the answers' tokens, over
chunks placed as they are served.

Shapes: R rows of a pass, E hidden size, P predictions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from services.training.sft.model_files import ModelCard, write_model
from services.training.sft.samples import Predictions, SftSample
from services.training.sft.settings import SftSettings
from services.training.sft.weights import learned_weights
from services.training.trainee import LossTally
from services.training.twin import TwinStep
from shared.engine.model.model import LoadedModel
from shared.kv_types import KvContext

_AT_ONCE = 1024
"""Predictions whose logits are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class SftModel:
    """The model that is fine-tuned. ``source``: its directory or hub id; ``base``: its name, for readers;
    ``mixture``: lines that tell what it is trained on, for readers."""

    model: LoadedModel
    source: str
    kv_context: KvContext
    base: str = ""
    mixture: tuple[str, ...] = ()


class SftTrainee:
    """
    Raises:
        ConfigError: targets that the model does not have.
    """

    measure, untrained = "cross-entropy", "before"

    def __init__(self, tuned: SftModel, settings: SftSettings) -> None:
        self._tuned, self._settings = tuned, settings
        self._model = tuned.model
        self._base_fingerprint = tuned.model.fingerprint  # its weights are about to change
        self._weights = learned_weights(tuned.model, settings)
        self._recompute = settings.recompute_activations

    def parameters(self) -> Iterator[Tensor]:
        return self._weights.parameters()

    def state(self) -> Mapping[str, Tensor]:
        return self._weights.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._weights.load(state)

    def made_of(self) -> dict[str, str]:
        mixture = hashlib.sha256(repr(self._tuned.mixture).encode()).hexdigest()[:16]
        return {
            "model": self._base_fingerprint,
            "kv_context": self._tuned.kv_context.value,
            "mixture": mixture,
        }

    def loss(self, lessons: Sequence[SftSample]) -> Tensor:
        losses = [
            _recomputed(self._losses, *part) if self._recompute else self._losses(*part)
            for part in self._parts(lessons)
        ]
        return torch.stack([part_P.sum() for part_P in losses]).sum()

    @torch.no_grad()
    def evaluate(self, lessons: Sequence[SftSample]) -> LossTally:
        losses, alike = [], []
        for hidden_PE, targets_P in self._parts(lessons):
            logits_PV = self._model.logits(hidden_PE)
            losses.append(F.cross_entropy(logits_PV, targets_P, reduction="sum"))
            alike.append((logits_PV.argmax(-1) == targets_P).sum().to(logits_PV))
        loss, num_alike = torch.stack([torch.stack(losses).sum(), torch.stack(alike).sum()]).tolist()
        return LossTally(loss, num_alike, sum(lesson.num_tokens for lesson in lessons))

    def release(self) -> bool:
        """From here on layers are computed again for their gradients."""
        self._model.hf_model.zero_grad(set_to_none=True)  # of a pass that was broken off
        before, self._recompute = self._recompute, True
        return not before

    def write(self, out: Path, state: Mapping[str, Tensor], recipe: Mapping[str, str]) -> None:
        now = {name: x.detach().clone() for name, x in self.state().items()}
        self.load(state)
        self._weights.apply()
        tuned = self._tuned
        card = ModelCard(
            tuned.base,
            self._base_fingerprint,
            LoadedModel(self._model.hf_model, self._model.spec).fingerprint,
            tuned.kv_context,
            dict(recipe),
            tuned.mixture,
        )
        write_model(self._model.hf_model, tuned.source, out, card)
        self.load(now)
        self._weights.apply()

    def _parts(self, lessons: Sequence[SftSample]) -> Iterator[tuple[Tensor, Tensor]]:
        """Hidden states in front of what is to be predicted, and that, of all lessons in one pass."""
        self._weights.apply()
        step = TwinStep([one.request(self._settings.reuse) for one in lessons], self._model.spec)
        predictions = Predictions.of(step, lessons, self._model.spec.device)
        hidden_PE = self._hidden(step).index_select(0, predictions.rows_P)
        parts = (torch.split(x, _AT_ONCE) for x in (hidden_PE, predictions.targets_P))
        yield from zip(*parts, strict=True)

    def _hidden(self, step: TwinStep) -> Tensor:
        """As ``LoadedModel.forward``."""
        if not self._recompute or not torch.is_grad_enabled():
            return self._model.forward(step)
        hidden_RE = self._model.embed(step.token_ids)
        for layer in range(self._model.spec.num_layers):
            hidden_RE = _recomputed(self._model.run_layer, layer, hidden_RE, step)
        return hidden_RE

    def _losses(self, hidden_PE: Tensor, targets_P: Tensor) -> Tensor:
        return F.cross_entropy(self._model.logits(hidden_PE), targets_P, reduction="none")


def _recomputed(compute: Callable[..., Tensor], *args: object) -> Tensor:
    result: Tensor = checkpoint(compute, *args, use_reentrant=False)
    return result
