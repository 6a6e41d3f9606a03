"""Row-wise products are those of torch, and no row's bits depend on the rows beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear, rms_norm, silu

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.model import linear_kernels, rowwise
from shared.engine.model.linear_kernels import LEVELS
from shared.engine.model.packing import ROWWISE, best_products, packed_bytes
from shared.engine.model.rounding import relative_error
from shared.engine.model.rowwise import RowwiseGate, RowwiseLinear, RowwiseNorm, rowwise_works
from shared.engine.model.self_check import rows_are_independent
from tests.emulated_tiles import TESTED
from tests.oracles import FAMILIES, as_dtype, tiny_model

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not rowwise_works(), reason="no kernels for this processor"),
]
ONE_ROUNDING = 4e-3
ANY = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
ROWS = st.one_of(st.integers(1, 30), st.integers(1, 450))


@pytest.fixture(autouse=True, params=TESTED, ids=lambda n: LEVELS[n])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the kernels, each that can run here."""
    level: int = request.param
    monkeypatch.setattr(linear_kernels, "best_level", lambda: level)
    return level


def layer(num_in: int, num_out: int, bias: bool, seed: int) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(num_in, num_out, bias=bias).bfloat16().requires_grad_(False)


def exact(plain: torch.nn.Linear, x_RI: torch.Tensor) -> torch.Tensor:
    bias = None if plain.bias is None else plain.bias.float()
    return linear(x_RI.float(), plain.weight.float(), bias)


@ANY
@given(
    num_rows=ROWS,
    num_in=st.one_of(st.integers(1, 40), st.integers(1, 700)),
    widths=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    bias=st.booleans(),
    threads=st.integers(1, 3),
)
@torch.inference_mode()
def test_layers_of_the_same_rows(
    num_rows: int, num_in: int, widths: list[int], bias: bool, threads: int
) -> None:
    plain = [layer(num_in, width, bias, seed) for seed, width in enumerate(widths)]
    x = torch.randn(1, num_rows, num_in).bfloat16()
    torch.set_num_threads(threads)
    ours = RowwiseLinear(*plain)(x)
    torch.set_num_threads(1)
    assert ours.shape == (1, num_rows, sum(widths))
    assert ours.dtype is torch.bfloat16
    assert relative_error(ours[0], torch.cat([exact(one, x[0]) for one in plain], 1)) < ONE_ROUNDING


@ANY
@given(num_rows=ROWS, num_in=st.integers(1, 300), num_out=st.integers(1, 200), bias=st.booleans())
@torch.inference_mode()
def test_a_gate_and_what_goes_through_it(num_rows: int, num_in: int, num_out: int, bias: bool) -> None:
    gate, up = (layer(num_in, num_out, bias, seed) for seed in range(2))
    x_RI = 3 * torch.randn(num_rows, num_in).bfloat16()
    ours = RowwiseGate(gate, up)
    assert relative_error(ours(x_RI), silu(exact(gate, x_RI)) * exact(up, x_RI)) < ONE_ROUNDING
    for one, plain in zip(ours.both(x_RI), (gate, up), strict=True):
        assert torch.equal(one, RowwiseLinear(plain)(x_RI))


@torch.inference_mode()
def test_a_gate_that_is_wide_open_or_shut() -> None:
    gate, up = (layer(2, 1, False, seed) for seed in range(2))
    gate.weight.copy_(torch.tensor([[1.0, 0.0]]))
    up.weight.copy_(torch.tensor([[0.0, 1.0]]))
    x_R = torch.tensor([0.0, -0.0, 1.0, -1.0, 88.0, -88.0, -200.0, 3e38, -3e38]).bfloat16()
    x_RI = torch.stack((x_R, torch.ones_like(x_R)), 1)
    ours = RowwiseGate(gate, up)(x_RI)[:, 0].float()
    assert torch.allclose(ours, silu(x_R.float()), rtol=5e-3, atol=1e-30)


@pytest.mark.parametrize("num_out", [1, 32, 7 * 32 + 3])
@torch.inference_mode()
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(num_out: int) -> None:
    gate, up = (layer(203, num_out, True, seed) for seed in range(2))
    x_RI = torch.randn(200, 203).bfloat16()
    for product in (RowwiseLinear(gate, up), RowwiseGate(gate, up)):
        alone_RO = torch.cat([product(x_I[None]) for x_I in x_RI])
        for num_rows in (*range(2, 40), 191, 192, 193, 200):
            assert torch.equal(product(x_RI[-num_rows:]), alone_RO[-num_rows:])


@ANY
@given(num_rows=ROWS, width=st.integers(1, 700), eps=st.sampled_from([1e-6, 1e-5, 0.5]))
@torch.inference_mode()
def test_a_norm(num_rows: int, width: int, eps: float) -> None:
    weight_E, x_RE = torch.randn(width).bfloat16(), 5 * torch.randn(num_rows, width).bfloat16()
    norm = RowwiseNorm(weight_E, eps)
    ours = norm(x_RE)
    assert relative_error(ours, rms_norm(x_RE.float(), (width,), weight_E.float(), eps)) < ONE_ROUNDING
    assert torch.equal(norm(x_RE[-1:]), ours[-1:])
    assert torch.equal(norm(x_RE.t().contiguous().t()), ours)


@torch.inference_mode()
def test_rows_apart_in_memory_no_rows_and_a_number_that_is_none() -> None:
    product, x_RI = RowwiseLinear(layer(37, 20, True, 0)), torch.randn(6, 74).bfloat16()
    assert torch.equal(product(x_RI[:, ::2]), product(x_RI[:, ::2].contiguous()))
    assert product(x_RI[:0, ::2]).shape == (0, 20)
    x_RI[2, 72] = float("nan")
    assert product(x_RI[:, ::2]).isnan().all(1).tolist() == [False, False, True, False, False, False]


@pytest.mark.skipif(best_products() is not ROWWISE, reason="oneDNN serves on this processor")
class TestModels:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_rows_of_real_models_are_independent(self, family: str) -> None:
        assert wrap_model(as_dtype(tiny_model(family), torch.bfloat16)).rows_independent

    def test_queries_keys_and_values_are_one_product(self) -> None:
        attention = (
            wrap_model(as_dtype(tiny_model("qwen2"), torch.bfloat16)).hf_model.model.layers[0].self_attn
        )
        asked = [attention.q_proj, attention.k_proj, attention.v_proj]
        assert len({id(module) for one in asked for module in one.children()}) == 1

    def test_weights_are_there_once(self) -> None:
        plain = as_dtype(tiny_model("llama", tie_word_embeddings=True), torch.bfloat16)
        num_bytes = sum(m.weight.nbytes for m in plain.modules() if type(m) is torch.nn.Linear)
        assert num_bytes <= packed_bytes(wrap_model(plain).hf_model) < 1.3 * num_bytes  # outputs in units

    def test_rows_that_change_with_their_company_are_found(self) -> None:
        model = wrap_model(as_dtype(tiny_model("llama"), torch.bfloat16))
        norm = model.hf_model.model.norm

        class Company(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return norm(x) * (1.0 if x.shape[1] < 16 else 1.01)

        assert rows_are_independent(model)
        model.hf_model.model.norm = Company()
        assert not rows_are_independent(model)

    @pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
    def test_experts_have_products_of_their_own(self, family: str) -> None:
        assert not wrap_model(as_dtype(tiny_model(family), torch.bfloat16)).rows_independent

    def test_other_kernels_serve_where_these_do_not_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        packed = rowwise._packed
        monkeypatch.setattr(rowwise, "_packed", lambda weight_OI: packed(weight_OI.roll(1, 0)))
        rowwise.rowwise_works.cache_clear()
        try:
            assert best_products() is not ROWWISE
            model = wrap_model(as_dtype(tiny_model("llama"), torch.bfloat16))
            assert not model.rows_independent
            Engine(model, EngineConfig(batch_invariant=True)).close()
        finally:
            rowwise.rowwise_works.cache_clear()
