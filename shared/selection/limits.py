"""Checks that an auxiliary model can read what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import ContextTooLong, InvalidRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_positions``: of the model, or of its sliding window; the prefix takes some of them."""

    vocab_size: int
    max_positions: int
    prefix_len: int

    def fit(self, num_tokens: int) -> bool:
        return self.prefix_len + num_tokens <= self.max_positions

    def check_prefix(self, prefix_ids: Sequence[int]) -> None:
        """
        Raises:
            InvalidRequest: a token id is outside the vocabulary.
            ContextTooLong: it leaves no room.
        """
        self._check_ids("prefix", prefix_ids)
        self._check_len("a chunk and a question of one token each", 2)

    def check_chunks(self, chunks: Sequence[Sequence[int]], chain_len: int = 0) -> None:
        """``chain_len``: tokens between the prefix and each of them.

        Raises:
            InvalidRequest: a token id is outside the vocabulary; names the chunk.
            ContextTooLong: a chunk does not fit.
        """
        for index, ids in enumerate(chunks):
            self._check_ids(f"chunks[{index}]", ids)
            chain = f", the {chain_len} tokens in front of it" if chain_len else ""
            self._check_len(f"chunks[{index}] ({len(ids)} tokens){chain}", chain_len + len(ids))

    def check_question(self, question_ids: Sequence[int], chunk_lens: Sequence[int]) -> None:
        """
        Raises:
            InvalidRequest: the question is empty, or a token id is outside the vocabulary.
            ContextTooLong: it does not fit behind a single chunk; names the chunk.
        """
        if not question_ids:
            raise InvalidRequest("question: is empty")
        self._check_ids("question", question_ids)
        for index, length in enumerate(chunk_lens):
            self._check_len(f"chunks[{index}] ({length} tokens) and the question", length + len(question_ids))

    def _check_ids(self, field: str, token_ids: Sequence[int]) -> None:
        if any(not 0 <= token < self.vocab_size for token in token_ids):
            raise InvalidRequest(
                f"{field}: a token id is outside the auxiliary model's vocabulary (0 to "
                f"{self.vocab_size - 1})"
            )

    def _check_len(self, what: str, num_tokens: int) -> None:
        if not self.fit(num_tokens):
            raise ContextTooLong(
                f"{what} and the prefix ({self.prefix_len}) do not fit the auxiliary model's "
                f"{self.max_positions} positions: "
                "use shorter chunks"
            )
