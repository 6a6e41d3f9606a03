"""Decides, from what retrieval found, whether a question is refused before anything is generated for it.

The evidence of a chunk is the mean of its cosine to the question and of the share of the question's words
that its text, title and heading hold; without a cosine (BM25 alone) it is that share. A word counts by how
rare it is among the chunks: one that no chunk has, such as a name that no document mentions, counts most. (In
scripts without spaces every character is a word, as it is for BM25.)
The question's evidence is that of its best chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from services.gateway.citations import words
from services.gateway.config import RefusalConfig
from shared.answer import Refusal
from shared.generation.told import GenerationEvent
from shared.search import SearchHit

# What a question is made of, whatever it is about.
_ASKING = words(
    "a about an and are at be by can did do does for from had has have how i if in is it me my of on or "
    "should that the their there this to was we were what when where which who whom whose why "
    "will with would you your"
)


def evidence(question: str, hits: Sequence[SearchHit]) -> float:
    """0 (nothing was found) to 1."""
    asked = words(question) - _ASKING or words(question)
    contents = [words(f"{hit.title} {hit.chunk.heading} {hit.chunk.text}") for hit in hits]
    weights = {word: _rarity(sum(word in c for c in contents), len(contents)) for word in asked}
    total = sum(weights[word] for word in sorted(asked))
    best = 0.0
    for hit, content in zip(hits, contents, strict=True):
        share = sum(weights[word] for word in sorted(asked & content)) / total if total else 0.0
        both = share if hit.similarity is None else (share + max(hit.similarity, 0.0)) / 2
        best = max(best, both)
    return best


def refusals(
    asked: Refusal | None,
    config: RefusalConfig,
    questions: Sequence[str],
    rankings: Sequence[Sequence[SearchHit]],
) -> dict[int, str]:
    """The questions, by number, that are not to be answered, with the reason."""
    mode = asked or config.mode
    if mode is Refusal.OFF:
        return {}
    least = config.strict if mode is Refusal.STRICT else config.lenient
    found = [evidence(question, hits) for question, hits in zip(questions, rankings, strict=True)]
    return {
        i: f"refused: the evidence in the documents is {value:.2f}, below {least:g} ({mode.value})"
        for i, value in enumerate(found)
        if value < least
    }


def renumbered(event: GenerationEvent, asked: Sequence[int]) -> GenerationEvent:
    """``event`` of a generation over the questions ``asked`` alone, as one over all."""
    question = getattr(event, "question", None)
    return event if question is None else replace(event, question=asked[question])


def _rarity(num_holding: int, num: int) -> float:
    """As BM25's inverse document frequency."""
    return math.log(1 + (num - num_holding + 0.5) / (num_holding + 0.5))
