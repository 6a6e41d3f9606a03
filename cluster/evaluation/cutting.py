"""Cuts a case's documents into chunks, as ingestion does, and leaves out what there is no room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cluster.evaluation.cases import EvalDocument
from cluster.gate.tasks import TaskDocument
from services.ingestion.chunker import Chunker
from services.ingestion.formats.document import ParsedDocument
from shared.errors import ContextTooLong
from shared.prompt import PromptTokenizer

_DOCUMENTS = 512  # kept as they were cut


@dataclass(frozen=True, slots=True)
class CutCase:
    """``sources``: the documents by their chunks, which are numbered over all of them; ``texts``,
    ``document_of``: of each chunk; ``placed``: numbers of those that the question is asked over."""

    sources: tuple[TaskDocument, ...]
    texts: tuple[str, ...]
    document_of: tuple[int, ...]
    placed: tuple[int, ...]
    num_tokens: int


class CaseCutter:
    """``positions``: of the prompt and the answer, at most.

    Raises:
        ConfigError: the template leaves no room in a chunk.
    """

    def __init__(self, prompts: PromptTokenizer, chunk_tokens: int, positions: int) -> None:
        self._prompts, self._positions = prompts, positions
        self._chunker = Chunker(prompts, chunk_tokens)
        self._cut = lru_cache(_DOCUMENTS)(self._cut_anew)

    def around(self, question: str, max_tokens: int) -> int:
        """Tokens of a prompt and its answer besides the chunks."""
        return len(self._prompts.prefix_ids) + len(self._prompts.encode_question(question)) + max_tokens

    def num_tokens(self, text: str) -> int:
        """Of a document in its chunks."""
        return sum(num for _, num in self._cut(text))

    def cut(self, documents: Sequence[EvalDocument], question: str, max_tokens: int) -> CutCase:
        """Cuts what is too long: it loses chunks in its middle, as LongBench has it.

        Raises:
            ContextTooLong: there is no room for a single chunk.
        """
        sources: list[TaskDocument] = []
        texts: list[str] = []
        lens: list[int] = []
        document_of: list[int] = []
        for number, document in enumerate(documents):
            cut = self._cut(document.text)
            passages = tuple(range(len(texts), len(texts) + len(cut)))
            sources.append(TaskDocument(document.title, passages, tuple(text for text, _ in cut)))
            texts += (text for text, _ in cut)
            lens += (num for _, num in cut)
            document_of += [number] * len(cut)
        room = self._positions - self.around(question, max_tokens)
        placed = without_middle(lens, room)
        if lens and not placed:
            raise ContextTooLong(
                f"--length: {self._positions} tokens leave {max(0, room)} for chunks beside the question "
                f"“{question[:40]}…” and an answer of {max_tokens}; raise it, or lower --max-tokens"
            )
        return CutCase(tuple(sources), tuple(texts), tuple(document_of), placed, sum(lens[i] for i in placed))

    def _cut_anew(self, text: str) -> tuple[tuple[str, int], ...]:
        return tuple(
            (chunk.text, len(chunk.token_ids)) for chunk in self._chunker.split(ParsedDocument(text))
        )


def without_middle(lens: Sequence[int], room: int) -> tuple[int, ...]:
    """Numbers of the pieces that fit, taken from both ends in turn."""
    if sum(lens) <= room:
        return tuple(range(len(lens)))
    front, back = 0, len(lens)
    while front < back:
        at_front = front <= len(lens) - back
        length = lens[front] if at_front else lens[back - 1]
        if length > room:
            break
        room -= length
        front, back = (front + 1, back) if at_front else (front, back - 1)
    return (*range(front), *range(back, len(lens)))
