"""Makes passages of documents, and questions whose passage is known: each takes its words from something
that was held out of the passage.

    sentence   a sentence of the passage, which the passage is then without
    keywords   up to ``NUM_KEYWORDS`` words of such a sentence, stop words left out
    heading    the heading above the passage, which the passage is then without
    stated     keywords of a sentence that stays in the passage: for refusal, where the answer must be there

A passage gives one question at most, of one kind. Questions that people wrote (a file in SQuAD's format) are
taken as they are; their passage is the first that holds an answer whole. Everything follows from the texts
and the seed. Documents of which nothing is indexed give questions without evidence: of the same making and
the same field as the others.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.cli.sources import find_sources
from load_tests.reading.articles import Article, ReadingQuestion
from services.ingestion.chunker import HEADING_SEPARATOR, Chunker, TextChunk
from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.parse import parse
from services.training.corpus import Style, Worlds
from services.training.names import Split
from shared.documents import SourceDocument
from shared.errors import UnreadableDocument
from shared.search import IndexedChunk, IndexedDocument

KINDS = ("sentence", "keywords", "heading")
STATED, INVENTED, WRITTEN = "stated", "invented", "written"
NUM_KEYWORDS = 6
_ASKING = ("What is said about", "Where do I read about", "What should I know of", "How is it with")
NO_EVIDENCE_SHARE = 0.25
_ATTEMPTS = 3  # per document, to find a name that is not taken
_MIN_PASSAGE_WORDS = 30
_SENTENCE_WORDS = range(8, 40)
_HEADING_WORDS = range(2, 15)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\n\s*\n")
_WORD = re.compile(r"[^\W\d_][\w'-]*")
_MARKUP = re.compile(r"[`*_{}|<>\[\]=#]|https?:")
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a about above after again all also am an and any are as at be because been before being below "
        "between both but by can could did do does doing down during each few for from further had has "
        "have having he her here hers him his how i if in into is it its itself just let me more most my "
        "no nor not now of off on once only or other our out over own same she should so some such than "
        "that the their them then there these they this those through to too under until up us very was "
        "we were what when where which while who whom why will with would you your"
    )
)


@dataclass(frozen=True, slots=True)
class Query:
    """``chunk_id``: of the passage that it was made from; empty: nothing that is indexed has its answer."""

    kind: str
    text: str
    chunk_id: str = ""

    @property
    def judges_refusal(self) -> bool:
        """Whether the passage, if it is there, surely says what is asked about."""
        return self.kind in (STATED, INVENTED, WRITTEN)


@dataclass(frozen=True, slots=True)
class QuerySet:
    documents: tuple[IndexedDocument, ...]
    queries: tuple[Query, ...]

    @property
    def num_passages(self) -> int:
        return sum(len(document.chunks) for document in self.documents)


def from_directory(directory: Path, chunk_words: int, seed: int) -> QuerySet:
    """Passages of at most ``chunk_words`` words, and all questions that they give."""
    chunker = Chunker(_Words(), chunk_words)
    documents = []
    for source in find_sources([directory]).files:
        try:
            parsed = parse(SourceDocument(source.document_id, source.path.read_bytes()))
        except UnreadableDocument:
            continue
        chunks = tuple(
            IndexedChunk(f"{source.document_id}#{i}", chunk.text, (1,), chunk.heading)
            for i, chunk in enumerate(chunker.split(parsed))
        )
        documents.append(IndexedDocument(source.document_id, parsed.title, "none", chunks))
    return _questioned(_without_copies(documents), seed)


def invented(num_documents: int, seed: int) -> QuerySet:
    """Documents about things with invented names, and a written question about each; fewer where the names
    run out."""
    draw, worlds = random.Random(f"{seed} retrieval"), Worlds.load()
    kinds = list(worlds.kinds)
    found: dict[str, tuple[IndexedDocument, Query]] = {}
    for attempt in range(_ATTEMPTS * num_documents):
        written = worlds.write(draw, kinds[attempt % len(kinds)], Split.HELD_OUT, Style(filler=0.6))
        if written.name in found or len(found) == num_documents:
            continue
        fact = written.facts[draw.choice(sorted(written.facts))]
        chunks = tuple(
            IndexedChunk(
                f"{written.name}#{i}", " ".join(s.text for s in section.sentences), (1,), section.heading
            )
            for i, section in enumerate(written.sections)
        )
        document = IndexedDocument(written.name, written.title, "none", chunks)
        (gold,) = [chunk for chunk in chunks if fact.value in chunk.text][:1]
        found[written.name] = document, Query(INVENTED, draw.choice(fact.questions), gold.chunk_id)
    held_out = _held_out(list(found), seed)
    return QuerySet(
        tuple(document for name, (document, _) in found.items() if name not in held_out),
        tuple(
            replace(query, chunk_id="") if name in held_out else query for name, (_, query) in found.items()
        ),
    )


def from_articles(articles: Sequence[Article], chunk_words: int, seed: int) -> QuerySet:
    """Passages of at most ``chunk_words`` words, and all questions whose answer a passage holds."""
    chunker = Chunker(_Words(), chunk_words)
    named = {f"{number} {article.title}": article for number, article in enumerate(articles)}
    held_out = _held_out(list(named), seed)
    indexed, queries = [], []
    for name, article in named.items():
        cut = chunker.split(ParsedDocument(article.text, article.title))
        gold = [(question, _place_of(question, cut)) for question in article.questions]
        answered = [(question, place) for question, place in gold if place is not None]
        if name in held_out:
            queries += [Query(WRITTEN, question.text) for question, _ in answered]
            continue
        queries += [Query(WRITTEN, question.text, f"{name}#{place}") for question, place in answered]
        chunks = tuple(IndexedChunk(f"{name}#{i}", chunk.text, (1,)) for i, chunk in enumerate(cut))
        indexed.append(IndexedDocument(name, article.title, "none", chunks))
    return QuerySet(tuple(indexed), tuple(queries))


def _place_of(question: ReadingQuestion, chunks: Sequence[TextChunk]) -> int | None:
    """The first chunk with one of the answers; None: every answer is cut."""
    spans = [
        (start, start + len(answer)) for start, answer in zip(question.starts, question.answers, strict=True)
    ]
    return next(
        (i for i, c in enumerate(chunks) if any(c.start <= begin and end <= c.end for begin, end in spans)),
        None,
    )


class _Words:
    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return tuple(range(len(text.split())))


def _without_copies(documents: Iterable[IndexedDocument]) -> list[IndexedDocument]:
    """The first of equal passages; a question about the others would have several right ones."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        chunks = []
        for chunk in document.chunks:
            words = " ".join(_WORD.findall(chunk.text.casefold()))
            if words not in seen:
                seen.add(words)
                chunks.append(chunk)
        if chunks:
            kept.append(replace(document, chunks=tuple(chunks)))
    return kept


def _questioned(documents: Sequence[IndexedDocument], seed: int) -> QuerySet:
    held_out = _held_out([document.document_id for document in documents], seed)
    headings = Counter(_innermost(chunk) for document in documents for chunk in document.chunks)
    indexed, queries = [], []
    for document in documents:
        chunks = []
        for chunk in document.chunks:
            asked = _ask(chunk, headings, random.Random(f"{seed} {chunk.chunk_id}"))
            if asked is not None:
                query, chunk = asked
                found = [query, *_stated(chunk, random.Random(f"{seed} stated {chunk.chunk_id}"))]
                queries += [replace(q, chunk_id="") if document.document_id in held_out else q for q in found]
            chunks.append(chunk)
        if document.document_id not in held_out:
            indexed.append(replace(document, chunks=tuple(chunks)))
    return QuerySet(tuple(indexed), tuple(queries))


def _held_out(names: Sequence[str], seed: int) -> frozenset[str]:
    """Documents that are not indexed."""
    return frozenset(n for n in names if random.Random(f"{seed} held out {n}").random() < NO_EVIDENCE_SHARE)


def _ask(
    chunk: IndexedChunk, headings: Counter[str], draw: random.Random
) -> tuple[Query, IndexedChunk] | None:
    """A question, and the passage without what it was made of; None: the passage gives none."""
    kinds = draw.sample(KINDS, len(KINDS))
    for kind in kinds:
        if kind == "heading":
            title = _innermost(chunk)
            rest = _without_line(chunk.text, title)
            if (
                headings[title] == 1
                and len(title.split()) in _HEADING_WORDS
                and len(rest.split()) >= _MIN_PASSAGE_WORDS
            ):
                above = chunk.heading.rpartition(HEADING_SEPARATOR)[0]
                return Query(kind, title, chunk.chunk_id), replace(chunk, heading=above, text=rest)
            continue
        sentences = _sentences(chunk)
        if not sentences:
            continue
        sentence = draw.choice(sentences)
        rest = chunk.text.replace(sentence, " ")
        text = sentence if kind == "sentence" else _keywords(sentence, draw)
        if len(rest.split()) >= _MIN_PASSAGE_WORDS and text:
            return Query(kind, " ".join(text.split()), chunk.chunk_id), replace(chunk, text=rest)
    return None


def _stated(chunk: IndexedChunk, draw: random.Random) -> Iterator[Query]:
    """A question by keywords of a sentence that stays in the passage, if that has one."""
    if sentences := _sentences(chunk):
        keywords = _keywords(draw.choice(sentences), draw)
        if keywords:
            yield Query(STATED, f"{draw.choice(_ASKING)} {keywords}?", chunk.chunk_id)


def _sentences(chunk: IndexedChunk) -> list[str]:
    return [s for part in _SENTENCE.split(chunk.text) if _is_prose(s := part.strip())]


def _keywords(sentence: str, draw: random.Random) -> str:
    """In their order; empty if there are too few."""
    words = [word for word in _WORD.findall(sentence) if word.casefold() not in _STOP_WORDS]
    places = sorted(draw.sample(range(len(words)), min(NUM_KEYWORDS, len(words))))
    return " ".join(words[i] for i in places) if len(places) >= NUM_KEYWORDS // 2 else ""


def _is_prose(text: str) -> bool:
    return len(text.split()) in _SENTENCE_WORDS and not _MARKUP.search(text)


def _innermost(chunk: IndexedChunk) -> str:
    return chunk.heading.rpartition(HEADING_SEPARATOR)[2]


def _without_line(text: str, title: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip("# \t") != title) if title else text
