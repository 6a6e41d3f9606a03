"""Refuses models that the engine would not compute exactly, by what their configuration says, before any
weight is read."""

from __future__ import annotations

from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shared.errors import InvalidRequest, ModelUnsupported

_EXACT_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_LAYER_KINDS = ("layer_types", "layers_block_type")
_ATTENTION_LAYERS = ("attention", "full_attention", "sliding_attention", "chunked_attention")
# settings that only models with recurrent layers have
_RECURRENT = ("state_size", "mamba_d_state", "mamba_d_conv", "ssm_state_size", "linear_num_key_heads")
_SINKS = ("gpt_oss",)
_SCALED_BY_POSITION = "llama_4_scaling_beta"
_BY_METHOD = {
    "awq": "AWQ",
    "gptq": "GPTQ",
    "fp8": "FP8",
    "mxfp4": "MXFP4",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
}


def check_config(config: Any) -> None:
    """
    Raises:
        InvalidRequest: it is not a causal LM.
        ModelUnsupported: the engine would not compute what the model computes; the reason is named.
    """
    _check_causal(config)
    for check in (_check_layers, _check_attention, _check_rope, _check_weights):
        check(config)


def _check_causal(config: Any) -> None:
    architectures = getattr(config, "architectures", None) or []
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or (
        architectures and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    ):
        raise InvalidRequest(
            f"model: {' '.join(architectures) or config.model_type} is not a causal language model; "
            "give one that generates text"
        )


def _check_layers(config: Any) -> None:
    kinds = {str(kind) for name in _LAYER_KINDS for kind in getattr(config, name, None) or ()}
    others = sorted(kinds.difference(_ATTENTION_LAYERS))
    if not others and any(getattr(config, name, None) for name in _RECURRENT):
        others = ["recurrent"]
    if others:
        raise ModelUnsupported(
            f"model type {config.model_type!r} has layers that are not attention alone "
            f"({', '.join(others)}): their state runs through the whole prompt, and no chunk can be taken "
            "out of it; give a model with attention in every layer"
        )


def _check_attention(config: Any) -> None:
    kind = f"model type {config.model_type!r}"
    if getattr(config, "kv_lora_rank", None):
        raise ModelUnsupported(
            f"{kind} has multi-head latent attention (MLA), which keeps one compressed vector per token; the "
            "engine stores keys and values per head"
        )
    if config.model_type in _SINKS:
        raise ModelUnsupported(f"{kind} has attention sinks (s_aux), which the engine does not compute")
    if getattr(config, "attn_logit_softcapping", None):
        raise ModelUnsupported(
            f"{kind} caps its attention's logits (softcap), which the engine does not compute"
        )
    if _SCALED_BY_POSITION in (getattr(config, "rope_parameters", None) or {}):
        raise ModelUnsupported(
            f"{kind} scales queries by their position ({_SCALED_BY_POSITION}), which the engine does not "
            "compute"
        )


def _check_rope(config: Any) -> None:
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        raise ModelUnsupported(
            f"model type {config.model_type!r} has no rotary position embedding (RoPE); stored KV can "
            "only be moved by rotation"
        )
    if any(isinstance(value, dict) for value in rope.values()):
        raise ModelUnsupported(
            f"model type {config.model_type!r} rotates its layers differently (RoPE parameters per layer "
            "type); one rotation is needed"
        )
    kind = rope.get("rope_type", "default")
    if kind not in _EXACT_ROPE_TYPES:
        raise ModelUnsupported(
            f"RoPE type {kind!r} is not supported: its angles depend on the request's length; "
            f"supported: {', '.join(_EXACT_ROPE_TYPES)}"
        )


def _check_weights(config: Any) -> None:
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return
    given = quantization if isinstance(quantization, dict) else quantization.to_dict()
    method = str(given.get("quant_method"))
    raise ModelUnsupported(
        f"the model's weights are quantised ({_BY_METHOD.get(method, method)}); the engine computes with "
        "bfloat16, float16 or float32 weights: give the model that they were made from, or a GGUF of it"
    )
