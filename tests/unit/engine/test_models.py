"""Which models are served, and that the others are refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    DeepseekV3Config,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTJConfig,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    Ministral3Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen3NextConfig,
)

from shared.engine import load_model, wrap_model
from shared.errors import InvalidRequest, ModelUnsupported
from shared.selection.stock import load_stock
from tests.engine_runs import Prompts, assert_equals_oracle, engine_of, run
from tests.oracles import VOCAB, tiny_config, tiny_model

_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "factor": 4.0,
}
_UNSUPPORTED = {
    "dynamic NTK": (
        tiny_config("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "dynamic",
    ),
    "longrope": (
        Phi3Config(
            **_SMALL,
            pad_token_id=0,
            rope_parameters=_LONGROPE,
            original_max_position_embeddings=64,
            max_position_embeddings=256,
        ),
        "longrope",
    ),
    "interleaved": (CohereConfig(**_SMALL, pad_token_id=0), "interleaved"),
    "interleaved in its own way": (
        GPTJConfig(vocab_size=VOCAB, n_embd=64, n_layer=1, n_head=4, rotary_dim=8, n_positions=128),
        "gptj",
    ),
    "ALiBi": (BloomConfig(vocab_size=VOCAB, hidden_size=64, n_layer=1, n_head=4), "bloom"),
    "absolute": (GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=1, n_head=4, n_positions=128), "gpt2"),
}

_TEXT: dict[str, Any] = _SMALL | {"num_hidden_layers": 4, "num_key_value_heads": 2, "pad_token_id": 0}
_FAMILIES_REFUSED: dict[str, tuple[PreTrainedConfig, tuple[str, ...]]] = {
    "DeepSeek": (
        DeepseekV3Config(
            **_TEXT, kv_lora_rank=16, q_lora_rank=16, quantization_config={"quant_method": "fp8"}
        ),
        ("deepseek_v3", "MLA"),
    ),
    "Gemma-2": (Gemma2Config(**_TEXT, head_dim=16), ("gemma2", "softcap")),
    "Gemma-3": (Gemma3TextConfig(**_TEXT, head_dim=16), ("gemma3_text", "RoPE parameters per layer type")),
    "gpt-oss": (
        GptOssConfig(**_TEXT, head_dim=16, quantization_config={"quant_method": "mxfp4"}),
        ("gpt_oss", "sinks"),
    ),
    "Ministral 3": (Ministral3Config(**_TEXT, head_dim=16), ("ministral3", "position")),
    "Mamba": (MambaConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=1), ("mamba", "attention")),
    "Jamba": (JambaConfig(**_TEXT), ("jamba", "mamba")),
    "Falcon-H1": (FalconH1Config(**_TEXT), ("falcon_h1", "hybrid")),
    "Qwen3-Next": (Qwen3NextConfig(**_TEXT, head_dim=16), ("qwen3_next", "linear_attention")),
    "LFM2": (Lfm2Config(**_TEXT, layer_types=["conv", "full_attention"] * 2), ("lfm2", "conv")),
}


class TestModels:
    @pytest.mark.parametrize("name", _UNSUPPORTED)
    def test_a_rotation_that_cannot_be_reproduced_is_refused_with_its_name(self, name: str) -> None:
        config, word = _UNSUPPORTED[name]
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with pytest.raises(ModelUnsupported) as refusal:
            wrap_model(model)
        assert word in refusal.value.detail.lower()

    @pytest.mark.parametrize("name", _FAMILIES_REFUSED)
    def test_todays_other_families_are_refused_by_name_before_their_weights_are_read(
        self, name: str, tmp_path: Path
    ) -> None:
        config, words = _FAMILIES_REFUSED[name]
        config.save_pretrained(tmp_path)
        with pytest.raises(ModelUnsupported) as refusal:
            load_model(str(tmp_path))
        for word in words:
            assert word in refusal.value.detail

    @pytest.mark.parametrize(
        ("quantization", "name"),
        [
            ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, "AWQ"),
            ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, "GPTQ"),
            ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "FP8"),
            ({"quant_method": "mxfp4"}, "MXFP4"),
            ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
            ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
            ({"quant_method": "of next year"}, "of next year"),
        ],
    )
    def test_quantised_weights_are_refused_by_the_methods_name(
        self, quantization: dict[str, Any], name: str, tmp_path: Path
    ) -> None:
        tiny_config("llama").save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | {"quantization_config": quantization}
        path.write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(
            ModelUnsupported, match=rf"quantised \({name}\).*the model that they were made from"
        ):
            load_model(str(tmp_path))

    def test_a_model_that_brings_code_of_its_own_is_not_run(self, tmp_path: Path) -> None:
        marker = tmp_path / "ran"
        (tmp_path / "mine.py").write_text(f"open({str(marker)!r}, 'w')\n", encoding="utf-8")
        config = {
            "model_type": "mine",
            "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.M"},
        }
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(InvalidRequest, match="no usable model configuration"):
            load_model(str(tmp_path))
        assert not marker.exists()

    @pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
    def test_mixtures_of_experts_are_served(self, family: str) -> None:
        engine = engine_of(hf_model=tiny_model(family))
        request = Prompts(engine, seed=32).request(prefix=4, chunks=(9, 12), questions=(7,), max_tokens=6)
        assert_equals_oracle(run(engine, request)[0], tiny_model(family))

    def test_a_model_that_is_not_causal_is_refused(self) -> None:
        from transformers import AutoModel

        with pytest.raises(ModelUnsupported):
            wrap_model(AutoModel.from_config(LlamaConfig(**_SMALL), dtype=torch.float32).eval())

    @pytest.mark.parametrize("kept", [0, 5, 0.5])
    def test_weights_that_are_truncated_are_refused_by_the_models_name(
        self, kept: float, tmp_path: Path
    ) -> None:
        tiny_model("llama").save_pretrained(tmp_path)
        weights = tmp_path / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
        for load in (load_model, lambda path: load_stock(path, "float32", "cpu", (1,))):
            with pytest.raises(InvalidRequest, match=f"model: the weights of '{tmp_path}' cannot be loaded"):
                load(str(tmp_path))

    def test_equal_models_have_equal_fingerprints_and_others_do_not(self) -> None:
        prints = [
            wrap_model(tiny_model(family, seed, **changes)).fingerprint
            for family, seed, changes in (
                ("llama", 0, {}),
                ("llama", 0, {}),
                ("llama", 1, {}),
                ("llama_linear", 0, {}),
                ("llama", 0, {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
                ("llama", 0, {"rms_norm_eps": 1e-3}),
            )
        ]
        assert prints[0] == prints[1]
        assert len(set(prints)) == 5
