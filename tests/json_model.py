"""A tiny model that writes characters, a tokenizer of its vocabulary, and the slow way to say which may come
next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from shared.engine.decoding.grammar import GrammarState
from tests.oracles import VOCAB

EOS = 2
_PIECES = ("true", "false", "null", '":', '",', '{"', '"}', "12", "ab", "e\u0301", "}}", "]}", ', "', "Ġa")


@lru_cache
def tokenizer() -> Tokenizer:
    """``VOCAB`` tokens: three special ones, pieces, and bytes; of these some are missing, so that some
    characters cannot be written."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda letter: (ord(letter) > 126, letter))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = ["".join(part for part, _ in byte_level.pre_tokenize_str(one)) for one in _PIECES]
    tokens = ["<pad>", "<s>", "</s>", *dict.fromkeys([*pieces, *alphabet])][:VOCAB]
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    made.pre_tokenizer = byte_level
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(tokens[:3])
    return made


def as_json() -> str:
    return str(tokenizer().to_str())


def decode(ids: Sequence[int]) -> str:
    return str(tokenizer().decode(list(ids)))


def encode(text: str) -> list[int]:
    """Character by character."""
    return [i for char in text for i in tokenizer().encode(char).ids]


def slow_mask(state: GrammarState, vocab: int = VOCAB) -> np.ndarray[Any, Any]:
    """Every token of the vocabulary is put behind the text, one by one."""
    return np.array([state.copy()._matcher.consume_token(token) for token in range(vocab)])


def mask(state: GrammarState, vocab: int = VOCAB) -> np.ndarray[Any, Any]:
    bits = state.bits()
    if bits is None:
        return np.ones(vocab, bool)
    return np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab].astype(bool)
