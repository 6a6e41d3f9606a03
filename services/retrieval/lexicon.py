"""BM25 for the embedded Milvus, as sparse vectors whose inner product is the score.

The embedded Milvus has a BM25 function, but weighs every data file by its own term statistics: a word that is
rare in the collection counts as common in a file of one document, so whatever came last ranks too low. Here a
row stores the part of the score that depends on the row alone, and the query carries the inverse document
frequencies of the whole collection:

    score(q, d) = sum over terms t of idf(t) * tf(t, d) * (K1 + 1) / (tf(t, d) + K1 * (1 - B + B * len(d) /
    TYPICAL_LEN))
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable

K1 = 1.2
B = 0.75
# Words of a row; fixed, so that a row's vector never changes when others come and go.
TYPICAL_LEN = 200
# Scripts without spaces count character by character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")

_NUM_TERMS = 2**31
_NO_WORDS = 0  # a term that no query has

SparseVector = dict[int, float]


def row_vector(text: str) -> SparseVector:
    """The document's side of the score, by term; never empty, since Milvus stores no empty vectors."""
    terms = _terms(text)
    if not terms:
        return {_NO_WORDS: 1.0}
    length_factor = K1 * (1 - B + B * len(terms) / TYPICAL_LEN)
    return {term: count * (K1 + 1) / (count + length_factor) for term, count in Counter(terms).items()}


class Lexicon:
    """In how many rows of a collection each term occurs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows_of: Counter[int] = Counter()
        self._num_rows = 0

    def add(self, vectors: Iterable[Iterable[int]]) -> None:
        with self._lock:
            for vector in vectors:
                self._rows_of.update(list(vector))
                self._num_rows += 1

    def remove(self, vectors: Iterable[Iterable[int]]) -> None:
        with self._lock:
            for vector in vectors:
                self._rows_of.subtract(list(vector))
                self._num_rows -= 1
            self._rows_of = +self._rows_of

    def query_vector(self, text: str) -> SparseVector:
        """The query's side of the score; empty when no row has any of its words."""
        with self._lock:
            counts = Counter(term for term in _terms(text) if term in self._rows_of)
            return {term: count * self._idf(term) for term, count in counts.items()}

    def _idf(self, term: int) -> float:
        rows = self._rows_of[term]
        return math.log(1 + (self._num_rows - rows + 0.5) / (rows + 0.5))


def _terms(text: str) -> list[int]:
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return [
        int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little") % _NUM_TERMS + 1
        for word in words
    ]
