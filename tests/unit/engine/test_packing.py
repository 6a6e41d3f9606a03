"""Packed weights compute what plain ones do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from shared.engine import wrap_model
from shared.engine.host_memory import HostArena
from shared.engine.model import model as loaded_model
from shared.engine.model import packing
from shared.engine.model.packing import (
    FLOAT32,
    ONE_DNN,
    ROWWISE,
    PackedGatedMlp,
    Products,
    best_products,
    bfloat16_is_fast,
    can_pack,
    pack_linears,
    packed_bytes,
)
from shared.engine.model.rowwise import RowwiseGate, RowwiseLinear, rowwise_works
from tests.oracles import FAMILIES, as_dtype, tiny_model

CPU = torch.device("cpu")
ROUNDINGS = 1.5e-2


def _params(*able: tuple[str, Products, bool]) -> list[Any]:
    mark = pytest.mark.skipif
    return [
        pytest.param(products, id=name, marks=mark(not works, reason="no kernels for this processor"))
        for name, products, works in able
    ]


FUSED = _params(
    ("onednn", ONE_DNN, packing._one_dnn_works()),
    ("rowwise", ROWWISE, rowwise_works()),
)
PRODUCTS = [*FUSED, pytest.param(FLOAT32, id="float32")]


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).pow(2).mean().sqrt() / theirs.float().pow(2).mean().sqrt())


def linear(num_in: int, num_out: int, bias: bool) -> torch.nn.Linear:
    torch.manual_seed(num_in)
    return torch.nn.Linear(num_in, num_out, bias=bias).bfloat16().requires_grad_(False)


@pytest.mark.parametrize("num_rows", [1, 2, 7, 33, 128])
@pytest.mark.parametrize(("num_in", "num_out"), [(64, 96), (7, 5), (1, 1), (200, 1000)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("products", PRODUCTS)
@torch.inference_mode()
def test_a_packed_linear_is_the_same_linear(
    products: Products, num_rows: int, num_in: int, num_out: int, bias: bool
) -> None:
    plain, x = linear(num_in, num_out, bias), torch.randn(1, num_rows, num_in).bfloat16()
    exact = torch.nn.functional.linear(x.float(), plain.weight.float(), plain.bias.float() if bias else None)
    packed = products.linear(plain)(x)
    assert packed.dtype is torch.bfloat16
    assert difference(packed, exact) < 4e-3  # rounded once


class Mlp(torch.nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            linear(32, 80, bias),
            linear(32, 80, bias),
            linear(80, 32, bias),
        )
        self.act_fn = torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class OtherMlp(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.down_proj(self.act_fn(self.up_proj(x)) + self.gate_proj(x))
        return mixed


@torch.inference_mode()
def test_a_product_in_float32_goes_through_blocks_of_outputs_and_shares_the_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, x = linear(32, 50, bias=True), torch.randn(3, 5, 32).bfloat16()
    layer = FLOAT32.linear(plain)
    whole = layer(x)
    monkeypatch.setattr(packing, "_BLOCK_BYTES", 7 * 32 * 4)
    assert [len(range(50)[part]) for part in packing._blocks(50, 32)] == [7] * 7 + [1]
    assert whole.shape == (3, 5, 50)
    assert difference(layer(x), whole) < 1e-3
    assert layer.weight is plain.weight
    monkeypatch.setattr(packing, "_BLOCK_BYTES", 1)  # smaller than one output's weights
    assert difference(layer(x), whole) < 1e-3


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("products", FUSED)
@torch.inference_mode()
def test_a_gated_mlp_is_packed_as_one(products: Products, bias: bool) -> None:
    model, x = torch.nn.Sequential(Mlp(bias)), torch.randn(1, 9, 32).bfloat16()
    before = model(x)
    pack_linears(model, products, HostArena())
    assert isinstance(model[0], PackedGatedMlp)
    assert difference(model(x), before) < ROUNDINGS


@pytest.mark.skipif(best_products() is FLOAT32, reason="its MLPs are three layers")
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_gated_mlps_of_real_models_are_packed_as_one_if_their_activation_is_silu(activation: str) -> None:
    model = wrap_model(as_dtype(tiny_model("llama3", hidden_act=activation), torch.bfloat16)).hf_model.model
    assert [isinstance(layer.mlp, PackedGatedMlp) for layer in model.layers] == [activation == "silu"] * len(
        model.layers
    )


@pytest.mark.parametrize("products", PRODUCTS)
@torch.inference_mode()
def test_an_mlp_that_computes_something_else_keeps_its_forward(products: Products) -> None:
    model, x = torch.nn.Sequential(OtherMlp()), torch.randn(1, 9, 32).bfloat16()
    before = model(x)
    pack_linears(model, products, HostArena())
    assert isinstance(model[0], OtherMlp)
    assert isinstance(model[0].up_proj, products.linear)
    assert difference(model(x), before) < ROUNDINGS


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_loaded_model_is_packed_and_stays_itself(
    family: Any, products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_model, "best_products", lambda: products)
    plain = as_dtype(tiny_model(family), torch.bfloat16)
    packed = wrap_model(copy.deepcopy(plain))
    assert (packed_bytes(packed.hf_model) > 0) == (products is not FLOAT32)
    assert products is ROWWISE or not packed.rows_independent
    assert not [module for module in packed.hf_model.modules() if type(module) is torch.nn.Linear]
    ids = torch.arange(1, 30)[None]
    assert difference(packed.hf_model(ids).logits, plain(ids).logits) < 5e-2
    assert wrap_model(as_dtype(tiny_model(family), torch.bfloat16)).fingerprint == packed.fingerprint


@pytest.mark.skipif(best_products() is not ROWWISE, reason="others keep their weights themselves")
def test_weights_of_all_layers_lie_together() -> None:
    packed = wrap_model(as_dtype(tiny_model("llama3"), torch.bfloat16)).hf_model
    weights = [one._weight for one in packed.modules() if isinstance(one, (RowwiseGate, RowwiseLinear))]
    assert len(weights) > len(packed.model.layers)
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1


@pytest.mark.parametrize(
    ("level", "one_dnn", "best"),
    [
        (3, True, ROWWISE),
        (2, False, ROWWISE),
        (1, True, ONE_DNN),
        (1, False, ROWWISE),
        (0, True, ONE_DNN),
        (0, False, FLOAT32),
    ],
)
def test_the_fastest_products_that_work_here_are_taken(
    level: int, one_dnn: bool, best: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "best_level", lambda: level)
    monkeypatch.setattr(packing, "rowwise_works", lambda: level > 0)
    monkeypatch.setattr(packing, "_one_dnn_works", lambda: one_dnn)
    assert best_products() is best
    assert bfloat16_is_fast() == (best is not FLOAT32)


def test_other_types_and_devices_are_left_alone() -> None:
    assert not can_pack(CPU, torch.float32)
    assert not can_pack(torch.device("cuda"), torch.bfloat16)
    assert packed_bytes(wrap_model(tiny_model("llama3")).hf_model) == 0
