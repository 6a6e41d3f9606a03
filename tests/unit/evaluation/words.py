"""A tokenizer whose tokens are words, for what only counts."""

from __future__ import annotations

from cluster.evaluation.cutting import CaseCutter


class Words:
    """A token per word; three around a question."""

    prefix_ids = (1, 2)

    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return tuple(range(len(text.split())))

    def encode_question(self, question: str) -> tuple[int, ...]:
        return tuple(range(3 + len(question.split())))


def word_cutter(positions: int, chunk_tokens: int = 16) -> CaseCutter:
    return CaseCutter(Words(), chunk_tokens, positions)  # type: ignore[arg-type]
