"""GGUF files of tiny models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from numpy.typing import NDArray
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tests.oracles import tiny_model

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ the", "1 2")
TOKENS = (*SPECIALS, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES))
# SentencePiece: bytes for what no piece spells, and the better a piece's score, the sooner it is put together
PIECES = (
    *("▁t", "he", "▁the", "er", "in", "▁a", "▁▁", "▁▁▁▁", "la", "lamp", "amp", "▁lamp", "ll", "llo", "hello"),
    *("lo", "▁hello", "é", "▁é", "12", "▁12", "\n", "▁", *"abehilmnoprt12ł"),
)
SENTENCE_TOKENS = ("<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "<|user|>", *PIECES)
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3"}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_model(family: str, **changes: Any) -> Any:
    """A tiny model with as many tokens as the files' byte-level tokenizer has."""
    return tiny_model(family, **({"vocab_size": len(TOKENS)} | changes))


def write_gguf(
    path: Path,
    model: Any,
    quantisation: GGMLQuantizationType = GGMLQuantizationType.F32,
    *,
    architecture: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tokenizer: str | None = "gpt2",
    cut: str = "smollm",
    space_prefix: bool | None = None,
    scores: bool = True,
    extra: Mapping[str, NDArray[np.float32]] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """``settings``: over those of the model, under the architecture's name. ``tokenizer``: "llama" is
    SentencePiece's, with ``scores`` and what it says of a ``space_prefix``. ``extra``: tensors besides the
    model's; ``without``: tensors that are left out. Norms and biases stay float32."""
    config = model.config
    architecture = architecture or ARCHITECTURES[config.model_type]
    writer = GGUFWriter(path, architecture)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "rope.dimension_count": int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1)),
    }
    for name, value in (own | dict(settings or {})).items():
        if value is not None:
            _add(writer, f"{architecture}.{name}", value)
    if tokenizer == "llama":
        _add_sentence_pieces(writer, space_prefix, scores)
    elif tokenizer is not None:
        _add_tokenizer(writer, tokenizer, cut)
    for name, tensor in model.state_dict().items():
        if name in without or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        values = tensor.float().numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            values = _paired(values, heads)
        kind = quantisation if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(_name(name), quantize(values, kind), raw_dtype=kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add = writer.add_array if isinstance(value, list) else kinds[type(value)]
    add(key, value)


def _add_tokenizer(writer: GGUFWriter, kind: str, cut: str) -> None:
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(list(TOKENS))
    special = len(SPECIALS)
    writer.add_token_types([TokenType.CONTROL] * special + [TokenType.NORMAL] * (len(TOKENS) - special))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")


def _add_sentence_pieces(writer: GGUFWriter, space_prefix: bool | None, scores: bool) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(SENTENCE_TOKENS))
    first = len(SENTENCE_TOKENS) - len(PIECES)
    if scores:
        writer.add_token_scores([0.0] * first + [-float(i) for i in range(len(PIECES))])
    control = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    kinds = [*control, *[TokenType.BYTE] * 256, TokenType.CONTROL, *[TokenType.NORMAL] * len(PIECES)]
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if space_prefix is not None:
        writer.add_add_space_prefix(space_prefix)


def _paired(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp's ``LlamaModel.permute``."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, stem = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{_NAMES[stem]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"
