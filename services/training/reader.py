"""Greedy answers of a stock ``transformers`` model in the two layouts that a server uses, written for
clarity.

*full*: prefix, chunks and question as one causal text. *reordered*: the keys and values of each chunk come
from a forward over the prefix and that chunk alone; the chunk's keys are then rotated from behind the prefix
to where the chunk stands, and the question reads them (TurboRAG, section 3.2).

Shapes: H key/value heads, T tokens, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from shared.prompt import PromptTokenizer

Mode = Literal["full", "reordered"]
LayerKv = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Reader:
    model: Any
    prompt: PromptTokenizer
    max_tokens: int = 48

    @classmethod
    def of_directory(cls, directory: str, dtype: str = "float32") -> Reader:
        """
        Raises:
            ValueError: the directory has no tokenizer.
        """
        from transformers import AutoModelForCausalLM

        prompt = PromptTokenizer.of_model(directory)
        if prompt is None:
            raise ValueError(f"{directory}: has no tokenizer")
        return cls(
            AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval(), prompt
        )

    @torch.no_grad()
    def answer(self, chunks: Sequence[str], question: str, mode: Mode) -> str:
        prefix, chunk_ids = self.prompt.prefix_ids, [self.prompt.encode_chunk(chunk) for chunk in chunks]
        question_ids = self.prompt.encode_question(question)
        if mode == "full":
            context = [token for ids in (prefix, *chunk_ids) for token in ids]
            return self._decode([*context, *question_ids], None, 0)
        layers, length = self._stitched(prefix, chunk_ids)
        return self._decode(question_ids, layers, length)

    def _decode(self, ids: Sequence[int], past: list[LayerKv] | None, start: int) -> str:
        cache, end_id = _cache_of(past or []), self.model.config.eos_token_id
        answer: list[int] = []
        fed = list(ids)
        while len(answer) < self.max_tokens:
            logits_V = self._forward(fed, cache, start).logits[0, -1]
            start += len(fed)
            fed = [int(logits_V.argmax())]
            if fed[0] == end_id:
                break
            answer += fed
        return self.prompt.decode(answer).strip()

    def _stitched(self, prefix: Sequence[int], chunks: Sequence[Sequence[int]]) -> tuple[list[LayerKv], int]:
        """Keys and values of prefix and chunks in order, and how many tokens they are."""
        cache = _cache_of([])
        self._forward(prefix, cache, 0)
        base = _layers_of(cache)
        pieces, length = [base], len(prefix)
        for ids in chunks:
            cache = _cache_of(base)
            self._forward(ids, cache, len(prefix))
            own = [
                (k_HTD[:, :, len(prefix) :], v_HTD[:, :, len(prefix) :]) for k_HTD, v_HTD in _layers_of(cache)
            ]
            pieces.append([(self._rotated(k_HTD, length - len(prefix)), v_HTD) for k_HTD, v_HTD in own])
            length += len(ids)
        joined = [
            tuple(torch.cat(parts, 2) for parts in zip(*layer, strict=True))
            for layer in zip(*pieces, strict=True)
        ]
        return [(k_HTD, v_HTD) for k_HTD, v_HTD in joined], length

    def _rotated(self, k_HTD: torch.Tensor, distance: int) -> torch.Tensor:
        """Keys moved ``distance`` positions on, in float32."""
        angles_D = self.model.model.rotary_emb.inv_freq.float().repeat(2) * distance
        k_float = k_HTD.float()
        first, second = k_float.chunk(2, -1)
        rotated: torch.Tensor = k_float * angles_D.cos() + torch.cat([-second, first], -1) * angles_D.sin()
        return rotated.to(k_HTD.dtype)

    def _forward(self, ids: Sequence[int], cache: Any, start: int) -> Any:
        positions_1T = torch.arange(start, start + len(ids))[None]
        return self.model(
            torch.tensor([list(ids)]), position_ids=positions_1T, past_key_values=cache, use_cache=True
        )


def _cache_of(layers: Sequence[LayerKv]) -> Any:
    from transformers import DynamicCache

    cache = DynamicCache()
    for i, (k_HTD, v_HTD) in enumerate(layers):
        cache.update(k_HTD, v_HTD, i)
    return cache


def _layers_of(cache: Any) -> list[LayerKv]:
    return [(layer.keys, layer.values) for layer in cache.layers]
