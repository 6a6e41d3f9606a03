"""Small tokenizers of every family, trained here, and text that is hard on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

_SNIPPETS = (
    "The quick brown fox jumps over the lazy dog, twice.\n\n",
    "  two spaces,\ttabs and trailing ones  ",
    "Der Bürgermeister von Tübingen heißt Jörg Weiß.",
    "市長は田中さんです。人口は12万人。",
    "Мэр города — Иван Петров.",
    "नमस्ते दुनिया, क्षेत्र",
    "مدينة كبيرة 3٫5",
    "👨‍👩‍👧‍👦🏳️‍🌈👍🏽",
    "cafe\u0301 Z\u0351\u036b\u0343a\u030algo",
    "ﬁne ½ ① ﷺ İstanbul ẞ",
    "<s>[UNK]<think></s> 42",
    "\u200b\u200d\ufeff\x00\r\n\u2028 \u00a0",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎",
    "한국어 각\u1100\u1161",
)
CORPUS = [*_SNIPPETS, "the mayor of the town is the founder of the mine. " * 4, "12 34 567 8901"]
SPECIAL = ("<s>", "</s>")

texts = st.lists(st.one_of(st.sampled_from(_SNIPPETS), st.text(max_size=12)), max_size=4).map("".join)


def _byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)  # what it trims must not be missed
    tokenizer.add_tokens([AddedToken("<think>", special=False, lstrip=True)])
    return tokenizer


def _prefix_space_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFD()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True)
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=["<unk>", *SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS[:4], trainer)
    tokenizer.enable_truncation(5)  # as it was saved after training an encoder: must not cut a chunk
    tokenizer.enable_padding(length=9)
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """The Unigram one with a token for every byte instead of the unknown one."""
    parts = json.loads(_unigram().to_str())
    parts["model"]["vocab"] += [[f"<0x{byte:02X}>", -30.0] for byte in range(256)]
    parts["model"]["byte_fallback"] = True
    parts["normalizer"] = None
    tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(parts))
    return tokenizer


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=250, special_tokens=["[UNK]", *SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


_FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level BPE": _byte_level_bpe,
    "byte-level BPE, prefix space": _prefix_space_bpe,
    "Unigram": _unigram,
    "Unigram, byte fallback": _byte_fallback,
    "WordPiece": _word_piece,
}
FAMILIES = tuple(_FAMILIES)


@lru_cache
def tokenizer_of(family: str) -> Tokenizer:
    return _FAMILIES[family]()
