"""Translates the families of GGUF files that are served: their settings, and the names and layout of their
tensors, to those of ``transformers``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from cluster.models.gguf_file import GgufFile, GgufTensor, readable
from cluster.models.rope_scaling import rope_parameters
from shared.errors import ConfigError, ModelUnsupported

# general.architecture → model type; Mistral's files say llama
FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3"}
_SERVED = "Llama, Mistral, Qwen2, Qwen3 and Phi-3 (llama, qwen2, qwen3, phi3)"
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FUSED = {"ffn_up": "mlp.gate_up_proj"}  # Phi-3's gate and up are one
_NOT_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# settings that change what is computed, and the values that change nothing
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "attention.causal": (True,),
    "attention.scale": (0.0,),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "use_parallel_residual": (False,),
}


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """``config``: of the model in ``transformers``. ``weights``: its names for the file's tensors, in the
    order in which they are written."""

    file: GgufFile
    config: Any
    weights: dict[str, GgufTensor]

    def heads_interleaved(self, name: str) -> int:
        """Heads of a tensor whose rows llama.cpp has paired for its rotation; 0: of no such tensor."""
        if self.file.architecture != "llama":
            return 0
        if ".q_proj." in name:
            return int(self.config.num_attention_heads)
        return int(self.config.num_key_value_heads) if ".k_proj." in name else 0


def plan_of(file: GgufFile) -> ModelPlan:
    """
    Raises:
        ConfigError: something that every model has is missing.
        ModelUnsupported: another family, or a variant of one that would not be computed as it is meant.
    """
    if file.architecture not in FAMILIES:
        raise ModelUnsupported(
            f"model: {file.path} is of the family {file.architecture!r}, which cannot be converted; served "
            f"are {_SERVED}; other families may be served from their own directory or hub id"
        )
    for name, neutral in _NEUTRAL.items():
        if (value := file.setting(name, neutral[0])) not in neutral:
            raise ModelUnsupported(
                f"model: {file.path}: {file.architecture}.{name} is {value}, which cannot be converted; give "
                "the model's own directory or hub id"
            )
    with readable(file.path), _consistent(file):
        config = _config(file)
    weights = {_name(file, name): tensor for name, tensor in file.tensors.items() if name not in _NOT_WEIGHTS}
    _check_complete(file, config, weights)
    return ModelPlan(file, config, weights)


def rows_as_halves(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undoes llama.cpp's pairing: within a head its rows 0, 1, 2, 3, … are the model's 0, D/2, 1, D/2 + 1,
    …"""
    return values.reshape(num_heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _config(file: GgufFile) -> Any:
    heads, hidden = file.count("attention.head_count"), file.count("embedding_length")
    head_dim = file.setting("attention.key_length", hidden // heads)
    if file.setting("attention.value_length", head_dim) != head_dim:
        raise ModelUnsupported(
            f"model: {file.path}: keys and values of different length, which the engine does not compute"
        )
    embeddings = file.tensors.get("token_embd.weight")
    if embeddings is None:
        raise ConfigError(f"model: {file.path} lacks token_embd.weight; it holds no whole model")
    positions = file.count("context_length")
    values: dict[str, Any] = {
        "vocab_size": embeddings.shape[0],
        "hidden_size": hidden,
        "intermediate_size": file.count("feed_forward_length"),
        "num_hidden_layers": file.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": (
            file.count("attention.head_count_kv")
            if file.setting("attention.head_count_kv") is not None
            else heads
        ),
        "head_dim": head_dim,
        "max_position_embeddings": positions,
        "rms_norm_eps": _as_written(file.setting("attention.layer_norm_rms_epsilon", 1e-5)),
        "rope_parameters": rope_parameters(file, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": "bfloat16",
        **_token_ids(file),
    }
    model_type = FAMILIES[file.architecture]
    window = file.setting("attention.sliding_window")
    rotated = file.setting("rope.dimension_count", head_dim)
    if file.architecture == "llama":
        values["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        values["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
        if window:
            model_type = "mistral"
            values["sliding_window"] = window
    elif file.architecture == "phi3":
        values |= {"sliding_window": window or None, "original_max_position_embeddings": positions}
        values["rope_parameters"]["partial_rotary_factor"] = rotated / head_dim
        rotated = head_dim
    if rotated != head_dim:
        raise ModelUnsupported(
            f"model: {file.path}: {file.architecture}.rope.dimension_count is {rotated} of {head_dim}, which "
            "cannot be converted; give the model's own directory or hub id"
        )
    return AutoConfig.for_model(model_type, **values)


@contextmanager
def _consistent(file: GgufFile) -> Iterator[None]:
    """Turns what ``transformers`` says of settings that do not go together into our error.

    Raises:
        ConfigError: it shows what was said.
    """
    try:
        yield
    except StrictDataclassError as error:
        said = " ".join(str(error.__cause__ or error).split())
        raise ConfigError(
            f"model: {file.path}: its settings do not go together ({said}); it is damaged"
        ) from error


def _as_written(value: float) -> float:
    """The shortest number that float32 keeps as ``value``: 1e-5, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _token_ids(file: GgufFile) -> dict[str, int | None]:
    return {
        f"{name}_token_id": file.value(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }


def _name(file: GgufFile, name: str) -> str:
    """The tensor's name in ``transformers``; its own where it has none there."""
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    in_layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    names = _IN_LAYER | _FUSED if file.architecture == "phi3" else _IN_LAYER
    if in_layer is None or in_layer[2] not in names:
        return name
    return f"model.layers.{in_layer[1]}.{names[in_layer[2]]}.{kind}"


def _check_complete(file: GgufFile, config: Any, weights: dict[str, GgufTensor]) -> None:
    """
    Raises:
        ConfigError: a tensor is missing, or has another shape.
        ModelUnsupported: one is left over; without it another model would be computed.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        expected.pop("lm_head.weight", None)
    if over := sorted(weights.keys() - expected.keys()):
        raise ModelUnsupported(
            f"model: {file.path} holds tensors that its family {file.architecture} does not have "
            f"({', '.join(over[:3])}); give the model's own directory or hub id"
        )
    for name, shape in expected.items():
        if name not in weights:
            raise ConfigError(f"model: {file.path} lacks {name}; it is only a part of a model, or damaged")
        if weights[name].shape != shape:
            raise ConfigError(
                f"model: {file.path}: {name} is {weights[name].shape}, its settings say {shape}; it is "
                "damaged"
            )
