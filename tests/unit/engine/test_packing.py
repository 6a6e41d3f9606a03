"""Packed weights compute what plain ones do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from shared.engine import wrap_model
from shared.engine.host_memory import HostArena
from shared.engine.model.packing import (
    ONE_DNN,
    ROWWISE,
    PackedGatedMlp,
    Products,
    can_pack,
    pack_linears,
    packed_bytes,
)
from shared.engine.model.rowwise import RowwiseGate, RowwiseLinear, rowwise_works
from tests.oracles import FAMILIES, as_dtype, tiny_model

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not can_pack(CPU, torch.bfloat16), reason="oneDNN has no bfloat16 on this processor"
)
ROUNDINGS = 1.5e-2
PRODUCTS = [
    pytest.param(ONE_DNN, id="onednn"),
    pytest.param(
        ROWWISE,
        id="rowwise",
        marks=pytest.mark.skipif(not rowwise_works(), reason="no kernels for this processor"),
    ),
]


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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("products", PRODUCTS)
@torch.inference_mode()
def test_a_gated_mlp_is_packed_as_one(products: Products, bias: bool) -> None:
    model, x = torch.nn.Sequential(Mlp(bias)), torch.randn(1, 9, 32).bfloat16()
    before = model(x)
    pack_linears(model, products, HostArena())
    assert isinstance(model[0], PackedGatedMlp)
    assert difference(model(x), before) < ROUNDINGS


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


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_loaded_model_is_packed_and_stays_itself(family: Any) -> None:
    plain = as_dtype(tiny_model(family), torch.bfloat16)
    packed = wrap_model(copy.deepcopy(plain))
    assert packed_bytes(packed.hf_model) > 0
    assert not [module for module in packed.hf_model.modules() if type(module) is torch.nn.Linear]
    ids = torch.arange(1, 30)[None]
    assert difference(packed.hf_model(ids).logits, plain(ids).logits) < 5e-2
    assert wrap_model(as_dtype(tiny_model(family), torch.bfloat16)).fingerprint == packed.fingerprint


@pytest.mark.skipif(not rowwise_works(), reason="oneDNN keeps its weights itself")
def test_weights_of_all_layers_lie_together() -> None:
    packed = wrap_model(as_dtype(tiny_model("llama3"), torch.bfloat16)).hf_model
    weights = [one._weight for one in packed.modules() if isinstance(one, (RowwiseGate, RowwiseLinear))]
    assert len(weights) > len(packed.model.layers)
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1


def test_other_types_and_devices_are_left_alone() -> None:
    assert not can_pack(CPU, torch.float32)
    assert not can_pack(torch.device("cuda"), torch.bfloat16)
    assert packed_bytes(wrap_model(tiny_model("llama3")).hf_model) == 0
