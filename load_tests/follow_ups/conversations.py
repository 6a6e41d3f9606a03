"""Makes conversations about things with invented names, whose last question names none of them.

    User: Who founded Rudholm Works?       in half of them: about another thing
    Assistant: Ada Thaleth founded Rudholm Works.
    User: When was Thalheim founded?
    Assistant: Thalheim was founded in 1847.
    User: Who is the mayor of it?          the follow-up; "named" has the name

Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from services.training.corpus import CorpusDocument, Style, Worlds
from services.training.names import Split
from shared.earlier_turns import EarlierTurn, Speaker
from shared.search import IndexedChunk, IndexedDocument

_ATTEMPTS = 3  # per document, to find a name that is not taken
_OTHER_FIRST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation and what is asked next: ``follow_up``, or ``named`` as somebody would ask it first.
    ``chunk_id``: of the passage that answers it."""

    turns: tuple[EarlierTurn, ...]
    follow_up: str
    named: str
    chunk_id: str


def conversations(number: int, seed: int) -> tuple[list[IndexedDocument], list[Talk]]:
    """A document and a conversation about it, ``number`` times; fewer where the names run out."""
    draw, worlds = random.Random(f"{seed} follow-ups"), Worlds.load()
    kinds, written = list(worlds.kinds), dict[str, CorpusDocument]()
    for attempt in range(_ATTEMPTS * number):
        if len(written) == number:
            break
        made = worlds.write(draw, kinds[attempt % len(kinds)], Split.HELD_OUT, Style(filler=0.6))
        if len(made.facts) > 1:
            written.setdefault(made.name, made)
    documents = list(written.values())
    return [_indexed(one) for one in documents], [_about(one, documents, draw) for one in documents]


def _about(document: CorpusDocument, documents: Sequence[CorpusDocument], draw: random.Random) -> Talk:
    before, asked = draw.sample(sorted(document.facts), 2)
    turns: list[EarlierTurn] = []
    if draw.random() < _OTHER_FIRST_SHARE and len(documents) > 1:
        other = draw.choice([one for one in documents if one is not document])
        turns += _turns(other, draw.choice(sorted(other.facts)), draw)
    turns += _turns(document, before, draw)
    fact = document.facts[asked]
    named = draw.choice(fact.questions)
    gold = next(chunk for chunk in _indexed(document).chunks if fact.value in chunk.text)
    return Talk(tuple(turns), named.replace(document.name, "it"), named, gold.chunk_id)


def _turns(document: CorpusDocument, key: str, draw: random.Random) -> list[EarlierTurn]:
    fact = document.facts[key]
    return [
        EarlierTurn(Speaker.USER, draw.choice(fact.questions)),
        EarlierTurn(Speaker.ASSISTANT, fact.answer),
    ]


def _indexed(document: CorpusDocument) -> IndexedDocument:
    chunks = tuple(
        IndexedChunk(
            f"{document.name}#{i}", " ".join(s.text for s in section.sentences), (1,), section.heading
        )
        for i, section in enumerate(document.sections)
    )
    return IndexedDocument(document.name, document.title, "none", chunks)
