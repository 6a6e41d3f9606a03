"""Products with int8 weights are those with the numbers that these stand for."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

from shared.engine import Engine, EngineConfig, load_model, wrap_model
from shared.engine.model import int8, linear_kernels
from shared.engine.model.int8 import (
    MOST_ROWS,
    Int8Gate,
    Int8Linear,
    Room,
    int8_bytes,
    quantised,
    round_weights,
)
from shared.engine.model.linear_kernels import LEVELS, UNIT, best_level
from shared.engine.model.rounding import relative_error
from shared.errors import ConfigError, ModelMismatch, ModelUnsupported
from tests.emulated_tiles import TESTED
from tests.lora_adapters import random_adapter
from tests.oracles import FAMILIES, as_dtype, tiny_model
from tests.soft_packets import random_packets

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not TESTED, reason="no kernels of int8 weights on this processor"),
]
ONE_ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}


def linear(num_in: int, num_out: int, dtype: torch.dtype, bias: bool = True, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(num_in, num_out, bias=bias).to(dtype).requires_grad_(False)


def twin_of(plain: torch.nn.Linear) -> torch.nn.Linear:
    """In float32, over the numbers that the int8 weights stand for."""
    twin = copy.deepcopy(plain).float()
    int8_OI, scale_O = quantised(plain.weight)
    twin.weight = torch.nn.Parameter(int8_OI.float() * scale_O[:, None], requires_grad=False)
    return twin


class TestQuantising:
    def test_a_weight_is_off_by_half_a_step_at_most_and_the_largest_by_nothing(self) -> None:
        weight_OI = torch.randn(40, 33, generator=torch.Generator().manual_seed(1))
        int8_OI, scale_O = quantised(weight_OI)
        off_OI = (int8_OI * scale_O[:, None] - weight_OI).abs()
        assert bool((off_OI <= scale_O[:, None] * 0.5001).all())
        assert int(int8_OI.min()) >= -127
        assert bool((int8_OI.abs().amax(1) == 127).all())

    def test_outputs_do_not_share_a_scale(self) -> None:
        weight_OI = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))
        weight_OI[0] *= 1000
        int8_OI, scale_O = quantised(weight_OI)
        assert relative_error(int8_OI[1] * scale_O[1], weight_OI[1]) < 1e-2

    def test_an_output_of_zeros_stays_zero(self) -> None:
        int8_OI, scale_O = quantised(torch.zeros(3, 5))
        assert not int8_OI.any()
        assert not scale_O.any()
        plain = linear(5, 3, torch.float32)
        plain.weight.data.zero_()
        assert torch.equal(Int8Linear(plain, room=Room())(torch.randn(2, 5)), plain.bias.expand(2, 3))


@pytest.mark.parametrize("level", TESTED, ids=lambda level: LEVELS[level])
@pytest.mark.parametrize("dtype", ONE_ROUNDING, ids=str)
class TestKernels:
    @settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        num_rows=st.one_of(st.integers(1, 20), st.integers(1, MOST_ROWS + 30)),
        num_in=st.one_of(st.integers(1, 40), st.integers(1, 700)),
        num_out=st.one_of(st.integers(1, 100), st.integers(1, 700)),
        bias=st.booleans(),
        threads=st.integers(1, 3),
        seed=st.integers(0, 9),
    )
    @torch.inference_mode()
    def test_any_rows_of_any_weights(
        self,
        dtype: torch.dtype,
        level: int,
        num_rows: int,
        num_in: int,
        num_out: int,
        bias: bool,
        threads: int,
        seed: int,
    ) -> None:
        plain = linear(num_in, num_out, dtype, bias, seed)
        x = torch.randn(1, num_rows, num_in).to(dtype)
        torch.set_num_threads(threads)
        product = Int8Linear(plain, room=Room(), level=level)
        ours = product(x)
        torch.set_num_threads(1)
        exact = twin_of(plain)(x.float())
        assert ours.shape == exact.shape
        assert ours.dtype is dtype
        # of many rows the weights are rounded to the type as well
        roundings = 1 if num_rows <= product.most_rows or dtype is not torch.bfloat16 else 2
        assert relative_error(ours, exact) < roundings * ONE_ROUNDING[dtype]

    @pytest.mark.parametrize("num_out", [1, 2 * UNIT, 7 * UNIT + 3])
    @torch.inference_mode()
    def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(
        self, dtype: torch.dtype, level: int, num_out: int
    ) -> None:
        product = Int8Linear(linear(203, num_out, dtype), room=Room(), level=level)
        x_RI = torch.randn(product.most_rows, 203).to(dtype)
        alone_RO = torch.cat([product(x_I[None]) for x_I in x_RI])
        for num_rows in (*range(2, MOST_ROWS + 1), product.most_rows - 1, product.most_rows):
            assert torch.equal(product(x_RI[-num_rows:]), alone_RO[-num_rows:])

    @torch.inference_mode()
    def test_weights_of_many_rows_come_a_block_after_the_other(
        self, dtype: torch.dtype, level: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = linear(50, 5 * UNIT + 1, dtype)
        product = Int8Linear(plain, room=Room(), level=level)
        x_RI = torch.randn(product.most_rows + 1, 50).to(dtype)
        whole = product(x_RI)
        for units in (1, 2, 5):
            monkeypatch.setattr(int8, "_BLOCK_BYTES", units * 52 * UNIT * 4)
            in_blocks = Int8Linear(plain, room=Room(), level=level)(x_RI)
            assert in_blocks.is_contiguous()
            assert relative_error(in_blocks, whole) < ONE_ROUNDING[dtype]

    @torch.inference_mode()
    def test_layers_of_other_sizes_share_their_room(self, dtype: torch.dtype, level: int) -> None:
        room, sizes = Room(), ((30, 70), (300, 7), (9, 40))
        layers = [
            (plain := linear(*size, dtype), Int8Linear(plain, room=room, level=level)) for size in sizes
        ]
        for plain, ours in (*layers, *reversed(layers)):
            x_RI = torch.randn(ours.most_rows + 5, plain.in_features).to(dtype)
            assert relative_error(ours(x_RI), twin_of(plain)(x_RI.float())) < 2 * ONE_ROUNDING[dtype]

    @torch.inference_mode()
    def test_rows_apart_in_memory_and_no_rows(self, dtype: torch.dtype, level: int) -> None:
        product, x_RI = (
            Int8Linear(linear(36, 20, dtype), room=Room(), level=level),
            torch.randn(6, 72).to(dtype),
        )
        assert torch.equal(product(x_RI[:, ::2]), product(x_RI[:, ::2].contiguous()))
        assert product(x_RI[:0, ::2]).shape == (0, 20)

    @torch.inference_mode()
    def test_a_number_that_is_none_stays_in_its_row(self, dtype: torch.dtype, level: int) -> None:
        product, x_RI = (
            Int8Linear(linear(37, 20, dtype), room=Room(), level=level),
            torch.randn(5, 37).to(dtype),
        )
        x_RI[2, 36] = float("nan")
        assert product(x_RI).isnan().all(1).tolist() == [False, False, True, False, False]


class TestGates:
    @pytest.mark.parametrize("level", TESTED, ids=lambda level: LEVELS[level])
    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        num_rows=st.one_of(st.integers(1, 20), st.integers(1, 600)),
        num_in=st.integers(1, 300),
        num_out=st.integers(1, 200),
        bias=st.booleans(),
    )
    @torch.inference_mode()
    def test_a_gate_and_what_goes_through_it(
        self, level: int, num_rows: int, num_in: int, num_out: int, bias: bool
    ) -> None:
        gate, up = (linear(num_in, num_out, torch.bfloat16, bias, seed) for seed in range(2))
        x_RI = 3 * torch.randn(num_rows, num_in).bfloat16()
        ours = Int8Gate(gate, up, room=Room(), level=level)
        exact = silu(twin_of(gate)(x_RI.float())) * twin_of(up)(x_RI.float())
        # many rows: each part is rounded, its weights are, and the activation
        roundings = 1 if num_rows <= ours.most_rows else 4
        assert relative_error(ours(x_RI), exact) < roundings * ONE_ROUNDING[torch.bfloat16]
        for one, plain in zip(ours.both(x_RI), (gate, up), strict=True):
            alone = Int8Linear(plain, room=Room(), level=level)(x_RI)
            assert one.shape == alone.shape
            assert num_rows > ours.most_rows or torch.equal(one, alone)
            assert relative_error(one, alone) < ONE_ROUNDING[torch.bfloat16]

    @torch.inference_mode()
    def test_several_layers_of_the_same_rows_are_one(self) -> None:
        layers = [linear(40, width, torch.bfloat16, bias, width) for width, bias in ((70, True), (9, False))]
        x_RI = torch.randn(5, 40).bfloat16()
        apart = torch.cat([Int8Linear(one, room=Room())(x_RI) for one in layers], 1)
        assert torch.equal(Int8Linear(*layers, room=Room())(x_RI), apart)


class TestModels:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("dtype", ONE_ROUNDING, ids=str)
    @torch.inference_mode()
    def test_every_linear_layer_is_int8_and_the_model_is_its_twin(
        self, family: str, dtype: torch.dtype
    ) -> None:
        twin = as_dtype(tiny_model(family), dtype)
        round_weights(twin)
        hf_model = wrap_model(as_dtype(tiny_model(family), dtype), weights="int8").hf_model
        assert not [module for module in hf_model.modules() if type(module) is torch.nn.Linear]
        ids = torch.arange(1, 30)[None]
        assert (
            relative_error(hf_model(ids).logits, twin(ids).logits)
            < {
                torch.float32: 1e-5,
                torch.bfloat16: 5e-2,
                torch.float16: 1e-2,
            }[dtype]
        )

    def test_weights_take_a_byte_each_and_the_embedding_stays(self) -> None:
        plain = tiny_model("llama", tie_word_embeddings=True)
        embedded = plain.model.embed_tokens.weight.clone()
        weights = sum(m.weight.numel() for m in plain.modules() if type(m) is torch.nn.Linear)
        model = wrap_model(plain, weights="int8")
        assert weights <= int8_bytes(model.hf_model) < 1.3 * weights  # scales; outputs in units
        assert torch.equal(model.hf_model.model.embed_tokens.weight, embedded)

    def test_kv_is_another_models_and_that_of_exact_weights_stays_its_own(self) -> None:
        exact, rounded, again = (
            wrap_model(tiny_model("llama"), weights=weights) for weights in ("exact", "int8", "int8")
        )
        assert rounded.fingerprint == again.fingerprint != exact.fingerprint
        assert rounded.base_fingerprint == exact.fingerprint == exact.base_fingerprint
        assert len(rounded.fingerprint) == 32
        other = wrap_model(tiny_model("llama", 1), weights="int8")
        assert other.fingerprint != rounded.fingerprint

    def test_packets_made_for_the_exact_model_fit(self) -> None:
        prints = set()
        for weights in ("exact", "int8"):
            model = wrap_model(tiny_model("llama"), weights=weights)  # type: ignore[arg-type]
            before = model.fingerprint
            model.place_packets(random_packets(wrap_model(tiny_model("llama"))))
            prints |= {before, model.fingerprint}
        assert len(prints) == 4

    def test_an_adapter_for_another_model_is_still_refused(self) -> None:
        adapter = random_adapter(tiny_model("qwen2", num_hidden_layers=3))
        with pytest.raises(ModelMismatch, match="layer 2"):
            Engine(wrap_model(tiny_model("qwen2"), weights="int8"), adapters=[adapter])

    def test_a_directory_is_loaded_so(self, tmp_path: Path) -> None:
        tiny_model("llama").save_pretrained(tmp_path)
        loaded = load_model(str(tmp_path), weights="int8")
        assert int8_bytes(loaded.hf_model)
        assert loaded.fingerprint == wrap_model(tiny_model("llama"), weights="int8").fingerprint


class TestRefused:
    @pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
    def test_weights_that_are_no_linear_layers(self, family: str) -> None:
        with pytest.raises(
            ModelUnsupported, match=r"engine\.weights: layer 0 has weights that are no linear"
        ):
            wrap_model(tiny_model(family), weights="int8")

    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ({"device": "cuda"}, "weights: int8 weights are for CPUs"),
            ({"compile": True}, "weights: compiled"),
        ],
    )
    def test_settings_that_do_not_go_together(self, more: dict[str, Any], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            EngineConfig(weights="int8", **more)

    def test_a_model_on_another_device(self) -> None:
        with pytest.raises(ConfigError, match=r"engine\.weights: int8 weights are for CPUs"):
            int8._check_device(torch.empty(2, 2, device="meta"))

    def test_an_installation_without_the_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(linear_kernels, "LIBRARY", "shared.engine.model._nothing")
        linear_kernels.library.cache_clear()
        try:
            assert best_level() == 0
            with pytest.raises(ConfigError, match="were not compiled with this installation"):
                wrap_model(tiny_model("llama"), weights="int8")
        finally:
            linear_kernels.library.cache_clear()

    def test_kernels_that_compute_something_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        packed = int8._packed
        monkeypatch.setattr(int8, "_packed", lambda ints, pairs: packed(ints.roll(1, 0), pairs))
        with pytest.raises(ConfigError, match="do not work on this machine"):
            wrap_model(tiny_model("llama"), weights="int8")

    def test_an_engine_that_is_told_int8_over_exact_weights(self) -> None:
        with pytest.raises(ConfigError, match="loaded with exact weights"):
            Engine(wrap_model(tiny_model("llama")), EngineConfig(weights="int8"))
