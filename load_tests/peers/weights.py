"""Writes a model's weights as GGUF, for others to read the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from numpy.typing import NDArray

_ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}
_FILE_TYPES = {
    GGMLQuantizationType.BF16: LlamaFileType.MOSTLY_BF16,
    GGMLQuantizationType.F16: LlamaFileType.MOSTLY_F16,
    GGMLQuantizationType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}
_TOKENS = "tokenizer.ggml.tokens"


def write_gguf(
    hf_model: Any, path: Path, quantisation: GGMLQuantizationType, tokenizer_of: Path | None = None
) -> bool:
    """``hf_model``: of a family of ``Shape``. Matrices in that quantisation, vectors in float32.
    ``tokenizer_of``: a GGUF file whose tokenizer goes into this one, if it has as many tokens as the model;
    returns whether it does."""
    config = hf_model.config
    architecture = _ARCHITECTURES[config.model_type]
    head_dim = hf_model.model.layers[0].self_attn.head_dim
    writer = GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_file_type(_FILE_TYPES[quantisation])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    has_tokenizer = _add_tokenizer(writer, tokenizer_of, config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in hf_model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.detach().cpu().float().numpy()
        if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _in_pairs(values, head_dim)
        told = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 1:
            writer.add_tensor(told, values)
        else:
            data = gguf.quants.quantize(np.ascontiguousarray(values), quantisation)
            writer.add_tensor(told, data, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return has_tokenizer


def likeliest(hf_model: Any, token_ids: Sequence[int], count: int) -> list[int]:
    """Tokens that stock transformers has follow these, the likeliest first."""
    with torch.inference_mode():
        logits = hf_model(torch.tensor([token_ids])).logits[0, -1]
    tokens: list[int] = logits.topk(count).indices.tolist()
    return tokens


def _add_tokenizer(writer: GGUFWriter, tokenizer_of: Path | None, vocab_size: int) -> bool:
    fields = {} if tokenizer_of is None else GGUFReader(tokenizer_of).fields
    if _TOKENS not in fields or len(fields[_TOKENS].data) != vocab_size:
        writer.add_tokenizer_model("no_vocab")
        return False
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            of = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=of)
    return True


def _in_pairs(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rows of each head in llama.cpp's order for this family: the two that are turned together are
    neighbours."""
    heads = rows.reshape(-1, 2, head_dim // 2, rows.shape[-1])
    return heads.swapaxes(1, 2).reshape(rows.shape)
