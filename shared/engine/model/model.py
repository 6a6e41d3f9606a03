"""A stock ``transformers`` causal LM, driven layer by layer with the engine's attention in place of its own.

Position ids of 0 make RoPE the identity, so the registered attention function receives unrotated queries and
keys and owns positions, masks and KV. Without a step (``kvquilt_step``) the same model object behaves as it
always did.

Shapes: R rows, H heads, D head_dim, E hidden size, V vocabulary.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from shared.engine.attention import Attention, StepPlan
from shared.engine.backends.native import NativeAttention
from shared.engine.device_arrays import integers
from shared.engine.host_memory import HostArena
from shared.engine.model.adapting import AdaptedRows, AdapterWeights, adapting
from shared.engine.model.int8 import SCHEME, check_int8
from shared.engine.model.lora import LoraAdapter, linear_shapes
from shared.engine.model.native_layer import NativeLayer, NativeLayers, native_layer
from shared.engine.model.packets import Packets
from shared.engine.model.packing import Products, best_products, can_pack, int8_products, pack_linears
from shared.engine.model.rope import Angles
from shared.engine.model.spec import ModelSpec
from shared.engine.model.unrotated import no_rotation, skip_no_rotation
from shared.engine_config import Weights
from shared.errors import ConfigError

log = logging.getLogger(__name__)

# Parts of the names of settings that change keys and values at equal weights: rms_norm_eps, hidden_act,
# residual_multiplier, … Chosen by name, so that settings which a later transformers adds do not make stored
# KV foreign.
_SETTINGS_IN_KV = ("eps", "hidden_act", "multiplier", "scaling", "clip", "norm")


class ModelPass(Attention, Protocol):
    """Rows that go through the layers together, by their tokens, and which of them go with adapters:
    ``StepPlan``, and what trains as that serves."""

    @property
    def token_ids(self) -> Sequence[int] | Tensor: ...
    @property
    def adapted(self) -> AdaptedRows: ...


class LoadedModel:
    """The model, its spec, and the fingerprint by which stored KV knows it. ``soft_PE``: what goes into the
    first layer for ids beyond the vocabulary (``shared.packets``); None: there are no such ids.
    ``linear_shapes``: of the linear layers that adapters may change. ``rows_independent``: no row's bits
    depend on the rows that go through the layers beside it, except by attention."""

    def __init__(self, hf_model: Any, spec: ModelSpec) -> None:
        self.hf_model = hf_model
        self.spec = spec
        self.soft_PE: Tensor | None = None
        self.weights: Weights = "exact"
        self.rows_independent = False
        self._packets: Packets | None = None
        self._decoder = hf_model.model
        self._layers = list(hf_model.model.layers[: spec.num_layers])
        self._native: list[NativeLayer | None] = [None] * spec.num_layers
        self._native_layers: NativeLayers | None = None
        self.linear_shapes = linear_shapes(self._layers)
        # rotation by nothing, for every layer
        self._unrotated: Angles = self._decoder.rotary_emb(
            torch.zeros(1, dtype=spec.dtype, device=spec.device),
            position_ids=torch.zeros(1, 1, dtype=torch.long, device=spec.device),
        )

    @property
    def fingerprint(self) -> str:
        """32 hex digits over everything that decides KV: the model's own, how its weights are rounded, and
        packets, if there are any."""
        base = self.base_fingerprint
        if self.weights == "int8":
            base = hashlib.sha256(f"{base} {SCHEME}".encode()).hexdigest()[:32]
        return base if self._packets is None else self._packets.fingerprint(base)

    @functools.cached_property
    def base_fingerprint(self) -> str:
        """Without packets, and of exact weights: these, their types, heads, rotation, and what the layers do
        besides. Adapters and packets are made for it."""
        spec, settings = self.spec, self.hf_model.config.to_dict()
        chosen = sorted(
            (k, str(v)) for k, v in settings.items() if any(part in k for part in _SETTINGS_IN_KV)
        )
        shape = (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim)
        rotation = (spec.rope, self._decoder.rotary_emb.attention_scaling)
        return fingerprint_of(self.hf_model, f"{shape} {rotation} {chosen}")

    def end_also_at(self, token_ids: Iterable[int]) -> None:
        """Branches end at these tokens too, besides the model's own end marks."""
        self.spec = replace(self.spec, eos_ids=self.spec.eos_ids.union(token_ids))

    def pack(self) -> None:
        """From now on the model's weights are for its products alone: nothing else reads them."""
        _ = self.base_fingerprint
        self._replace(best_products())

    def _replace(self, products: Products) -> None:
        pack_linears(self.hf_model, products, HostArena())
        if products.rowwise:
            self._native = [
                native_layer(module, functools.partial(self._run_layer, layer), self.spec)
                for layer, module in enumerate(self._layers)
            ]
            self._native_layers = NativeLayers.of(self._native)

    def quantise(self) -> None:
        """From now on the weights of linear layers are int8, and KV is another model's.

        Raises:
            ConfigError, ModelUnsupported: see ``check_int8``.
        """
        _ = self.base_fingerprint
        check_int8(self.hf_model)
        self._replace(int8_products(self.spec.dtype))
        self.weights = "int8"

    def fuse(self) -> None:
        """From now on small operations between the products are a kernel each (``fused``), where Triton is
        there to compile them."""
        if importlib.util.find_spec("triton") is None:
            return
        from shared.engine.model.fused import fuse

        try:
            fuse(self._decoder)
        except Exception as error:  # whatever a compiler or a driver may raise
            log.warning("the layers' small kernels cannot be fused here (%s); slower", error)

    def spare_rotation(self) -> None:
        """From now on layers do not turn queries and keys by positions of 0."""
        for layer in self._layers:
            skip_no_rotation(layer)
        self._unrotated = no_rotation(self._unrotated)

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

    def place(self, adapter: LoraAdapter) -> AdapterWeights:
        """The adapter where the model computes. For layers of torch's modules on a CPU in float32: their
        products as small as its own are faster so than in half the width.

        Raises:
            ModelMismatch: it was made for another model.
        """
        adapter.check_base(self.linear_shapes, self.base_fingerprint)
        on_cpu = self.spec.device.type == "cpu"
        placed = AdapterWeights.of(adapter, self.spec.device, torch.float32 if on_cpu else self.spec.dtype)
        if not any(self._native):
            return placed
        layers = ((layer, self._native[layer], by_path) for layer, by_path in placed.layers.items())
        native = {layer: one.placed(by_path) for layer, one, by_path in layers if one is not None}
        return replace(placed, native=native)

    def place_packets(self, packets: Packets) -> None:
        """From now on chunks stand between these.

        Raises:
            ModelMismatch: they were made for another model.
        """
        hidden_size = self._decoder.embed_tokens.weight.shape[1]
        packets.check_base(self.base_fingerprint, self.spec.vocab_size, hidden_size)
        self._packets = packets
        self.soft_PE = packets.vectors_PE.to(self.spec.device, self.spec.dtype)
        self.spec = replace(self.spec, packets=packets.facts.ids)

    def forward(self, plan: ModelPass) -> Tensor:
        """Runs the plan's rows through all layers; their KV is appended to their segments. Returns hidden
        states [R, E]."""
        hidden_RE, layers = self.embed(plan.token_ids), self._native_layers
        attention = plan.uninterrupted if isinstance(plan, StepPlan) else None
        if layers is not None and isinstance(attention, NativeAttention):
            native = layers.run(hidden_RE, attention, plan.adapted)
            if native is not None:
                return native
        for layer in range(self.spec.num_layers):
            hidden_RE = self.run_layer(layer, hidden_RE, plan)
        return hidden_RE

    def embed(self, token_ids: Sequence[int] | Tensor) -> Tensor:
        """Returns what goes into the first layer [R, E]. A tensor of ids [R] is on the device already."""
        ids_R = token_ids if isinstance(token_ids, Tensor) else integers(token_ids, self.spec.device)
        if self.soft_PE is not None:
            return self._embed_soft(ids_R, token_ids, self.soft_PE)
        hidden_RE: Tensor = self._decoder.embed_tokens(ids_R[None])[0]
        return hidden_RE

    def _embed_soft(self, ids_R: Tensor, token_ids: Sequence[int] | Tensor, soft_PE: Tensor) -> Tensor:
        """Embeds ids. Where they are on the host, rows of packets are looked for there, and gradients go to
        these alone."""
        end = self.spec.vocab_size
        hidden_RE: Tensor = self._decoder.embed_tokens(ids_R.clamp(max=end - 1)[None])[0]
        soft_PE = soft_PE.to(hidden_RE.dtype)
        if isinstance(token_ids, Tensor):
            soft_RE = soft_PE.index_select(0, (ids_R - end).clamp(min=0))
            return torch.where((ids_R >= end)[:, None], soft_RE, hidden_RE)
        rows = [row for row, token in enumerate(token_ids) if token >= end]
        if not rows:
            return hidden_RE
        where_S = integers(rows, self.spec.device)
        which_S = integers([token_ids[row] - end for row in rows], self.spec.device)
        return hidden_RE.index_copy(0, where_S, soft_PE.index_select(0, which_S))

    def run_layer(self, layer: int, hidden_RE: Tensor, plan: ModelPass) -> Tensor:
        """The plan's rows [R, E] behind this layer."""
        native = self._native[layer]
        if native is not None and native.takes(len(hidden_RE), plan.adapted):
            return native(hidden_RE, plan, plan.adapted)
        if not plan.adapted:
            return self._run_layer(layer, hidden_RE, plan)
        with adapting(self._layers[layer], layer, plan.adapted):
            return self._run_layer(layer, hidden_RE, plan)

    def _run_layer(self, layer: int, hidden_RE: Tensor, plan: Attention) -> Tensor:
        hidden = self._layers[layer](
            hidden_RE[None],
            attention_mask=None,
            position_embeddings=self._unrotated,
            use_cache=False,
            kvquilt_step=plan,
        )
        rows_RE: Tensor = hidden[0][0] if isinstance(hidden, tuple) else hidden[0]
        return rows_RE

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Raw logits [R, V] in float32."""
        logits_RV: Tensor = self.hf_model.lm_head(self._decoder.norm(hidden_RE[None]))[0]
        return logits_RV.float()


def fingerprint_of(hf_model: Any, besides: str) -> str:
    """32 hex digits over the model's class, its weights with their types, and what decides its KV besides
    these."""
    digest = hashlib.sha256(f"{type(hf_model).__name__} {besides}".encode())
    for name, parameter in sorted(hf_model.named_parameters()):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]
