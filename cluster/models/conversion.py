"""Writes the model of a GGUF file as a directory that ``transformers`` reads: safetensors in bfloat16.

A tensor at a time, so that it takes no more memory than the largest one needs. Quantised values become what
they stand for; bfloat16 rounds that by at most 1/256, a fraction of a quantisation's own step.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig

from cluster.models.families import ModelPlan, rows_as_halves
from cluster.models.gguf_tokenizer import end_ids, tokenizer_of

WEIGHTS = "model.safetensors"
VALUE_BYTES = 2
OTHER_FILES_BYTES = 32 * 2**20  # configuration and tokenizer
Progress = Callable[[int, int], None]


def num_bytes(plan: ModelPlan) -> int:
    """Disk space that the directory takes, generously."""
    return _weight_bytes(plan) + OTHER_FILES_BYTES


def write_model(plan: ModelPlan, directory: Path, on_progress: Progress) -> None:
    """``on_progress``: bytes of weights written, and in all.

    Raises:
        ConfigError, ModelUnsupported: the tokenizer cannot be used.
        OSError: the directory cannot be written.
    """
    tokenizer = tokenizer_of(plan.file)
    plan.config.architectures = [_architecture(plan)]
    plan.config.save_pretrained(directory)
    generation = GenerationConfig.from_model_config(plan.config)
    generation.eos_token_id = end_ids(plan.file) or None
    generation.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    with open(directory / WEIGHTS, "wb") as file:
        _write_weights(plan, file, on_progress)


def _write_weights(plan: ModelPlan, file: BinaryIO, on_progress: Progress) -> None:
    """The safetensors format: length of the header, the header, the values in the header's order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in plan.weights.items():
        start, end = end, end + tensor.num_values * VALUE_BYTES
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    written, total = 0, end
    for name in plan.weights:
        for values in _pieces(plan, name):
            written += file.write(torch.from_numpy(values).to(torch.bfloat16).view(torch.uint8).numpy().data)
            on_progress(written, total)


def _pieces(plan: ModelPlan, name: str) -> Iterator[NDArray[np.float32]]:
    tensor = plan.weights[name]
    num_heads = plan.heads_interleaved(name)
    pieces = [rows_as_halves(tensor.values(), num_heads).reshape(-1)] if num_heads else tensor.pieces()
    for values in pieces:
        yield np.array(values, dtype=np.float32)  # a copy: the file's own values are read-only


def _weight_bytes(plan: ModelPlan) -> int:
    return sum(tensor.num_values for tensor in plan.weights.values()) * VALUE_BYTES


def _architecture(plan: ModelPlan) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[plan.config.model_type])
