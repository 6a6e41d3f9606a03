"""BM25 for the embedded Milvus, as sparse vectors whose inner product is the score.

The embedded Milvus has a BM25 function, but weighs every data file by its own term statistics: a word that is
rare in the collection counts as common in a file of one document, so whatever came last ranks too low. Here a
row stores the part of the score that depends on the row alone, and the query carries the inverse document
frequencies of the whole collection:

    score(q, d) = sum over terms t of idf(t) * tf(t, d) * (K1 + 1) / (tf(t, d) + K1 * (1 - B + B * len(d) /
    TYPICAL_LEN))

Rows are counted apart by who may read them, and a query is weighed by those that its asker may: scores tell
nothing of the others.
"""

from __future__ import annotations

import hashlib
import math
import threading
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shared.readers import Readers
from shared.words import words_of

K1 = 1.2
B = 0.75
# Words of a row; fixed, so that a row's vector never changes when others come and go.
TYPICAL_LEN = 200

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


LexiconRow = tuple[Readers, Iterable[int]]
"""Who may read a row, and its terms."""


@dataclass(slots=True)
class _Counts:
    """``rows_of``: by term."""

    rows_of: Counter[int] = field(default_factory=Counter)
    num_rows: int = 0


class Lexicon:
    """In how many rows of a collection each term occurs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[Readers, _Counts] = defaultdict(_Counts)

    @property
    def readers(self) -> list[Readers]:
        """Of the rows, each once."""
        with self._lock:
            return list(self._counts)

    def add(self, rows: Iterable[LexiconRow]) -> None:
        with self._lock:
            for readers, terms in rows:
                counts = self._counts[readers]
                counts.rows_of.update(list(terms))
                counts.num_rows += 1

    def remove(self, rows: Iterable[LexiconRow]) -> None:
        with self._lock:
            changed = set()
            for readers, terms in rows:
                counts = self._counts[readers]
                counts.rows_of.subtract(list(terms))
                counts.num_rows -= 1
                changed.add(readers)
            for readers in changed:
                counts = self._counts[readers]
                counts.rows_of = +counts.rows_of
                if not counts.num_rows:
                    del self._counts[readers]

    def query_vector(self, text: str, may_read: Callable[[Readers], bool]) -> SparseVector:
        """The query's side of the score, for somebody who reads the rows that ``may_read`` tells; empty when
        none of them has any of its words."""
        terms = Counter(_terms(text))
        with self._lock:
            readable = [counts for readers, counts in self._counts.items() if may_read(readers)]
            num_rows = sum(counts.num_rows for counts in readable)
            rows_of = {term: sum(counts.rows_of[term] for counts in readable) for term in terms}
        return {term: terms[term] * _idf(rows, num_rows) for term, rows in rows_of.items() if rows}


def _idf(rows: int, num_rows: int) -> float:
    return math.log(1 + (num_rows - rows + 0.5) / (rows + 0.5))


def _terms(text: str) -> list[int]:
    words = words_of(unicodedata.normalize("NFKC", text))
    return [
        int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "little") % _NUM_TERMS + 1
        for word in words
    ]
