"""A byte-level BPE tokenizer in which a name has the same tokens wherever it stands.

Spaces before capitals and digits are tokens of their own and digits stand alone, so "Velbrin" after a space, a newline or a quote
is one and the same sequence: a small model need not learn that the variants are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|end|>"
_WORDS = r" ?\p{Ll}+|\p{Lu}\p{Ll}*|\p{Lu}|\d| ?[^\s\p{L}\d]+|\s"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A ``PreTrainedTokenizerFast`` whose vocabulary is learned from ``texts``."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False, model_max_length=2048
    )


def save_tokenizer(tokenizer: Any, directory: Path) -> None:
    tokenizer.save_pretrained(directory)
