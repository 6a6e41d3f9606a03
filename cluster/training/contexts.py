"""Makes of examples the contexts that pupils are trained on: documents are cut and chained as ingestion
does it, and some of their chunks retrieved, in any order or the best one last.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cluster.training.examples import Example, ExampleDocument
from cluster.word_search import found_by_words
from services.ingestion.chunker import Chunker, TextChunk
from services.ingestion.config import IngestionConfig
from services.ingestion.formats.markdown import parse_markdown
from services.ingestion.formats.plain import parse_plain
from services.ingestion.recipe import context_tokens
from services.training.distillation.lessons import AskedContext
from services.training.twin_request import Ids, PlacedChunk
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer


@dataclass(frozen=True, slots=True)
class _Cut:
    """A chunk of an example. ``block``: which one of the example's it is in."""

    text: str
    chunk: PlacedChunk
    block: int


@dataclass(frozen=True, slots=True)
class FoundChunks:
    """``chunks``: in the order in which they are placed; ``blocks``: chunks of the whole blocks that these
    are from; ``asked``: the questions of the example that are asked over them."""

    chunks: tuple[PlacedChunk, ...]
    blocks: tuple[Ids, ...]
    asked: slice


class ContextMaker:
    """``num_chunks``: most chunks of a context; ``num_questions``: most questions about one; ``best_last``:
    as `gateway.order` has it, in place of any order.

    Raises:
        ConfigError: ``config`` does not fit the model.
    """

    def __init__(
        self,
        prompts: PromptTokenizer,
        config: IngestionConfig,
        num_chunks: int,
        num_questions: int,
        seed: int,
        best_last: bool = False,
    ) -> None:
        self._prompts, self._num_chunks, self._num_questions = prompts, num_chunks, num_questions
        self._seed, self._best_last = seed, best_last
        room = context_tokens(config, len(prompts.prefix_ids))
        self._chunker = Chunker(prompts, config.chunk_tokens, config.kv_context, room)
        in_blocks = replace(config, kv_context=KvContext.DOCUMENT)
        self._block_tokens = context_tokens(in_blocks, len(prompts.prefix_ids)) + config.chunk_tokens
        self._chained = config.kv_context is KvContext.DOCUMENT

    def contexts(self, examples: Iterable[Example]) -> Iterator[AskedContext]:
        """
        Raises:
            UnreadableDocument: a single character is longer than a chunk.
        """
        for example in examples:
            for found in self.retrieved(example):
                questions = tuple(map(self._prompts.encode_question, example.questions[found.asked]))
                yield AskedContext(example.name, found.chunks, found.blocks, questions)

    def retrieved(self, example: Example, answers: Sequence[str] = ()) -> Iterator[FoundChunks]:
        """``answers``: of its questions, where they are known; a chunk that says the answer comes first.

        Raises:
            UnreadableDocument: a single character is longer than a chunk.
        """
        cuts = list(self._cuts(example.documents))
        for first in range(0, len(example.questions), self._num_questions):
            asked = slice(first, first + self._num_questions)
            rng = random.Random(f"{self._seed} {example.name} {first}")
            texts = [cut.text for cut in cuts]
            found = found_by_words(example.questions[asked], texts, self._num_chunks, answers[asked])
            if self._best_last:
                found.reverse()
            else:
                rng.shuffle(found)
            blocks = {cuts[i].block for i in found}
            yield FoundChunks(
                tuple(cuts[i].chunk for i in found),
                tuple(cut.chunk.token_ids for cut in cuts if cut.block in blocks),
                asked,
            )

    def _cuts(self, documents: Iterable[ExampleDocument]) -> Iterator[_Cut]:
        block = 0
        for document in documents:
            chain: tuple[Ids, ...] = ()
            in_block = 0
            for number, chunk in enumerate(cut_document(self._chunker, document)):
                if chunk.header is not None:
                    chain = (chunk.header,) if chunk.header else ()
                if number and self._ends(chunk, in_block):
                    block, in_block = block + 1, 0
                yield _Cut(chunk.text, PlacedChunk(chunk.token_ids, chain), block)
                chain = (*chain, chunk.token_ids)
                in_block += len(chunk.token_ids)
            block += 1

    def _ends(self, chunk: TextChunk, in_block: int) -> bool:
        """Whether a block ends in front of the chunk. Isolated chunks have none: what would be one under
        ``document`` counts."""
        if self._chained:
            return chunk.header is not None
        return in_block + len(chunk.token_ids) > self._block_tokens


def cut_document(chunker: Chunker, document: ExampleDocument) -> list[TextChunk]:
    """
    Raises:
        UnreadableDocument: a single character is longer than a chunk.
    """
    if document.chunks:
        starts = accumulate((len(chunk.text) + 1 for chunk in document.chunks), initial=0)
        return chunker.recut(
            document.title,
            [
                TextChunk(chunk.text, (), start, start + len(chunk.text), chunk.heading)
                for start, chunk in zip(starts, document.chunks, strict=False)
            ],
        )
    parse = parse_markdown if document.text.startswith("#") else parse_plain
    return chunker.split(replace(parse(document.text.encode(), "utf-8"), title=document.title))
