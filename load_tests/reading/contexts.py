"""Cuts articles as ingestion does, and draws what is asked about them: some chunks of one article, shuffled,
and questions whose answer stands in one of them, the others being distractors.

Contexts come article by article, in an order drawn by the seed, and again from the first one: where a run
ends early, what it has asked is a fair sample.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from load_tests.reading.articles import Article, ReadingQuestion
from services.ingestion.chains import identified
from services.ingestion.chunker import ChunkEncoder, Chunker, TextChunk
from services.ingestion.formats.document import ParsedDocument
from shared.generation.asked import Chunk
from shared.identity import chunk_identity
from shared.kv_types import KvContext


@dataclass(frozen=True, slots=True)
class ArticleShape:
    """``chunk_tokens``: most per chunk. ``context_tokens``: most in front of a chunk in its article. ``k``:
    chunks of a context. ``per_context``: most questions about one."""

    chunk_tokens: int
    context_tokens: int
    k: int
    per_context: int


@dataclass(frozen=True, slots=True)
class ReadingContext:
    """``chunks``: of the article, by number, in the order in which they are given."""

    number: int
    article: int
    chunks: tuple[int, ...]
    questions: tuple[ReadingQuestion, ...]


class ArticleCutter:
    """``of``: tenant, model and prefix, of which a chunk's identity is made."""

    def __init__(
        self, encoder: ChunkEncoder, shape: ArticleShape, of: tuple[str, str, tuple[int, ...]]
    ) -> None:
        self._of = of
        self._chunkers = {
            context: Chunker(encoder, shape.chunk_tokens, context, shape.context_tokens)
            for context in KvContext
        }

    def cut(self, article: Article) -> list[TextChunk]:
        """As for KV behind the document."""
        return self._chunkers[KvContext.DOCUMENT].split(ParsedDocument(article.text, article.title))

    def chained(
        self, article: Article, chunks: Sequence[TextChunk], context: KvContext
    ) -> tuple[tuple[Chunk, ...], tuple[Chunk, ...]]:
        """The same chunks as the engine knows them under ``context``, and the headers behind which some of
        them stand."""
        if context is not KvContext.DOCUMENT:
            chunks = self._chunkers[context].recut(article.title, chunks)
        found = identified(self._of, chunks)
        headers = {c.parent_id: Chunk(c.parent_id, c.header_ids) for c in found if c.header_ids}
        chained = [
            Chunk(c.chunk_id, c.token_ids, c.parent_id, self.isolated(chunk).chunk_id)
            for c, chunk in zip(found, chunks, strict=True)
        ]
        return tuple(chained), tuple(headers.values())

    def isolated(self, chunk: TextChunk) -> Chunk:
        return Chunk(chunk_identity(*self._of, chunk.token_ids), chunk.token_ids)


def draw_contexts(
    articles: Sequence[Article], cut: Mapping[int, Sequence[TextChunk]], shape: ArticleShape, seed: int
) -> Iterator[ReadingContext]:
    """No question comes twice. Questions whose answer no chunk holds whole are not asked."""
    draw = random.Random(f"{seed} reading")
    left = {i: _by_chunk(articles[i], chunks) for i, chunks in cut.items()}
    order = sorted(left)
    draw.shuffle(order)
    number = 0
    while any(left.values()):
        for i in order:
            if left[i]:
                yield _context(draw, number, i, len(cut[i]), left[i], shape)
                number += 1


def _context(
    draw: random.Random,
    number: int,
    article: int,
    num_chunks: int,
    left: dict[int, list[ReadingQuestion]],
    shape: ArticleShape,
) -> ReadingContext:
    """Takes the questions that it asks away from ``left``, which are those of each chunk."""
    gold = draw.choice(sorted(left))
    others = [i for i in range(num_chunks) if i != gold]
    chunks = [gold, *draw.sample(others, min(shape.k - 1, len(others)))]
    draw.shuffle(chunks)
    answered = [(i, question) for i in sorted(chunks) for question in left.get(i, ())]
    asked = draw.sample(answered, min(shape.per_context, len(answered)))
    for i, question in asked:
        left[i].remove(question)
        if not left[i]:
            del left[i]
    return ReadingContext(number, article, tuple(chunks), tuple(question for _, question in asked))


def _by_chunk(article: Article, chunks: Sequence[TextChunk]) -> dict[int, list[ReadingQuestion]]:
    found: dict[int, list[ReadingQuestion]] = {}
    for question in article.questions:
        for i, chunk in enumerate(chunks):
            if any(
                chunk.start <= start and start + len(answer) <= chunk.end
                for start, answer in zip(question.starts, question.answers, strict=True)
            ):
                found.setdefault(i, []).append(question)
                break
    return found
