"""Scores by a causal LM that the engine does not drive (learned positions, ALiBi, angles that depend on the
length, …), through the cache and the attention maps that ``transformers`` has of it.

Such a model's keys cannot be moved, so a chunk is only ever read where it was computed, right behind the
prefix: every context is read chunk by chunk (``Reading.EACH``), and no chunk stands behind another. Its
segments hold keys and values as the model's cache does. Of a question only its own rows are computed, but all
of every layer, and the attention of every layer is there for a moment.

Shapes: L layers, H query heads, K kv heads, R rows, T tokens, D head_dim.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from shared.engine.kv.segment import Segment
from shared.engine.model.loader import read_weights
from shared.engine.model.model import fingerprint_of
from shared.engine.model.rope import RopeSpec
from shared.engine.model.rounding import TOLERANCE, relative_error
from shared.engine.model.spec import ModelSpec
from shared.errors import ModelUnsupported
from shared.generation.selection import Reading
from shared.selection.limits import Limits
from shared.selection.scoring import Scores

_NO_LIMIT = 1 << 30
_NOT_IN_KV = ("transformers_version", "architectures", "dtype", "use_cache", "output_attentions")
_PROBE_LEN = 12


class StockScorer:
    """See ``shared.selection.scoring.Scorer``."""

    chains = False

    def __init__(self, hf_model: Any, prefix_ids: Sequence[int] = ()) -> None:
        """
        Raises:
            ModelUnsupported: the model tells no attention, or keeps no keys and values that it can go on
            from; says which. InvalidRequest, ContextTooLong: the prefix is nothing that the model can read.
        """
        self._name = type(hf_model).__name__
        self._model = hf_model.eval().requires_grad_(False)
        self.spec = self._probed()
        self._limits = Limits(self.spec.vocab_size, self.spec.sight, len(prefix_ids))
        self._limits.check_prefix(prefix_ids)
        self._prefix = self._encode(prefix_ids, Segment(self.spec, 0))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of no model of the engine: keys are kept where the model computed them. All settings that are not
        their class's defaults count, as nobody knows which of them decide the KV."""
        settings = self._model.config.to_diff_dict()
        chosen = sorted(
            (k, str(v)) for k, v in settings.items() if k not in _NOT_IN_KV and not k.startswith("_")
        )
        return fingerprint_of(self._model, f"stock {chosen}")

    def encode(self, chunks: Sequence[Sequence[int]], chain: Sequence[Segment] = ()) -> list[Segment]:
        assert not chain, "its keys cannot be moved"
        self._limits.check_chunks(chunks)
        return [self._encode(ids, self._prefix) for ids in chunks]

    def score(
        self, chunks: Sequence[Segment], question_ids: Sequence[int], reading: Reading = Reading.STITCHED
    ) -> Scores:
        self._limits.check_question(question_ids, [chunk.length for chunk in chunks])
        weights = [self._weights(chunk, question_ids) for chunk in chunks]
        return Scores(tuple(weight_T.float().cpu().numpy() for weight_T in weights), Reading.EACH)

    @torch.inference_mode()
    def _encode(self, token_ids: Sequence[int], prefix: Segment) -> Segment:
        segment = Segment(self.spec, len(token_ids))
        if token_ids:
            cache = _cache_of(prefix)
            self._forward(token_ids, cache)
            for layer, (k_KTD, v_KTD) in enumerate(_kv_of(cache)):
                segment.k_LKTD[layer].copy_(k_KTD[:, prefix.length :])
                segment.v_LKTD[layer].copy_(v_KTD[:, prefix.length :])
        segment.length = len(token_ids)
        return segment

    @torch.inference_mode()
    def _weights(self, chunk: Segment, question_ids: Sequence[int]) -> Tensor:
        """Mean attention [T] of the question's rows and all heads to the chunk."""
        start = self._prefix.length
        out = self._forward(question_ids, _cache_of(self._prefix, chunk), output_attentions=True)
        attention_HRT: Tensor = out.attentions[-1][0]
        return attention_HRT.float().mean((0, 1))[start : start + chunk.length]

    def _forward(self, token_ids: Sequence[int], cache: DynamicCache, **options: Any) -> Any:
        ids = torch.tensor([list(token_ids)], device=self._model.device)
        return self._model(ids, past_key_values=cache, use_cache=True, **options)

    def _probed(self) -> ModelSpec:
        """Finds out what the model is, from what it does with a few tokens."""
        config = self._model.config.get_text_config()
        num_heads, vocab_size, kv = self._probe([i % config.vocab_size for i in range(3, 3 + _PROBE_LEN)])
        num_kv_heads, _, head_dim = kv[0][0].shape
        return ModelSpec(
            num_layers=len(kv),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            vocab_size=vocab_size,
            max_positions=getattr(config, "max_position_embeddings", None) or _NO_LIMIT,
            sliding_window=getattr(config, "sliding_window", None),
            eos_ids=frozenset(),
            dtype=self._model.dtype,
            device=self._model.device,
            rope=RopeSpec(()),
        )

    @torch.inference_mode()
    def _probe(self, token_ids: Sequence[int]) -> tuple[int, int, list[tuple[Tensor, Tensor]]]:
        """Reads the tokens at once and in two parts, the second going on from the first's keys and values,
        and checks that this is the same thing and that attention is told. Returns the numbers of heads and of
        logits, and keys and values per layer."""
        whole, parts, cut = DynamicCache(), DynamicCache(), len(token_ids) // 2
        try:
            self._model.set_attn_implementation("eager")
            whole_RV = self._forward(token_ids, whole).logits[0, cut:].float()
            self._forward(token_ids[:cut], parts)
            out = self._forward(token_ids[cut:], parts, output_attentions=True)
            kv = _kv_of(parts)
        except Exception as error:
            raise ModelUnsupported(
                f"{self._name} keeps no keys and values that a question could go on from ({error})"
            ) from error
        maps = getattr(out, "attentions", None)
        if (
            not maps
            or maps[-1] is None
            or tuple(maps[-1].shape[2:]) != (len(token_ids) - cut, len(token_ids))
        ):
            raise ModelUnsupported(
                f"{self._name} does not tell the attention of its last layer, so it cannot score tokens"
            )
        difference = relative_error(out.logits[0], whole_RV)
        if not difference < TOLERANCE[self._model.dtype]:
            raise ModelUnsupported(
                f"{self._name} does not go on from its keys and values as if it had read everything at once "
                f"(relative error {difference:.2g})"
            )
        if len({tuple(x.shape) for of_layer in kv for x in of_layer}) != 1:
            raise ModelUnsupported(
                f"{self._name} has keys and values of different shapes, which a segment cannot hold"
            )
        return maps[-1].shape[1], whole_RV.shape[1], kv


def load_stock(path: str, dtype: str, device: str, prefix_ids: Sequence[int]) -> StockScorer:
    """A model directory or hub id.

    Raises:
        InvalidRequest: its weights cannot be loaded.
        ModelUnsupported: see ``StockScorer``.
    """
    return StockScorer(read_weights(path, dtype=getattr(torch, dtype)).to(device), prefix_ids)


def _kv_of(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Per layer [K, T, D] each."""
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


def _cache_of(*segments: Segment) -> DynamicCache:
    """Nothing in it is shared with the segments: what it grows by, it grows by itself."""
    cache = DynamicCache()
    for segment in segments:
        for layer, (k_KTD, v_KTD) in enumerate(zip(segment.k_LKTD, segment.v_LKTD, strict=True)):
            if segment.length:
                cache.update(k_KTD[None, :, : segment.length], v_KTD[None, :, : segment.length], layer)
    return cache
