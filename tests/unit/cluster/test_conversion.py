"""GGUF files become the models that they were made from."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.models.cache import ModelCache
from cluster.models.families import plan_of
from cluster.models.gguf_file import GgufFile
from shared.errors import ConfigError, ModelUnsupported
from tests.gguf_files import SPECIALS, TOKENS, gguf_model, write_gguf

F32, Q8_0, Q4_1 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1
IDS = torch.arange(20).reshape(1, -1) * 7 % len(TOKENS)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def converted(tmp_path: Path, model: Any, *args: Any, **options: Any) -> Path:
    return ModelCache(tmp_path / "cache").converted(write_gguf(tmp_path / "m.gguf", model, *args, **options))


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.float()(IDS, position_ids=IDS.argsort(1) * 50).logits
    return found


def as_stored(model: Any, kind: GGMLQuantizationType) -> Any:
    """The model with the weights that a file of that quantisation stands for, in bfloat16."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and kind != F32:
                values = dequantize(quantize(parameter.numpy(), kind), kind)
                parameter.copy_(torch.from_numpy(np.array(values)))
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


class TestWeights:
    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("llama", {}),
            ("llama", {"tie_word_embeddings": True}),
            ("llama", {"attention_bias": True, "mlp_bias": True}),
            ("llama", {"head_dim": 32}),
            ("mistral", {"sliding_window": 64}),
            ("qwen2", {}),
            ("qwen3", {}),
            ("phi3", {}),
            ("phi3_partial", {}),
        ],
    )
    def test_every_family_computes_what_its_model_computes(
        self, family: str, changes: dict[str, Any], tmp_path: Path
    ) -> None:
        settings = {"attention.sliding_window": changes.get("sliding_window")}
        directory = converted(tmp_path, gguf_model(family, **changes), settings=settings)
        found = AutoModelForCausalLM.from_pretrained(directory)
        expected = as_stored(gguf_model(family, **changes), F32)
        assert found.dtype == torch.bfloat16
        assert type(found) is type(expected)
        assert found.state_dict().keys() == expected.state_dict().keys()
        for name, tensor in expected.state_dict().items():
            assert torch.equal(found.state_dict()[name].float(), tensor), name
        assert torch.allclose(logits(found), logits(expected), atol=1e-4)

    @pytest.mark.parametrize("kind", [Q8_0, Q4_1, GGMLQuantizationType.Q5_0, GGMLQuantizationType.BF16])
    def test_quantised_weights_become_what_they_stand_for(
        self, kind: GGMLQuantizationType, tmp_path: Path
    ) -> None:
        directory = converted(tmp_path, gguf_model("llama"), kind)
        found = AutoModelForCausalLM.from_pretrained(directory).state_dict()
        for name, tensor in as_stored(gguf_model("llama"), kind).state_dict().items():
            assert torch.equal(found[name].float(), tensor), name

    @pytest.mark.parametrize(
        ("rope", "settings"),
        [
            (
                {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
                {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            ),
            (
                {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 8.0,
                    "original_max_position_embeddings": 2500,
                },
                {
                    "rope.scaling.type": "yarn",
                    "rope.scaling.factor": 8.0,
                    "rope.scaling.original_context_length": 2500,
                },
            ),
            (LLAMA3, {}),
        ],
        ids=["linear", "yarn", "llama3"],
    )
    def test_stretched_positions_are_the_models(
        self, rope: dict[str, Any], settings: dict[str, Any], tmp_path: Path
    ) -> None:
        extra = {"rope_freqs.weight": rope_freqs(16)} if rope is LLAMA3 else {}
        model = gguf_model("llama", rope_parameters=rope)
        directory = converted(tmp_path, model, settings=settings, extra=extra)
        found = AutoModelForCausalLM.from_pretrained(directory)
        theirs, ours = model.model.rotary_emb, found.model.rotary_emb
        assert torch.allclose(theirs.inv_freq, ours.inv_freq, rtol=1e-6)
        assert theirs.attention_scaling == ours.attention_scaling


class TestTokenizer:
    def test_it_cuts_as_the_models_own_and_knows_special_tokens_and_the_chat_template(
        self, tmp_path: Path
    ) -> None:
        tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, gguf_model("llama")))
        assert tokenizer.convert_ids_to_tokens(list(range(len(TOKENS)))) == list(TOKENS)
        assert tokenizer.tokenize("the  12") == ["the", "Ġ", "Ġ", "1", "2"]  # smollm: digits alone
        assert tokenizer.tokenize("<|im_end|>") == ["<|im_end|>"]
        assert set(SPECIALS) <= set(tokenizer.all_special_tokens)
        assert tokenizer.apply_chat_template([{"content": "the"}], tokenize=False).endswith("the<|im_end|>")

    def test_another_cut_is_kept_as_it_is(self, tmp_path: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, gguf_model("llama"), cut="llama-bpe"))
        assert tokenizer.tokenize("12") == ["12"]

    def test_an_answer_ends_with_its_text_or_its_turn(self, tmp_path: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(converted(tmp_path, gguf_model("llama")))
        assert model.generation_config.eos_token_id == [0, 2]


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"architecture": "gemma3"}, ModelUnsupported, "family 'gemma3'.*served are Llama, Mistral"),
            ({"settings": {"expert_count": 8}}, ModelUnsupported, "llama.expert_count is 8"),
            ({"settings": {"attention.head_count_kv": [2, 1]}}, ModelUnsupported, "differs from layer to"),
            ({"settings": {"attention.value_length": 8}}, ModelUnsupported, "different length"),
            ({"settings": {"rope.dimension_count": 8}}, ModelUnsupported, "rope.dimension_count is 8 of 16"),
            ({"settings": {"rope.scaling.type": "longrope"}}, ModelUnsupported, "'longrope'"),
            ({"settings": {"rope.scaling.type": "yarn"}}, ModelUnsupported, "original_context_length"),
            ({"settings": {"block_count": None}}, ConfigError, "lacks llama.block_count"),
            ({"settings": {"embedding_length": 32}}, ConfigError, "its settings say"),
            ({"settings": {"block_count": 3}}, ConfigError, "lacks model.layers.2"),
            ({"settings": {"block_count": 1}}, ModelUnsupported, r"does not have \(model.layers.1"),
            ({"without": ("model.norm.weight",)}, ConfigError, "lacks model.norm.weight"),
            ({"without": ("model.embed_tokens.weight",)}, ConfigError, "lacks token_embd.weight"),
            ({"extra": {"blk.0.attn_sinks": np.ones(4, np.float32)}}, ModelUnsupported, "blk.0.attn_sinks"),
            ({"extra": {"rope_freqs.weight": np.ones(8, np.float32) * 3}}, ModelUnsupported, "rope_freqs"),
            ({"tokenizer": None}, ConfigError, "no tokenizer"),
            ({"tokenizer": "rwkv"}, ModelUnsupported, "tokenizer 'rwkv smollm'"),
            ({"cut": "of-next-year"}, ModelUnsupported, "tokenizer 'gpt2 of-next-year'"),
        ],
    )
    def test_what_would_become_another_model_is_refused_by_name(
        self, options: dict[str, Any], error: type[Exception], says: str, tmp_path: Path
    ) -> None:
        with pytest.raises(error, match=says) as refusal:
            converted(tmp_path, gguf_model("llama"), **options)
        assert str(tmp_path / "m.gguf") in str(refusal.value)
        assert not list((tmp_path / "cache").glob("*.partial")) + list((tmp_path / "cache").glob("m-*"))

    @pytest.mark.parametrize("part", [0, 3, 10, 30, 0.01, 0.3, 0.9, 0.999])
    def test_a_file_that_ends_early_is_told_from_one_that_is_no_gguf(
        self, part: float, tmp_path: Path
    ) -> None:
        path = write_gguf(tmp_path / "m.gguf", gguf_model("llama"))
        whole = path.read_bytes()
        path.write_bytes(whole[: part if isinstance(part, int) else int(part * len(whole))])
        says = "is not a GGUF file" if part in (0, 3) else "is truncated or damaged.*download it again"
        with pytest.raises(ConfigError, match=says):
            ModelCache(tmp_path / "cache").converted(path)

    def test_wrong_bytes_in_its_head_are_an_error_of_ours_or_change_nothing_that_counts(
        self, tmp_path: Path
    ) -> None:
        path = write_gguf(tmp_path / "m.gguf", gguf_model("llama"))
        whole = path.read_bytes()
        for at in range(4, 6000, 149):
            path.write_bytes(whole[:at] + b"\xff" * 3 + whole[at + 3 :])
            with contextlib.suppress(ConfigError, ModelUnsupported):
                plan_of(GgufFile.open(path))

    @pytest.mark.parametrize(("kind", "told"), [(9, "Q8_1"), (99, "type 99")])
    def test_a_quantisation_that_cannot_be_undone_is_named(
        self, kind: int, told: str, tmp_path: Path
    ) -> None:
        path = write_gguf(tmp_path / "m.gguf", gguf_model("llama"), Q8_0)
        name = b"blk.0.ffn_down.weight"
        data = bytearray(path.read_bytes())
        at = data.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions, and two of them
        assert data[at] == 8
        data[at] = kind
        path.write_bytes(data)
        with pytest.raises(ModelUnsupported, match=f"quantised as {told}.*Q4_K_M"):
            ModelCache(tmp_path / "cache").converted(path)


def rope_freqs(head_dim: int) -> np.ndarray[Any, Any]:
    """As llama.cpp's converter derives them from ``LLAMA3``."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * LLAMA3["rope_theta"] ** (i / head_dim)  # type: ignore[operator]
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(32.0)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / 32 + smooth))
    return np.array(factors, dtype=np.float32)
