"""What the engine must equal, written with stock ``transformers`` and plain torch alone.

Tiny random models of every supported rotary family, and for each reuse mode the logits that a correct engine
has in front of every generated token. The oracles are teacher-forced on the generated tokens: by induction
"our token is the oracle's best one in front of every step" is the same thing as equal greedy decoding, and it
stays meaningful after a near-tie.

Shape suffixes: L layers, H key-value heads, T tokens, D head size, V vocabulary, G generated tokens.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

VOCAB = 257
NEAR_TIE = 1e-3
FLOAT64_ANGLES_FROM = 2000  # positions beyond which stock float32 rotation angles are themselves too coarse

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 20000,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 2500}
_EXPERTS = {"head_dim": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

_CONFIGS: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": lambda **kw: LlamaConfig(**_SIZES | kw),
    "llama3": lambda **kw: LlamaConfig(**_SIZES | {"rope_parameters": _LLAMA3} | kw),
    "llama_yarn": lambda **kw: LlamaConfig(**_SIZES | {"rope_parameters": _YARN} | kw),
    "llama_linear": lambda **kw: LlamaConfig(**_SIZES | {"rope_parameters": _LINEAR} | kw),
    "qwen2": lambda **kw: Qwen2Config(**_SIZES | kw),
    "qwen3": lambda **kw: Qwen3Config(**_SIZES | {"head_dim": 32} | kw),
    "mistral": lambda **kw: MistralConfig(**_SIZES | {"sliding_window": None} | kw),
    "phi3": lambda **kw: Phi3Config(**_SIZES | kw),
    "qwen3_moe": lambda **kw: Qwen3MoeConfig(**_SIZES | _EXPERTS | {"num_experts": 4} | kw),
    "mixtral": lambda **kw: MixtralConfig(**_SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2} | kw),
    "phi3_partial": lambda **kw: Phi3Config(**_SIZES | {"partial_rotary_factor": 0.5} | kw),
}
FAMILIES = ("llama3", "qwen2", "qwen3", "mistral", "phi3")
VARIANTS = ("llama", "llama_yarn", "llama_linear", "phi3_partial")


def tiny_config(family: str, **changes: Any) -> PreTrainedConfig:
    return _CONFIGS[family](**changes)


def tiny_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A float32 model of ``family`` whose logits are well spread (std about 3: near-ties are rare) and whose
    attention is neither uniform nor one-hot. Equal arguments build equal models: give the engine and the
    oracle one each."""
    model = AutoModelForCausalLM.from_config(
        tiny_config(family, **changes), dtype=torch.float32, attn_implementation="sdpa"
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else noise * _std(name, parameter))
    return model.eval()


def as_dtype(model: Any, dtype: torch.dtype) -> Any:
    """A copy whose weights have ``dtype`` and whose rotation frequencies stay in float32, as
    ``from_pretrained`` loads it."""
    cast = copy.deepcopy(model).to(dtype)
    cast.config.dtype = dtype
    cast.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)
    return cast


class Chained(tuple[int, ...]):
    """The ids of a chunk that is computed behind ``chain``, the chunks in front of it in its document."""

    chain: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, token_ids: Iterable[int], chain: Iterable[Sequence[int]]) -> Chained:
        chunk = cls(token_ids)
        chunk.chain = tuple(map(tuple, chain))
        return chunk


def full(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    generated: Sequence[int],
) -> torch.Tensor:
    """Law 1: the stock forward over everything. Float32 logits in front of every generated token, [G, V]."""
    ids = [*prefix, *(i for c in chunks for i in c), *question, *generated[:-1]]
    with torch.no_grad(), _angles_for(model, len(ids)):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits[-len(generated) :].float()


def reordered(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    generated: Sequence[int],
) -> torch.Tensor:
    """Law 2, in two stages: KV of every chunk from a stock forward over (prefix, chunk), its keys rotated on
    to the chunk's place in the row of all chunks, then a stock forward of the question over that past.
    Returns [G, V]."""
    return recomputed(model, prefix, chunks, question, generated, ())


def recomputed(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    generated: Sequence[int],
    selected: Iterable[int],
) -> torch.Tensor:
    """Law 4: as ``reordered``, but the ``selected`` tokens of the context (counted from 0 behind the prefix)
    run through the model together with the question, over a past of the others alone: in every layer a token
    attends to fresh keys and values of the selected ones in front of it and to the isolated ones of the rest,
    whose hidden states nobody computes anew. Returns [G, V]."""
    tail = [*question, *generated[:-1]]
    ids = [*prefix, *(i for c in chunks for i in c), *tail]
    past_len = len(ids) - len(tail)
    fresh = sorted(len(prefix) + token for token in selected)
    frozen = sorted({*range(past_len)} - {*fresh})
    rows = [*fresh, *range(past_len, len(ids))]
    with torch.no_grad(), _angles_for(model, len(ids)):
        past = DynamicCache()
        if frozen:
            _append(
                past, [(k[:, :, frozen], v[:, :, frozen]) for k, v in _stitched_kv(model, prefix, chunks)]
            )
        key_positions, row_positions = torch.tensor([*frozen, *rows]), torch.tensor(rows)
        hidden = key_positions[None] > row_positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=model.dtype).masked_fill(hidden, torch.finfo(model.dtype).min)
        logits = model(
            input_ids=torch.tensor([[ids[row] for row in rows]]),
            attention_mask=mask[None, None],
            position_ids=row_positions[None],
            past_key_values=past if frozen else None,
            use_cache=True,
        ).logits[0]
    return logits[-len(generated) :].float()


def epic_tokens(chunk_lens: Sequence[int], count: int) -> list[int]:
    """The first tokens of every chunk but the first, evenly; then those of the first."""
    places = [
        (chunk == 0, token, chunk) for chunk, length in enumerate(chunk_lens) for token in range(length)
    ]
    return sorted(sum(chunk_lens[:chunk]) + token for _, token, chunk in sorted(places)[:count])


def question_scores(
    model: Any, prefix: Sequence[int], chunks: Sequence[Sequence[int]], question: Sequence[int]
) -> torch.Tensor:
    """Weight that each token of the context has for the question when all chunks are stitched: the mean over
    layers, heads and the question's tokens, by the stock attention that tells its weights."""
    past = DynamicCache()
    past_len = len(prefix) + sum(map(len, chunks))
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad(), _angles_for(model, past_len + len(question)):
            _append(past, _stitched_kv(model, prefix, chunks))
            positions = torch.arange(past_len, past_len + len(question))[None]
            weights = model(
                input_ids=torch.tensor([list(question)]),
                position_ids=positions,
                past_key_values=past,
                output_attentions=True,
            ).attentions
    finally:
        model.set_attn_implementation("sdpa")
    return torch.stack([layer[0].mean((0, 1)) for layer in weights]).mean(0)[len(prefix) : past_len]


def random_tokens(num_tokens: int, count: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(num_tokens), count))


def composite(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    generated: Sequence[int],
) -> torch.Tensor:
    """Law 3: one stock forward with a block-diagonal causal mask (the prefix is visible to all, everything to
    the question), every chunk's positions beginning right after the prefix, the question's at its place in
    the row of all tokens. Returns [G, V]."""
    tail = [*question, *generated[:-1]]
    owners = (
        [-1] * len(prefix) + [c for c, chunk in enumerate(chunks) for _ in chunk] + [len(chunks)] * len(tail)
    )
    positions = list(range(len(prefix))) + [len(prefix) + i for chunk in chunks for i in range(len(chunk))]
    positions += range(len(positions), len(positions) + len(tail))
    owner = torch.tensor(owners)
    visible = (owner[:, None] == owner[None]) | (owner[None] == -1) | (owner[:, None] == len(chunks))
    visible &= torch.ones(len(owner), len(owner), dtype=torch.bool).tril()
    mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)
    ids = [*prefix, *(i for c in chunks for i in c), *tail]
    with torch.no_grad(), _angles_for(model, len(ids)):
        logits = model(
            input_ids=torch.tensor([ids]),
            attention_mask=mask[None, None],
            position_ids=torch.tensor([positions]),
            use_cache=False,
        ).logits[0]
    return logits[-len(generated) :].float()


def blended(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    generated: Sequence[int],
    ratio: float,
) -> torch.Tensor:
    """``cacheblend``, layer by layer with the stock layers: two compute the whole context, every later one
    those tokens of the layer before whose keys and values there are farthest from the stitched ones. Returns
    [G, V]."""
    tail = [*question, *generated[:-1]]
    context = [i for c in chunks for i in c]
    start, end = len(prefix), len(prefix) + len(context)
    num_layers = len(model.model.layers)
    steps = torch.linspace(1, -1, num_layers - 2).tolist() if num_layers > 3 else [0.0] * (num_layers - 2)
    later = max(0.0, num_layers * ratio - 2) / (num_layers - 2)  # so that the mean of all layers is the ratio
    counts = [len(context)] * 2 + [
        int((later + min(later, 1 - later) / 2 * s) * len(context) + 0.5) for s in steps
    ]
    with torch.no_grad(), _angles_for(model, end + len(tail)):
        stitched = _stitched_kv(model, prefix, chunks)
        rows = torch.arange(start, end)
        hidden = model.model.embed_tokens(torch.tensor([context]))
        past, deviation = DynamicCache(), torch.empty(0)
        for layer, count in enumerate(counts):
            if count < len(rows):
                kept = deviation.sort(descending=True, stable=True).indices[:count].sort().values
                rows, hidden = rows[kept], hidden[:, kept]
            k, v = (x.clone() for x in stitched[layer])
            if len(rows):
                hidden, fresh_k, fresh_v = _run_layer(model, layer, hidden, rows, (k, v))
                apart = (fresh_k - k[:, :, rows]).square() + (fresh_v - v[:, :, rows]).square()
                deviation = apart.sum((0, 1, 3))
                k[:, :, rows], v[:, :, rows] = fresh_k, fresh_v
            past.update(k, v, layer)
        logits = model(
            input_ids=torch.tensor([tail]),
            position_ids=torch.arange(end, end + len(tail))[None],
            past_key_values=past,
            use_cache=True,
        ).logits[0]
    return logits[-len(generated) :].float()


def _run_layer(
    model: Any, layer: int, hidden: torch.Tensor, rows: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A stock layer over tokens at the positions ``rows``, which see themselves and what ``kv`` has of the
    others in front of them. Returns hidden states, and the keys and values of the rows."""
    others = torch.tensor([p for p in range(kv[0].shape[2]) if p not in set(rows.tolist())], dtype=torch.long)
    cache = DynamicCache()
    for below in range(layer + 1):
        cache.update(kv[0][:, :, others], kv[1][:, :, others], below)
    ahead = torch.cat((others, rows))[None] > rows[:, None]
    mask = torch.zeros(ahead.shape, dtype=model.dtype).masked_fill(ahead, torch.finfo(model.dtype).min)
    out = model.model.layers[layer](
        hidden,
        attention_mask=mask[None, None],
        position_ids=rows[None],
        past_key_values=cache,
        use_cache=True,
        position_embeddings=model.model.rotary_emb(hidden, rows[None]),
    )
    fresh = cache.layers[layer]
    return (
        (out[0] if isinstance(out, tuple) else out),
        fresh.keys[:, :, len(others) :],
        fresh.values[:, :, len(others) :],
    )


def ape(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    generated: Sequence[int],
    temperature: float = 0.9,
    scale: float = 0.9,
) -> torch.Tensor:
    """Law 3: every chunk right after the prefix, the question after the longest, by the stock model with
    APE's formula in the place of its attention. Returns [G, V]."""
    tail = [*question, *generated[:-1]]
    first, past_len = len(prefix), len(prefix) + sum(map(len, chunks))
    start = first + max(map(len, chunks), default=0)

    def attention(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        scaling: float,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        logits = query @ key.transpose(2, 3) * scaling
        logits[..., past_len:] += torch.full(logits.shape[2:], float("-inf")).triu(1)[:, : len(tail)]
        chunk = torch.zeros(key.shape[2], dtype=torch.bool)
        chunk[first:past_len] = True
        of_chunks, of_others = (logits[..., chunk] / temperature).exp(), logits[..., ~chunk].exp()
        out_of_chunks = of_chunks @ value[:, :, chunk] / of_chunks.sum(-1, keepdim=True)
        out_of_others = of_others @ value[:, :, ~chunk] / of_others.sum(-1, keepdim=True)
        z_chunks = of_chunks.sum(-1, keepdim=True) ** (scale * temperature)
        z_others = of_others.sum(-1, keepdim=True)
        out = (
            (z_chunks * out_of_chunks + z_others * out_of_others) / (z_chunks + z_others)
            if past_len > first
            else out_of_others
        )
        return out.transpose(1, 2), None

    with torch.no_grad(), _angles_for(model, start + len(tail)), _attending_by(model, attention):
        past = DynamicCache()
        kvs = [_kv_of(model, prefix)] if prefix else []
        kvs += [_chunk_kv(model, prefix, chunk) for chunk in chunks]
        for kv in kvs:
            _append(past, kv)
        model.set_attn_implementation(_OURS)
        logits = model(
            input_ids=torch.tensor([tail]),
            position_ids=torch.arange(start, start + len(tail))[None],
            past_key_values=past if kvs else None,
            use_cache=True,
        ).logits[0]
    return logits[-len(generated) :].float()


_OURS = "oracle"


@contextlib.contextmanager
def _attending_by(model: Any, attention: Callable[..., tuple[torch.Tensor, None]]) -> Iterator[None]:
    """Inside, the model can be told to attend by this function, named ``_OURS``."""
    AttentionInterface.register(_OURS, attention)
    AttentionMaskInterface.register(_OURS, sdpa_mask)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


def _epic(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    generated: Sequence[int],
) -> torch.Tensor:
    lens = [len(chunk) for chunk in chunks]
    return recomputed(model, prefix, chunks, question, generated, epic_tokens(lens, _a_fifth(lens)))


def _random(
    model: Any,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    generated: Sequence[int],
) -> torch.Tensor:
    lens = [len(chunk) for chunk in chunks]
    return recomputed(
        model, prefix, chunks, question, generated, random_tokens(sum(lens), _a_fifth(lens), seed=0)
    )


def _a_fifth(chunk_lens: Sequence[int]) -> int:
    return round(sum(chunk_lens) / 5)


Oracle = Callable[[Any, Sequence[int], Sequence[Sequence[int]], Sequence[int], Sequence[int]], torch.Tensor]
# What a request of this mode equals that says nothing else of what is to be recomputed.
ORACLES: dict[str, Oracle] = {
    "full": full,
    "reordered": reordered,
    "composite": composite,
    "tokens": reordered,
    "epic": _epic,
    "random": _random,
    "ape": ape,
}


def greedy(
    model: Any,
    mode: str,
    prefix: Sequence[int],
    chunks: Sequence[Sequence[int]],
    question: Sequence[int],
    num_tokens: int,
) -> list[int]:
    """The oracle's own greedy decoding, one whole forward per token."""
    tokens: list[int] = []
    for _ in range(num_tokens):
        tokens.append(int(ORACLES[mode](model, prefix, chunks, question, [*tokens, 0])[-1].argmax()))
    return tokens


@dataclass(frozen=True)
class Generated:
    """What was generated in one branch: per token its id, its log-probability and the top ones (id,
    log-probability)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()


def assert_same_generation(
    ours: Generated, oracle_GV: torch.Tensor, tolerance: float = 1e-4, greedy: bool = True
) -> None:
    """``oracle_GV``: the oracle's logits teacher-forced on our tokens. Every token is the oracle's best one,
    or as good as it to within a near-tie; every log-probability is the oracle's within ``tolerance``, and the
    top ones are really the top ones."""
    assert len(ours.token_ids) == len(oracle_GV) > 0
    logprobs_GV = oracle_GV.log_softmax(-1)
    for step, (token, logprob) in enumerate(zip(ours.token_ids, ours.logprobs, strict=True)):
        expected = logprobs_GV[step]
        assert abs(logprob - float(expected[token])) < tolerance, (
            f"step {step}: log-probability of token {token}: {logprob}, oracle {float(expected[token])}"
        )
        if greedy:
            gap = float(oracle_GV[step].max() - oracle_GV[step, token])
            assert gap < NEAR_TIE, (
                f"step {step}: token {token}, but the oracle's {int(expected.argmax())} is better by {gap}"
            )
    for step, top in enumerate(ours.top_logprobs):
        best = logprobs_GV[step].topk(len(top)).values
        for rank, (token, logprob) in enumerate(top):
            assert abs(logprob - float(logprobs_GV[step, token])) < tolerance, (
                f"step {step}, rank {rank}: token {token}"
            )
            assert abs(logprob - float(best[rank])) < tolerance, (
                f"step {step}: token {token} is not of rank {rank}"
            )
        assert len({token for token, _ in top}) == len(top), f"step {step}: a token twice"


def rotate_keys(model: Any, keys: torch.Tensor, by: int) -> torch.Tensor:
    """Rotated keys [.., T, D] moved ``by`` positions. A pure rotation: a scaling such as YaRN's attention
    factor is in the keys already. Angles in float64, the product in float32, one rounding; dimensions that
    the model does not rotate stay."""
    inv_freq = model.model.rotary_emb.inv_freq.double()
    rotary_dim = 2 * len(inv_freq)
    angle = torch.cat((inv_freq, inv_freq)) * by
    cos, sin = angle.cos().float(), angle.sin().float()
    rotated, rest = keys[..., :rotary_dim].float(), keys[..., rotary_dim:]
    half = torch.cat((-rotated[..., rotary_dim // 2 :], rotated[..., : rotary_dim // 2]), dim=-1)
    return torch.cat(((rotated * cos + half * sin).to(keys.dtype), rest), dim=-1)


class _Float64Rotary(torch.nn.Module):
    """The stock rotary embedding with its angles in float64."""

    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.inv_freq = stock.inv_freq
        self.attention_scaling = stock.attention_scaling

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * self.inv_freq.double()
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self.attention_scaling).to(x.dtype), (
            angles.sin() * self.attention_scaling
        ).to(x.dtype)


@contextlib.contextmanager
def _angles_for(model: Any, num_positions: int) -> Iterator[None]:
    if num_positions <= FLOAT64_ANGLES_FROM:
        yield
        return
    stock = model.model.rotary_emb
    model.model.rotary_emb = _Float64Rotary(stock)
    try:
        yield
    finally:
        model.model.rotary_emb = stock


def _kv_of(model: Any, ids: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values per layer, [1, H, T, D] each. Of a model with an adapter merged
    (``tests.lora_adapters``) by the one that stores KV."""
    model = getattr(model, "stored_by", model)
    cache = DynamicCache()
    model(input_ids=torch.tensor([list(ids)]), past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]


def _chunk_kv(
    model: Any, prefix: Sequence[int], chunk: Sequence[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values per layer of a chunk from a forward over (prefix, chain, chunk), its keys moved right
    behind the prefix."""
    chain = [i for link in getattr(chunk, "chain", ()) for i in link]
    front = len(prefix) + len(chain)
    return [
        (rotate_keys(model, k[:, :, front:], -len(chain)), v[:, :, front:])
        for k, v in _kv_of(model, [*prefix, *chain, *chunk])
    ]


def _stitched_kv(
    model: Any, prefix: Sequence[int], chunks: Sequence[Sequence[int]]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values per layer of the prefix and, computed behind it and their own chains and moved to their
    places, of all chunks."""
    parts = [_kv_of(model, prefix)] if prefix else []
    moved = 0
    for chunk in chunks:
        parts.append([(rotate_keys(model, k, moved), v) for k, v in _chunk_kv(model, prefix, chunk)])
        moved += len(chunk)
    return [
        (torch.cat([k for k, _ in layer], 2), torch.cat([v for _, v in layer], 2))
        for layer in zip(*parts, strict=True)
    ]


def _append(past: DynamicCache, kv: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for layer, (k, v) in enumerate(kv):
        past.update(k, v, layer)


def _std(name: str, parameter: torch.Tensor) -> float:
    if name.endswith("bias"):
        return 0.3
    if "embed_tokens" in name:
        return 1.0
    fan_in = parameter.shape[-1] ** 0.5
    if "lm_head" in name:
        return 3.0 / fan_in
    return (1.5 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.0) / fan_in
