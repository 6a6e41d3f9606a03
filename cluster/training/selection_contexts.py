"""Makes contexts that the auxiliary model learns to select from: chunks as ingestion makes them, in the order
of their documents, as the primary and the auxiliary read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cluster.gate.ingested import Ingested, Ingesting
from cluster.gate.selections import Selections
from cluster.training.contexts import cut_document
from cluster.training.examples import Example, ExampleDocument
from cluster.word_search import found_by_words
from services.training.auxiliary.contexts import ModelReading, SelectionContext
from services.training.twin_request import PlacedChunk
from shared.prompt import PromptTokenizer


@dataclass(frozen=True, slots=True)
class SelectionContextMaker:
    """``prompts``: the primary's; ``selections``: by the auxiliary, whose prompts are ``auxiliary``.
    ``num_chunks``: most chunks of a context; ``num_questions``: most questions about one."""

    ingesting: Ingesting
    prompts: PromptTokenizer
    selections: Selections
    auxiliary: PromptTokenizer
    num_chunks: int
    num_questions: int

    def contexts(self, examples: Iterable[Example]) -> Iterator[SelectionContext]:
        """
        Raises:
            UnreadableDocument: a single character is longer than a chunk.
        """
        for example in examples:
            cut = _joined([self._ingested(document) for document in example.documents])
            for first in range(0, len(example.questions), self.num_questions):
                questions = example.questions[first : first + self.num_questions]
                placed = sorted(found_by_words(questions, cut.texts, self.num_chunks))
                yield self._context(example.name, cut, placed, questions)

    def _ingested(self, document: ExampleDocument) -> Ingested:
        manifest = self.ingesting.named(document.title, cut_document(self.ingesting.chunker, document))
        return self.ingesting.chunks_of(manifest, range(len(manifest.chunks)))

    def _context(
        self, name: str, cut: Ingested, placed: Sequence[int], questions: Sequence[str]
    ) -> SelectionContext:
        texts, contexts = [cut.texts[i] for i in placed], tuple(cut.contexts[i] for i in placed)
        found = list(self.selections.placed(texts, contexts))
        primary = [
            PlacedChunk(chunk.primary.token_ids, tuple(link.token_ids for link in context))
            for (chunk, _), context in zip(found, contexts, strict=True)
        ]
        auxiliary = [PlacedChunk(chain[-1], chain[:-1]) for _, chain in found]
        return SelectionContext.of(
            name,
            ModelReading(tuple(primary), tuple(map(self.prompts.encode_question, questions))),
            ModelReading(tuple(auxiliary), tuple(map(self.auxiliary.encode_question, questions))),
            [chunk for chunk, _ in found],
        )


def _joined(of_documents: Sequence[Ingested]) -> Ingested:
    """Of several documents, as if it were of one."""
    return Ingested(
        tuple(chunk for one in of_documents for chunk in one.chunks),
        tuple(link for one in of_documents for link in one.links),
        tuple(text for one in of_documents for text in one.texts),
        tuple(context for one in of_documents for context in one.contexts),
    )
