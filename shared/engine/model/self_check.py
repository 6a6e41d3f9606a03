"""Proof at load that the engine computes what the model computes, layer by layer and as a whole.

Shapes: H heads, R rows, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shared.engine.attention import Lane, StepPlan
from shared.engine.backends.reference import ReferenceBackend
from shared.engine.kv.branch import Branch, Placement
from shared.engine.model.adapting import NOTHING_ADAPTED, AdaptedGroup, AdaptedRows, AdapterWeights
from shared.engine.model.model import LoadedModel
from shared.engine.model.packing import PackedLinear
from shared.engine.model.rope import Rotation
from shared.engine.model.rounding import TOLERANCE, relative_error
from shared.errors import ModelUnsupported

_ROWS = 8
_COMPANIES = (2, 5, 16, 200)  # rows that go through a layer together, of which so many at most …
_ALONE = 16  # … go through it alone


def check_model(model: LoadedModel) -> None:
    """
    Raises:
        ModelUnsupported: a layer's rotation, or the whole forward pass, is not reproduced; says which and by
        how much.
    """
    spec = model.spec
    rotation = spec.rotation()
    last = min(spec.max_positions, 2000) - 1
    for layer in range(spec.num_layers):
        _check_rotation(model, layer, rotation, torch.linspace(0, last, _ROWS).long().to(spec.device))
    _check_forward(model, distance=last // 2)


def rows_are_independent(model: LoadedModel) -> bool:
    """All products are row-wise ones, and rows that go through the first layer and the head together have the
    bits that each has alone, which in the layer are those of passes with adapters, too."""
    if any(parameter.dim() > 1 for parameter in model.hf_model.model.layers.parameters()):
        return False
    if any(isinstance(module, PackedLinear) for module in model.hf_model.modules()):
        return False
    spec, width = model.spec, model.hf_model.config.hidden_size
    draw = torch.Generator().manual_seed(0)
    hidden_RE = torch.randn(max(_COMPANIES), width, generator=draw).to(spec.device, spec.dtype)
    alone_RV = torch.cat([_without_attention(model, row_E[None]) for row_E in hidden_RE[:_ALONE]])
    return all(
        torch.equal(_without_attention(model, hidden_RE[:num_rows])[:_ALONE], alone_RV[:num_rows])
        and _same_with_adapters(model, hidden_RE[:num_rows])
        for num_rows in _COMPANIES
    )


def _same_with_adapters(model: LoadedModel, hidden_RE: Tensor) -> bool:
    """The first layer gives its rows the same bits in a pass that has adapters, which add nothing here."""
    nothing = AdaptedGroup(AdapterWeights({}, model.spec.device), torch.empty(0, dtype=torch.long), 0)
    plain, adapted = _Own(), _Own(AdaptedRows((nothing,)))
    return torch.equal(model.run_layer(0, hidden_RE, plain), model.run_layer(0, hidden_RE, adapted))


def _without_attention(model: LoadedModel, hidden_RE: Tensor) -> Tensor:
    """Logits behind the first layer, where every row attends to its own query alone."""
    return model.logits(model.run_layer(0, hidden_RE, _Own()))


class _Own:
    """Stands in for a step plan."""

    token_ids: Sequence[int] = ()

    def __init__(self, adapted: AdaptedRows = NOTHING_ADAPTED) -> None:
        self.adapted = adapted

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        return q_HRD


class _Capture:
    """Stands in for a step plan and keeps what a layer hands to attention."""

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        self.q_HRD, self.k_KRD = q_HRD, k_KRD
        return torch.zeros_like(q_HRD)


def _check_rotation(model: LoadedModel, layer: int, rotation: Rotation, positions_R: Tensor) -> None:
    """The layer's own q and k at these positions are our rotation of its q and k at position 0."""
    hf_model, spec = model.hf_model, model.spec
    generator = torch.Generator().manual_seed(layer)
    hidden = torch.randn(1, _ROWS, hf_model.config.hidden_size, generator=generator).to(
        spec.device, spec.dtype
    )
    rotated, at_zero = (
        _captured(hf_model, layer, hidden, positions[None])
        for positions in (positions_R, torch.zeros_like(positions_R))
    )
    angles = rotation.angles(positions_R)
    for theirs, base in ((rotated.q_HRD, at_zero.q_HRD), (rotated.k_KRD, at_zero.k_KRD)):
        error = relative_error(rotation.rotate(base, angles), theirs)
        if not error < TOLERANCE[spec.dtype]:
            raise ModelUnsupported(
                f"layer {layer} does not rotate its queries and keys as RoPE over halves does "
                f"(relative error {error:.2g}): "
                "an interleaved or modified layout, or a layer without positions"
            )


def _captured(hf_model: Any, layer: int, hidden: Tensor, position_ids: Tensor) -> _Capture:
    capture = _Capture()
    cos_sin = hf_model.model.rotary_emb(hidden, position_ids=position_ids)
    hf_model.model.layers[layer](
        hidden, attention_mask=None, position_embeddings=cos_sin, use_cache=False, kvquilt_step=capture
    )
    if not hasattr(capture, "q_HRD"):
        raise ModelUnsupported(
            f"layer {layer} does not call the registered attention function; its attention cannot be "
            "taken over"
        )
    return capture


def _check_forward(model: LoadedModel, distance: int) -> None:
    """Logits of a short run of tokens, the second half of them ``distance`` positions further on."""
    spec = model.spec
    ids_R = torch.randint(spec.vocab_size, (2 * _ROWS,), generator=torch.Generator().manual_seed(0)).to(
        spec.device
    )
    positions_R = torch.arange(2 * _ROWS, device=spec.device)
    positions_R[_ROWS:] += max(0, distance - 2 * _ROWS)
    mask = torch.ones(2 * _ROWS, 2 * _ROWS, dtype=torch.bool, device=spec.device).tril()[None, None]
    theirs_RV = (
        model.hf_model(ids_R[None], position_ids=positions_R[None], attention_mask=mask, use_cache=False)
        .logits[0]
        .float()
    )

    first = Branch(spec, tuple(ids_R[:_ROWS].tolist()), 0)
    first_RV = _run(model, first)
    second = Branch(
        spec, tuple(ids_R[_ROWS:].tolist()), int(positions_R[_ROWS]), (Placement(first.segment, 0),)
    )
    error = relative_error(torch.cat([first_RV, _run(model, second)]), theirs_RV)
    if not error < TOLERANCE[spec.dtype] * 2:
        raise ModelUnsupported(
            f"the engine's logits differ from the model's own (relative error {error:.2g}): its layers "
            "do something around "
            "attention that the engine does not reproduce"
        )


def _run(model: LoadedModel, branch: Branch) -> Tensor:
    lane = Lane(branch, 0, len(branch.pending))
    plan = StepPlan([lane], ReferenceBackend(model.spec))
    logits_RV = model.logits(model.forward(plan))
    lane.advance()
    return logits_RV
