"""Writes sentence-transformers models that are tiny and random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaModel,
)

_SENTENCE = "query : passage the river is wide and slow who built bridge orla tam"
WORDS = ["<s>", "<pad>", "</s>", "<unk>", *_SENTENCE.split(" ")]
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
NUM_POSITIONS = 12


def write_embedder(
    root: Path,
    pooling: str = "mean",
    prompts: dict[str, str] | None = None,
    roberta: bool = False,
    window_len: int | None = NUM_POSITIONS,
    seed: int = 0,
) -> Path:
    """``roberta``: positions are counted from behind the padding's. ``window_len`` None: no file says it."""
    torch.manual_seed(seed)
    if roberta:
        config = XLMRobertaConfig(
            vocab_size=len(WORDS), max_position_embeddings=NUM_POSITIONS + 2, pad_token_id=1, **_SIZES
        )
        model: Any = XLMRobertaModel(config)
    else:
        bert = BertConfig(
            vocab_size=len(WORDS), max_position_embeddings=NUM_POSITIONS, pad_token_id=1, **_SIZES
        )
        model = BertModel(bert)
    model.save_pretrained(root)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=NUM_POSITIONS,
    ).save_pretrained(root)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    _write(
        root / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (name, path) in enumerate(modules)
        ],
    )
    modes = {"mean": "mean_tokens", "cls": "cls_token"}
    of_modes = {f"pooling_mode_{name}": mode == pooling for mode, name in modes.items()}
    _write(root / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, **of_modes})
    if prompts is not None:
        _write(root / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    if window_len is not None:
        _write(root / "sentence_bert_config.json", {"max_seq_length": window_len, "do_lower_case": False})
    return root


def write_cross_encoder(root: Path, num_labels: int = 1) -> Path:
    """Reads a query and a text."""
    write_embedder(root)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        max_position_embeddings=NUM_POSITIONS,
        pad_token_id=1,
        num_labels=num_labels,
        initializer_range=1.0,  # so that scores differ
        **_SIZES,
    )
    BertForSequenceClassification(config).save_pretrained(root)
    (root / "modules.json").unlink()
    return root


def _write(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")
