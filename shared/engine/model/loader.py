"""Loads a stock ``transformers`` causal LM and puts the engine's attention in place of its own, after
proof that the engine computes what the model computes."""

from __future__ import annotations

import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from shared.engine.model.model import LoadedModel, ModelPass
from shared.engine.model.out_of_memory import told_alike
from shared.engine.model.packets import read_packets
from shared.engine.model.packing import can_pack
from shared.engine.model.refusals import check_config
from shared.engine.model.rope import RopeSpec
from shared.engine.model.self_check import check_model, rows_are_independent
from shared.engine.model.spec import ModelSpec
from shared.engine_config import Weights
from shared.errors import ConfigError, InvalidRequest, ModelUnsupported

ATTENTION = "kvquilt"
# what reading weights raises when files are missing, truncated or of another shape
_BROKEN_WEIGHTS = (OSError, ValueError, RuntimeError, EOFError, UnpicklingError, SafetensorError)
_BUILT_DIFFERENTLY = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_CHANGES_ATTENTION = ("softcap", "s_aux")


def load_model(
    path: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    pack: bool = True,
    packets: str = "",
    weights: Weights = "exact",
) -> LoadedModel:
    """Loads a model directory or hub id and checks that the engine reproduces it. ``pack``, ``weights``: see
    ``wrap_model``. ``packets``: the folder of those between which chunks stand; empty: between none.

    Raises:
        ConfigError: there is no such device here, no such packets, or no kernels for such weights; names the
            setting.
        CorruptData: the packets are broken.
        InvalidRequest: nothing loadable is there, or it is not a causal LM.
        ModelMismatch: the packets were made for another model.
        ModelUnsupported: the engine would not compute what the model computes; the reason is named.
    """
    check_device(torch.device(device))
    config = read_config(path)
    hf_model = read_weights(path, config=config, dtype=_DTYPES.get(dtype, "auto"))
    model = wrap_model(hf_model.to(device), pack, weights)
    if packets:
        model.place_packets(read_packets(Path(packets)))
    return model


def read_weights(path: str, **options: Any) -> Any:
    """A causal LM of ``transformers``.

    Raises:
        InvalidRequest: they cannot be loaded.
    """
    try:
        return AutoModelForCausalLM.from_pretrained(path, trust_remote_code=False, **options)
    except _BROKEN_WEIGHTS as error:
        raise InvalidRequest(f"model: the weights of {path!r} cannot be loaded: {error}") from error


def check_device(device: torch.device) -> None:
    """
    Raises:
        ConfigError: torch cannot use it here; says why and what would help.
    """
    if device.type != "cuda":
        return
    seen, found = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    if torch.version.cuda is None and torch.version.hip is None:
        reason = "this torch was built without CUDA; install one that was"
    elif seen == "":
        reason = "Ray reserved no GPU for this process; set generator.deployment.num_gpus to 1"
    elif not torch.cuda.is_available():
        reason = "torch finds no GPU on this machine, or no driver; start it where there is one"
    elif device.index is not None and device.index >= found:
        reason = f"torch sees {found} here, counted from 0"
    else:
        return
    raise ConfigError(
        f"engine.device: {str(device)!r} cannot be used ({reason}), or set engine.device to cpu"
    )


def wrap_model(hf_model: Any, pack: bool = True, weights: Weights = "exact") -> LoadedModel:
    """Takes over a built ``transformers`` causal LM (any device and dtype). ``pack``: where this makes it
    faster; no gradient flows through packed weights and fused kernels. ``weights``: see ``EngineConfig``.

    Raises:
        ConfigError, ModelUnsupported: see ``load_model``.
    """
    hf_model.eval().requires_grad_(False)
    model = take_over(hf_model)
    if pack:
        model.spare_rotation()
    if weights == "int8":
        with torch.inference_mode():
            model.quantise()
    elif pack and can_pack(model.spec.device, model.spec.dtype):
        with torch.inference_mode():
            model.pack()
            model.rows_independent = rows_are_independent(model)
    elif pack and model.spec.device.type == "cuda":
        with torch.inference_mode():
            model.fuse()
            _check_model(model)
    return model


def take_over(hf_model: Any) -> LoadedModel:
    """The same for training: weights stay where they are, and whether they require gradients.

    Raises:
        ModelUnsupported: see ``load_model``.
    """
    check_config(hf_model.config)
    _check_structure(hf_model)
    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    hf_model.set_attn_implementation(ATTENTION)
    model = LoadedModel(hf_model, _spec_of(hf_model))
    with torch.inference_mode():
        _check_model(model)
    return model


def _check_model(model: LoadedModel) -> None:
    """
    Raises:
        ModelUnsupported: it is not reproduced, or built so differently that the check itself cannot run.
    """
    try:
        with told_alike():
            check_model(model)
    except torch.OutOfMemoryError:
        raise
    except _BUILT_DIFFERENTLY as error:
        raise ModelUnsupported(
            f"{type(model.hf_model).__name__} is not built like a Llama; the engine cannot run its layers: "
            f"{error}"
        ) from error


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    kvquilt_step: ModelPass | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The registered attention function: query [1, H, R, D], key and value [1, K, R, D], all unrotated."""
    if kvquilt_step is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    if any(kwargs.get(name) is not None for name in _CHANGES_ATTENTION):
        raise ModelUnsupported(
            f"the model's attention uses {' or '.join(_CHANGES_ATTENTION)}, which the engine does not compute"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _run_step(kvquilt_step, module, query, key, value, scale), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _run_step(
    step: ModelPass, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> Tensor:
    out_HRD = step.run(module.layer_idx, query[0], key[0], value[0], scale)
    return out_HRD.transpose(0, 1)[None]


def read_config(path: str) -> Any:
    """The configuration of a model that is served, as far as it tells.

    Raises:
        InvalidRequest, ModelUnsupported: see ``load_model``.
    """
    config = _config_at(path)
    check_config(config)
    return config


def _config_at(path: str) -> Any:
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if Path(path).is_absolute() and not Path(path).exists():
            raise InvalidRequest(f"model: there is no directory {path!r}") from error
        if Path(path).exists() and not Path(path).is_dir():
            raise InvalidRequest(
                f"model: {path!r} is a file; give the model's directory or its hub id"
            ) from error
        raise InvalidRequest(f"model: no usable model configuration at {path!r}: {error}") from error


def _check_structure(hf_model: Any) -> None:
    decoder = getattr(hf_model, "model", None)
    for part in ("embed_tokens", "layers", "norm", "rotary_emb"):
        if not hasattr(decoder, part):
            raise ModelUnsupported(
                f"{type(hf_model).__name__} is not built like a Llama (model.{part} is missing)"
            )
    if not hasattr(hf_model, "lm_head"):
        raise ModelUnsupported(f"{type(hf_model).__name__} has no lm_head")


def _spec_of(hf_model: Any) -> ModelSpec:
    config = hf_model.config
    heads = config.num_attention_heads
    eos = getattr(getattr(hf_model, "generation_config", None), "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    weight = hf_model.lm_head.weight
    return ModelSpec(
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=weight.shape[0],
        max_positions=config.max_position_embeddings,
        sliding_window=getattr(config, "sliding_window", None),
        eos_ids=frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos),
        dtype=weight.dtype,
        device=weight.device,
        rope=RopeSpec(tuple(hf_model.model.rotary_emb.inv_freq.double().tolist())),
    )
