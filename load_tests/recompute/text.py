"""Makes text that means nothing, of a wanted number of tokens, and two tokenizers of different families that
read it."""

from __future__ import annotations

import math
import random
from functools import cached_property

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_SYLLABLES = [
    onset + rhyme for onset in (*"bdfgklmnprstvz", "st", "tr") for rhyme in (*"aeiou", "an", "er", "is")
]
_NUM_WORDS = 4000
_CORPUS_WORDS = 20_000
_PRIMARY_VOCAB = 2500  # makes 1.3 tokens of a word, as models of this size do of English
_AUXILIARY_VOCAB = 1000  # and a little more than that


class Speech:
    """``primary`` is a byte-level BPE, ``auxiliary`` a Unigram model, so many of their tokens begin and end
    at different characters. The same words, tokenizers and texts for the same sizes."""

    def __init__(self, primary_vocab: int, auxiliary_vocab: int) -> None:
        """``*_vocab``: of the models that will read the ids; no more than these are used."""
        self._noise = random.Random(0)
        words = {
            "".join(self._noise.choices(_SYLLABLES, k=self._noise.randint(1, 4))): None
            for _ in range(_NUM_WORDS)
        }
        self._words = list(words)
        self._weights = [1 / rank for rank in range(1, len(self._words) + 1)]  # as often as words are
        corpus = [" " + " ".join(self._draw(100)) for _ in range(_CORPUS_WORDS // 100)]
        self.primary = _byte_level_bpe(corpus, min(_PRIMARY_VOCAB, primary_vocab))
        self.auxiliary = _unigram(self._words, min(_AUXILIARY_VOCAB, auxiliary_vocab))

    def text(self, num_tokens: int) -> str:
        """Of so many of the primary's tokens. Another one each time."""
        parts: list[str] = []
        while num_tokens:
            word = next((w for w in self._draw(8) if self._len(w) <= num_tokens), self._short)
            parts.append(" " + word)
            num_tokens -= self._len(word)
        return "".join(parts)

    @cached_property
    def _short(self) -> str:
        """The most frequent word of one token."""
        return next(word for word in self._words if self._len(word) == 1)

    def _draw(self, count: int) -> list[str]:
        return self._noise.choices(self._words, self._weights, k=count)

    def _len(self, word: str) -> int:
        """No token reaches beyond a word and the space in front of it."""
        return len(self.primary.encode(" " + word, add_special_tokens=False).ids)


def _byte_level_bpe(corpus: list[str], vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def _unigram(words: list[str], vocab: int) -> Tokenizer:
    """Of letters, syllables, and as many of the most frequent words as there is room for; few pieces are
    likelier than many."""
    letters = sorted({letter for syllable in _SYLLABLES for letter in syllable})
    pieces = ["▁", *letters, *_SYLLABLES, *("▁" + word for word in words)]
    scored = [("<unk>", 0.0)] + [(piece, -20.0 + math.log(len(piece))) for piece in dict.fromkeys(pieces)]
    tokenizer = Tokenizer(models.Unigram(scored[:vocab], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer
