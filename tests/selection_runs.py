"""Question attention by stock ``transformers`` alone, and small auxiliary models to compare with it.

Shapes: H heads, Q tokens of the question, T tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedTokenizerFast

from shared.engine import EngineConfig, wrap_model
from shared.prompt import PromptTokenizer
from shared.prompt_template import PromptTemplate
from shared.selection.auxiliary import Auxiliary
from shared.selection.scoring import EngineScorer
from shared.selection.spans import SpanTokenizer
from tests.oracles import rotate_keys, tiny_model
from tests.token_families import tokenizer_of

Ids = Sequence[int]


def eager(model: Any) -> Any:
    """A copy that tells its attention."""
    told = copy.deepcopy(model)
    told.set_attn_implementation("eager")
    return told


def each_attention(
    model: Any, prefix: Ids, chunks: Sequence[Ids], question: Ids, layer: int = -1
) -> list[torch.Tensor]:
    """One stock forward per chunk over (prefix, chunk, question); of one with a chain (``oracles.Chained``)
    as ``stitched_attention`` of it alone. Per chunk [T], the mean over heads and question."""
    found = []
    for chunk in chunks:
        if _chain_of(chunk):
            found += stitched_attention(model, prefix, [chunk], question, layer)
            continue
        with torch.no_grad():
            out = model(torch.tensor([[*prefix, *chunk, *question]]), output_attentions=True, use_cache=False)
        mean_T = out.attentions[layer][0, :, -len(question) :].float().mean((0, 1))
        found.append(mean_T[len(prefix) : len(prefix) + len(chunk)])
    return found


def stitched_attention(
    model: Any, prefix: Ids, chunks: Sequence[Ids], question: Ids, layer: int = -1
) -> list[torch.Tensor]:
    """Every chunk's KV from a stock forward over (prefix, its chain, chunk), moved to its place behind the
    others, then one stock forward of the question over that past. Per chunk [T]."""
    past, start = DynamicCache(), len(prefix)
    with torch.no_grad():
        if prefix:
            _append(model, past, prefix, 0, 0)
        for chunk in chunks:
            if chunk:
                chain = _chain_of(chunk)
                front = len(prefix) + len(chain)
                _append(model, past, [*prefix, *chain, *chunk], front, start - front)
            start += len(chunk)
        positions = torch.arange(start, start + len(question))[None]
        out = model(
            torch.tensor([list(question)]),
            position_ids=positions,
            past_key_values=past,
            output_attentions=True,
        )
    if not chunks:
        return []
    mean_T = out.attentions[layer][0].float().mean((0, 1))[len(prefix) : start]
    return list(mean_T.split([len(chunk) for chunk in chunks]))


def _chain_of(chunk: Ids) -> list[int]:
    return [token for link in getattr(chunk, "chain", ()) for token in link]


def _append(model: Any, past: DynamicCache, ids: Ids, skip: int, by: int) -> None:
    own = DynamicCache()
    model(torch.tensor([list(ids)]), past_key_values=own, use_cache=True)
    for index, layer in enumerate(own.layers):
        past.update(rotate_keys(model, layer.keys[:, :, skip:], by), layer.values[:, :, skip:], index)


def auxiliary_of(
    tokenizer_family: str, model_family: str = "llama", config: EngineConfig | None = None, **changes: Any
) -> Auxiliary:
    """A random model of that family with a trained tokenizer."""
    tokenizer = tokenizer_of(tokenizer_family)
    prompts = PromptTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer), PromptTemplate(prefix="the mayor ")
    )
    hf_model = tiny_model(model_family, vocab_size=tokenizer.get_vocab_size(), **changes)
    return Auxiliary(
        EngineScorer(wrap_model(hf_model), prompts.prefix_ids, config),
        SpanTokenizer(tokenizer, tokenizer_family),
        prompts,
    )
