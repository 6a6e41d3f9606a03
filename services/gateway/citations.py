"""Finds the documents that an answer was read from, by its words alone.

A chunk supports an answer by the answer's words that occur in it, each weighing 1 / (number of retrieved
chunks that contain it): a name found in one chunk says more than a word found in all. Words of the question
count only where no chunk has another of the answer's. A chunk with at least half of the best support is
cited; ties go to the chunk that shares more words with the question, then to the better score. One citation
per document, at most ``MAX_CITATIONS``. An answer whose words occur nowhere has no citation.

KV of a document's chunk is computed behind its block's header and the chunks in front of it, and what these
say may be in the answer although they were not retrieved. Which they are is known, and told; whether the
answer has anything of them is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from shared.answer import Citation
from shared.search import SearchHit
from shared.words import words_of

MAX_CITATIONS = 3
MIN_SHARE = 0.5


class Citable:
    """A context of ``hits``, for all answers that are given from it."""

    def __init__(self, hits: Sequence[SearchHit]) -> None:
        self._hits = hits
        self._contents = [words(f"{hit.title} {hit.chunk.heading} {hit.chunk.text}") for hit in hits]
        self._num_holding = Counter(chain.from_iterable(self._contents))

    def cite(self, answer: str, question: str, conditioned: bool = True) -> tuple[Citation, ...]:
        """Best supported first; a function of the hits and of its arguments alone. ``conditioned``: stored KV
        may have been used."""
        hits, asked = self._hits, words(question)
        said = (words(answer) - asked) & self._num_holding.keys() or words(answer)
        support = [
            sum(1.0 / self._num_holding[word] for word in sorted(said & content))
            for content in self._contents
        ]
        best = max(support, default=0.0)
        order = sorted(
            range(len(hits)), key=lambda i: (-support[i], -len(asked & self._contents[i]), -hits[i].score, i)
        )
        cited: dict[str, Citation] = {}
        for i in order:
            if best > 0 and support[i] >= MIN_SHARE * best and len(cited) < MAX_CITATIONS:
                cited.setdefault(hits[i].document_id, _citation(hits, i, conditioned))
        return tuple(cited.values())


def _citation(hits: Sequence[SearchHit], index: int, conditioned: bool) -> Citation:
    hit = hits[index]
    chunk, block = hit.chunk, hit.chunk.block
    cited = Citation(hit.document_id, hit.title, chunk.chunk_id, index, chunk.heading)
    if block is None:
        return cited
    cited = replace(cited, block=block.number, block_heading=block.heading)
    if not conditioned:
        return cited
    retrieved = {other.chunk.place for other in hits if other.document_id == hit.document_id}
    in_front = range(block.first, chunk.place)
    return replace(
        cited,
        conditioned_on_header=block.has_header,
        conditioned_on_chunks=tuple(place for place in in_front if place not in retrieved),
    )


def words(text: str) -> set[str]:
    return set(words_of(text))
