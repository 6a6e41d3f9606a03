"""Finds the documents that an answer was read from, by its words alone.

A chunk supports an answer by the answer's words that occur in it, each weighing 1 / (number of retrieved
chunks that contain it): a name found in one chunk says more than a word found in all. Words of the question
count only where no chunk has another of the answer's. A chunk with at least half of the best support is
cited; ties go to the chunk that shares more words with the question, then to the better hit. One citation per
document, at most ``MAX_CITATIONS``. An answer whose words occur nowhere has no citation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shared.answer import Citation
from shared.search import SearchHit

MAX_CITATIONS = 3
MIN_SHARE = 0.5
_WORD = re.compile(r"\w+")


def cite(answer: str, question: str, hits: Sequence[SearchHit]) -> tuple[Citation, ...]:
    """Best supported first; a function of its arguments alone."""
    asked = words(question)
    contents = [words(f"{hit.title} {hit.chunk.heading} {hit.chunk.text}") for hit in hits]
    said = (words(answer) - asked) & set().union(*contents) or words(answer)
    support = [
        sum(1.0 / sum(word in c for c in contents) for word in sorted(said & content)) for content in contents
    ]
    best = max(support, default=0.0)
    order = sorted(range(len(hits)), key=lambda i: (-support[i], -len(asked & contents[i]), i))
    cited: dict[str, Citation] = {}
    for i in order:
        if best > 0 and support[i] >= MIN_SHARE * best and len(cited) < MAX_CITATIONS:
            hit = hits[i]
            cited.setdefault(
                hit.document_id,
                Citation(hit.document_id, hit.title, hit.chunk.chunk_id, i, hit.chunk.heading),
            )
    return tuple(cited.values())


def words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
