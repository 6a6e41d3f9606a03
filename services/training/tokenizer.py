"""Two tokenizers, byte-level BPE and Unigram, in which a name has the same tokens wherever it stands.

Spaces before capitals and digits are tokens of their own and digits stand alone, so "Velbrin" after a space,
a newline or a quote is one and the same sequence: a small model need not learn that the variants are equal.
Either makes tokens of any text: what has no piece of its own is spelt in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|end|>"
_UNKNOWN = "<unk>"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_WORDS = r" ?\p{Ll}+|\p{Lu}\p{Ll}*|\p{Lu}|\d| ?[^\s\p{L}\d]+|\s"


Family = Literal["bpe", "unigram"]


def train_tokenizer(texts: Iterable[str], vocab_size: int, family: Family = "bpe") -> Any:
    """A ``PreTrainedTokenizerFast`` whose vocabulary is learned from ``texts``."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = _train_bpe(texts, vocab_size) if family == "bpe" else _train_unigram(texts, vocab_size)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def _train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_unigram(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """The trainer knows no bytes; they are appended to what it learned, less likely than any piece.
    Characters that it had to keep come out in any order, nearly equally likely, so they are put in one."""
    tokenizer = Tokenizer(models.Unigram())
    words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = words
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size - len(_BYTES),
        special_tokens=[END, _UNKNOWN],
        unk_token=_UNKNOWN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    special, learned = (vocab := json.loads(tokenizer.to_str())["model"]["vocab"])[:2], vocab[2:]
    pieces = sorted(
        ((piece, round(score, 2)) for piece, score in learned), key=lambda pair: (-pair[1], pair[0])
    )
    least = pieces[-1][1] - 10.0
    spelt = [(byte, least) for byte in _BYTES]
    with_bytes = Tokenizer(
        models.Unigram([*map(tuple, special), *pieces, *spelt], unk_id=1, byte_fallback=True)
    )
    with_bytes.pre_tokenizer = words
    with_bytes.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    with_bytes.add_special_tokens([END])
    return with_bytes
