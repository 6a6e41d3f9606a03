"""A stock ``transformers`` causal LM, driven layer by layer with the engine's attention in place of its own.

Position ids of 0 make RoPE the identity, so the registered attention function receives unrotated queries and
keys and owns positions, masks and KV. Without a step (``kvquilt_step``) the same model object behaves as it
always did.

Shapes: R rows, H heads, D head_dim, E hidden size, V vocabulary.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shared.engine.attention import StepPlan
from shared.engine.model.packing import can_pack, pack_linears
from shared.engine.model.rope import Angles, RopeSpec
from shared.errors import ConfigError, InvalidRequest, ModelUnsupported

ATTENTION = "kvquilt"
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_CHANGES_ATTENTION = ("softcap", "s_aux")
# Parts of the names of settings that change keys and values at equal weights: rms_norm_eps, hidden_act,
# residual_multiplier, … Chosen by name, so that settings which a later transformers adds do not make stored
# KV foreign.
_SETTINGS_IN_KV = ("eps", "hidden_act", "multiplier", "scaling", "clip", "norm")
_EXACT_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the engine needs to know of a model. ``sliding_window``: positions, or None. ``eos_ids`` end a
    branch."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    sliding_window: int | None
    eos_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    rope: RopeSpec

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


class LoadedModel:
    """The model, its spec, and the fingerprint by which stored KV knows it."""

    def __init__(self, hf_model: Any, spec: ModelSpec) -> None:
        self.hf_model = hf_model
        self.spec = spec
        self._decoder = hf_model.model
        self._layers = list(hf_model.model.layers[: spec.num_layers])
        self._zero = torch.zeros(1, 1, dtype=torch.long, device=spec.device)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hex digits over everything that decides KV: weights, their types, heads, rotation, and what the
        layers do besides."""
        spec, settings = self.spec, self.hf_model.config.to_dict()
        chosen = sorted(
            (k, str(v)) for k, v in settings.items() if any(part in k for part in _SETTINGS_IN_KV)
        )
        shape = (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim)
        rotation = (spec.rope, self._decoder.rotary_emb.attention_scaling)
        return fingerprint_of(self.hf_model, f"{shape} {rotation} {chosen}")

    def pack(self) -> None:
        """From now on the model's weights are for its products alone: nothing else reads them."""
        _ = self.fingerprint
        pack_linears(self.hf_model)

    def compile(self) -> None:
        """From now on what stands between two attentions is one compiled piece, for any number of rows, so
        that a GPU is told of few kernels per layer. The first step pays for it.

        Raises:
            ConfigError: the weights are packed.
        """
        if can_pack(self.spec.device, self.spec.dtype):
            raise ConfigError(
                "engine.compile: bfloat16 weights on a CPU are packed for its matrix products, which "
                "torch.compile cannot read; "
                "leave it out, or set engine.device to cuda"
            )
        self._layers = [
            torch.compile(layer, dynamic=True) for layer in self._decoder.layers[: self.spec.num_layers]
        ]

    def forward(self, token_ids_R: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        """Runs the rows through all layers; their KV is appended to their segments. Returns hidden states [R,
        E]."""
        hidden_RE = self.embed(token_ids_R)
        cos_sin = self.unrotated(hidden_RE)
        for layer in range(self.spec.num_layers):
            hidden_RE = self.run_layer(layer, hidden_RE, cos_sin, plan)
        return hidden_RE

    def embed(self, token_ids_R: torch.Tensor) -> torch.Tensor:
        """What goes into the first layer [R, E]."""
        hidden_RE: torch.Tensor = self._decoder.embed_tokens(token_ids_R[None])[0]
        return hidden_RE

    def unrotated(self, hidden_RE: torch.Tensor) -> Angles:
        """Rotation by nothing, for every layer."""
        cos_sin: Angles = self._decoder.rotary_emb(hidden_RE[None], position_ids=self._zero)
        return cos_sin

    def run_layer(self, layer: int, hidden_RE: torch.Tensor, cos_sin: Angles, plan: StepPlan) -> torch.Tensor:
        hidden = self._layers[layer](
            hidden_RE[None],
            attention_mask=None,
            position_embeddings=cos_sin,
            use_cache=False,
            kvquilt_step=plan,
        )
        rows_RE: torch.Tensor = hidden[0][0] if isinstance(hidden, tuple) else hidden[0]
        return rows_RE

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """Raw logits [R, V] in float32."""
        logits_RV: torch.Tensor = self.hf_model.lm_head(self._decoder.norm(hidden_RE[None]))[0]
        return logits_RV.float()


def fingerprint_of(hf_model: Any, besides: str) -> str:
    """32 hex digits over the model's class, its weights with their types, and what decides its KV besides
    these."""
    digest = hashlib.sha256(f"{type(hf_model).__name__} {besides}".encode())
    for name, parameter in sorted(hf_model.named_parameters()):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def load_model(path: str, *, dtype: str = "auto", device: str = "cpu") -> LoadedModel:
    """Loads a model directory or hub id and checks that the engine reproduces it.

    Raises:
        InvalidRequest: nothing loadable is there, or it is not a causal LM.
        ModelUnsupported: the engine would not compute what the model computes; the reason is named.
    """
    config = _read_config(path)
    _check_config(config)
    try:
        hf_model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=_DTYPES.get(dtype, "auto"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"model: the weights of {path!r} cannot be loaded: {error}") from error
    return wrap_model(hf_model.to(device))


def wrap_model(hf_model: Any) -> LoadedModel:
    """Takes over a built ``transformers`` causal LM (any device and dtype).

    Raises:
        ModelUnsupported: see ``load_model``.
    """
    from shared.engine.model.self_check import check_model

    _check_config(hf_model.config)
    _check_structure(hf_model)
    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    hf_model.set_attn_implementation(ATTENTION)
    hf_model.eval().requires_grad_(False)
    spec = _spec_of(hf_model)
    model = LoadedModel(hf_model, spec)
    with torch.inference_mode():
        check_model(model)
        if can_pack(spec.device, spec.dtype):
            model.pack()
    return model


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    kvquilt_step: StepPlan | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The registered attention function: query [1, H, R, D], key and value [1, K, R, D], all unrotated."""
    if kvquilt_step is None:
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(
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
    step: StepPlan, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    out_HRD = step.run(module.layer_idx, query[0], key[0], value[0], scale)
    return out_HRD.transpose(0, 1)[None]


def _read_config(path: str) -> Any:
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        if Path(path).is_absolute() and not Path(path).exists():
            raise InvalidRequest(f"model: there is no directory {path!r}") from error
        if Path(path).exists() and not Path(path).is_dir():
            raise InvalidRequest(
                f"model: {path!r} is a file; give the model's directory or its hub id"
            ) from error
        raise InvalidRequest(f"model: no usable model configuration at {path!r}: {error}") from error


def _check_config(config: Any) -> None:
    architectures = getattr(config, "architectures", None) or []
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or (
        architectures and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    ):
        raise InvalidRequest(
            f"model: {' '.join(architectures) or config.model_type} is not a causal language model; "
            "give one that generates text"
        )
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        raise ModelUnsupported(
            f"model type {config.model_type!r} has no rotary position embedding (RoPE); stored KV can "
            "only be moved by rotation"
        )
    if any(isinstance(value, dict) for value in rope.values()):
        raise ModelUnsupported(
            "the model rotates its layers differently (RoPE parameters per layer type); one rotation "
            "is needed"
        )
    kind = rope.get("rope_type", "default")
    if kind not in _EXACT_ROPE_TYPES:
        raise ModelUnsupported(
            f"RoPE type {kind!r} is not supported: its angles depend on the request's length; "
            f"supported: {', '.join(_EXACT_ROPE_TYPES)}"
        )


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
