"""Adapters as PEFT keeps them: what is read, what is refused, and that it fits a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.engine.model.lora import AdapterFacts, LoraAdapter, LoraPair, Site, linear_shapes
from shared.engine.model.lora_files import CONFIG, FACTS, WEIGHTS, read_adapter, write_adapter
from shared.errors import ConfigError, CorruptData, ModelMismatch
from shared.kv_types import KvContext
from tests.lora_adapters import merged, random_adapter
from tests.oracles import FAMILIES, tiny_model

PREFIX = "base_model.model.model.layers"


def peft_files(directory: Path, tensors: dict[str, torch.Tensor] | None = None, **settings: Any) -> Path:
    """As PEFT 0.17 writes them: rank 2 on q_proj and v_proj of two layers of 8 inputs."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"q_proj": 6, "v_proj": 4}
    made = {
        f"{PREFIX}.{layer}.self_attn.{name}.lora_{half}.weight": torch.randn(*shape, generator=generator)
        for layer in range(2)
        for name, num_out in shapes.items()
        for half, shape in (("A", (2, 8)), ("B", (num_out, 2)))
    }
    config = {
        "alpha_pattern": {},
        "auto_mapping": None,
        "base_model_name_or_path": "some/base",
        "bias": "none",
        "corda_config": None,
        "eva_config": None,
        "exclude_modules": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layer_replication": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_alpha": 8,
        "lora_bias": False,
        "lora_dropout": 0.05,
        "megatron_config": None,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "peft_type": "LORA",
        "qalora_group_size": 16,
        "r": 2,
        "rank_pattern": {},
        "revision": None,
        "target_modules": ["v_proj", "q_proj"],
        "target_parameters": None,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": None,
        "use_dora": False,
        "use_qalora": False,
        "use_rslora": False,
    }
    directory.mkdir(exist_ok=True)
    save_file(made if tensors is None else tensors, directory / WEIGHTS)
    (directory / CONFIG).write_text(json.dumps(config | settings))
    return directory


class TestWhatPeftSaved:
    def test_is_read_with_its_scale(self, tmp_path: Path) -> None:
        adapter = read_adapter(peft_files(tmp_path), "qa")
        assert (adapter.name, adapter.base, adapter.rank) == ("qa", "some/base", 2)
        assert list(adapter.pairs) == [Site(n, f"self_attn.{p}_proj") for n in range(2) for p in "qv"]
        pair, stored = adapter.pairs[Site(1, "self_attn.v_proj")], load_file(tmp_path / WEIGHTS)
        assert torch.equal(pair.a_rI, stored[f"{PREFIX}.1.self_attn.v_proj.lora_A.weight"])
        assert torch.equal(pair.b_Or, stored[f"{PREFIX}.1.self_attn.v_proj.lora_B.weight"])
        assert (pair.scale, pair.shape, pair.rank) == (4.0, (4, 8), 2)
        assert adapter.facts == AdapterFacts()

    def test_rank_stabilised_scale_divides_by_the_root(self, tmp_path: Path) -> None:
        adapter = read_adapter(peft_files(tmp_path, use_rslora=True), "qa")
        assert adapter.pairs[Site(0, "self_attn.q_proj")].scale == pytest.approx(8 / 2**0.5)

    def test_patterns_name_modules_by_the_end_of_their_names(self, tmp_path: Path) -> None:
        alphas = {"layers.1.self_attn.q_proj": 2, "v_proj": 16}
        adapter = read_adapter(peft_files(tmp_path, alpha_pattern=alphas), "qa")
        assert [pair.scale for pair in adapter.pairs.values()] == [4.0, 8.0, 1.0, 8.0]

    def test_of_patterns_for_ranks_the_weights_must_be_as_they_say(self, tmp_path: Path) -> None:
        tensors = load_file(peft_files(tmp_path) / WEIGHTS)
        for half, shape in (("A", (4, 8)), ("B", (6, 4))):
            tensors[f"{PREFIX}.0.self_attn.q_proj.lora_{half}.weight"] = torch.ones(shape)
        pattern = {"0.self_attn.q_proj": 4}
        adapter = read_adapter(peft_files(tmp_path, tensors, rank_pattern=pattern), "qa")
        assert [(pair.rank, pair.scale) for pair in adapter.pairs.values()] == [(4, 2.0)] + [(2, 4.0)] * 3
        with pytest.raises(CorruptData, match=r"q_proj has rank 4 \(A\) and 4 \(B\).*says 2"):
            read_adapter(peft_files(tmp_path, tensors), "qa")


class TestRoundTrip:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_everything_comes_back(self, tmp_path: Path, dtype: torch.dtype) -> None:
        pairs = {
            Site(n, path): LoraPair(torch.randn(r, 8).to(dtype), torch.randn(6, r).to(dtype), scale)
            for n, path, r, scale in (
                (0, "self_attn.q_proj", 2, 2.0),
                (0, "mlp.down_proj", 4, 2.0),
                (11, "self_attn.q_proj", 2, 0.5),
                (1, "self_attn.q_proj", 2, 1.0),
            )
        }
        facts = AdapterFacts("ab12", KvContext.DOCUMENT, {"steps": "60", "loss": "kl"})
        wrote = LoraAdapter("qa", pairs, "some/base", facts)
        write_adapter(wrote, tmp_path / "new" / "qa")
        read = read_adapter(tmp_path / "new" / "qa", "qa")
        assert (read.base, read.facts, read.rank, read.paths) == ("some/base", facts, 4, wrote.paths)
        assert read.num_parameters == wrote.num_parameters
        assert set(read.pairs) == set(pairs)
        for site, pair in pairs.items():
            assert torch.equal(read.pairs[site].a_rI, pair.a_rI)
            assert torch.equal(read.pairs[site].b_Or, pair.b_Or)
            assert read.pairs[site].scale == pair.scale

    def test_files_are_written_over(self, tmp_path: Path) -> None:
        for seed in (1, 2):
            adapter = random_adapter(tiny_model("llama"), seed=seed)
            write_adapter(adapter, tmp_path)
        read = read_adapter(tmp_path, "qa").pairs
        assert all(torch.equal(read[site].a_rI, pair.a_rI) for site, pair in adapter.pairs.items())
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted((CONFIG, WEIGHTS, FACTS))


def _without(key: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.pop(f"{PREFIX}.{key}")  # type: ignore[return-value]


class TestRefused:
    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"peft_type": "IA3"}, "peft_type: 'IA3' is not supported"),
            ({"bias": "lora_only"}, "bias: 'lora_only'"),
            ({"use_dora": True}, "use_dora"),
            ({"use_qalora": True}, "use_qalora"),
            ({"modules_to_save": ["lm_head"]}, "modules_to_save: is not supported"),
            ({"lora_bias": True}, "lora_bias"),
            ({"fan_in_fan_out": True}, "fan_in_fan_out"),
            ({"trainable_token_indices": [1]}, "trainable_token_indices"),
            ({"target_parameters": ["experts"]}, "target_parameters"),
            ({"layer_replication": [[0, 2]]}, "layer_replication"),
            ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
            ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: 'pissa_niter_4' changes the base"),
            ({"r": 0}, "r: 0 is not a rank"),
            ({"r": "two"}, "r: 'two' is not a rank"),
            ({"lora_alpha": None}, "lora_alpha: None is not a number"),
            ({"rank_pattern": {"q_proj": "many"}}, "rank_pattern"),
            ({"alpha_pattern": [1]}, "alpha_pattern"),
            ({"alpha_pattern": {"(": 1}}, "alpha_pattern"),
        ],
    )
    def test_a_setting_by_its_name(self, tmp_path: Path, settings: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=r"adapter 'qa': adapter_config.json: ") as error:
            read_adapter(peft_files(tmp_path, **settings), "qa")
        assert said in error.value.detail

    @pytest.mark.parametrize(
        "key",
        ["base_model.model.lm_head.lora_A.weight", f"{PREFIX}.0.self_attn.q_proj.lora_magnitude_vector"],
    )
    def test_a_weight_that_is_none_of_a_layer(self, tmp_path: Path, key: str) -> None:
        tensors = load_file(peft_files(tmp_path) / WEIGHTS) | {key: torch.ones(1)}
        with pytest.raises(ConfigError, match=f"{key}: is no LoRA weight"):
            read_adapter(peft_files(tmp_path, tensors), "qa")

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (_without("1.self_attn.q_proj.lora_B.weight"), r"lacks model.layers.1.self_attn.q_proj.lora_B"),
            (lambda tensors: tensors.clear(), "has no weights"),
            (
                lambda tensors: [tensors.pop(key) for key in list(tensors) if "v_proj" in key],
                "has no weights for 'v_proj' of target_modules",
            ),
            (
                lambda tensors: tensors.update({f"{PREFIX}.0.self_attn.q_proj.lora_A.weight": torch.ones(2)}),
                "lora_A is no matrix",
            ),
            (lambda tensors: next(iter(tensors.values())).fill_(float("nan")), "not finite"),
        ],
    )
    def test_weights_that_are_not_whole(
        self, tmp_path: Path, spoil: Callable[[dict[str, torch.Tensor]], Any], said: str
    ) -> None:
        tensors = load_file(peft_files(tmp_path) / WEIGHTS)
        spoil(tensors)
        with pytest.raises(CorruptData, match=said) as error:
            read_adapter(peft_files(tmp_path, tensors), "qa")
        assert "copy the adapter again" in error.value.detail

    @pytest.mark.parametrize("num_bytes", [0, 4, 100, 600])
    def test_a_truncated_file(self, tmp_path: Path, num_bytes: int) -> None:
        path = peft_files(tmp_path) / WEIGHTS
        path.write_bytes(path.read_bytes()[:num_bytes])
        with pytest.raises(CorruptData, match=r"adapter_model.safetensors: cannot be read.*truncated"):
            read_adapter(tmp_path, "qa")

    def test_files_that_are_missing_or_something_else(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"adapter_config.json: is not there; name the directory"):
            read_adapter(tmp_path / "nowhere", "qa")
        peft_files(tmp_path)
        (tmp_path / WEIGHTS).unlink()
        with pytest.raises(ConfigError, match=r"adapter_model.safetensors: is not there"):
            read_adapter(tmp_path, "qa")
        (tmp_path / "adapter_model.bin").write_bytes(b"")
        with pytest.raises(ConfigError, match=r"adapter_model.bin: is a pickle"):
            read_adapter(tmp_path, "qa")
        for content in ("{", "[]"):
            (tmp_path / CONFIG).write_text(content)
            with pytest.raises(ConfigError, match=r"adapter_config.json: (cannot be read as JSON|expected)"):
                read_adapter(tmp_path, "qa")

    def test_facts_that_are_none(self, tmp_path: Path) -> None:
        for content, said in (
            ('{"kv_context": "page"}', "kv_context: 'page' is not one of document"),
            ('{"fingerprints": ""}', "fingerprints: unknown setting"),
            ('{"fingerprint": 3}', "fingerprint: expected str"),
        ):
            (peft_files(tmp_path) / FACTS).write_text(content)
            with pytest.raises(ConfigError, match=rf"adapter 'qa': quilt.adapter.json: .*{said}"):
                read_adapter(tmp_path, "qa")


class TestAnotherBase:
    def check(self, adapter: LoraAdapter, family: str = "llama", fingerprint: str = "f") -> None:
        adapter.check_base(linear_shapes(tiny_model(family).model.layers), fingerprint)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_one_that_fits(self, family: str) -> None:
        adapter = random_adapter(tiny_model(family))
        assert adapter.pairs
        self.check(adapter, family)

    def test_another_fingerprint(self) -> None:
        pairs = random_adapter(tiny_model("llama")).pairs
        adapter = LoraAdapter("qa", pairs, "some/base", AdapterFacts("0123"))
        self.check(adapter, fingerprint="0123")
        with pytest.raises(ModelMismatch, match=r"'qa': fingerprint: .*0123, this one has 4567.*some/base"):
            self.check(adapter, fingerprint="4567")

    def test_other_layers_shapes_and_modules(self) -> None:
        for other, said in (
            (tiny_model("llama", num_hidden_layers=3), "weights of layer 2, counted from 0.*has 2 layers"),
            (tiny_model("llama", intermediate_size=80), r"mlp.down_proj: .* 64 × 80, .* 64 × 96"),
            (
                tiny_model("phi3"),
                r"target_modules: the model has no 'mlp.gate_up_proj'; it has mlp.down_proj",
            ),
        ):
            with pytest.raises(ModelMismatch, match=said) as error:
                self.check(random_adapter(other))
            assert "serve it with the model that it was trained on" in error.value.detail


def test_linear_layers_of_every_family_are_found() -> None:
    paths = {site.path for site in linear_shapes(tiny_model("llama").model.layers)}
    names = {f"self_attn.{p}_proj" for p in "qkvo"} | {f"mlp.{p}_proj" for p in ("gate", "up", "down")}
    assert paths == names
    assert {site.path for site in linear_shapes(tiny_model("phi3").model.layers)} == {
        "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj",
    }  # fmt: skip


def test_a_delta_is_what_merging_adds() -> None:
    model = tiny_model("llama")
    adapter, site = random_adapter(model), Site(1, "self_attn.k_proj")
    before, after = (m.model.layers[1].self_attn.k_proj.weight for m in (model, merged(model, adapter)))
    torch.testing.assert_close(after, before + adapter.pairs[site].delta())
