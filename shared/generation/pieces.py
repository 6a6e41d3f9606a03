"""A piece of a prompt: text, or token ids, or both."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Token ids and the text they were made of, without the template."""

    token_ids: tuple[int, ...]
    text: str


Piece = str | tuple[int, ...] | Tokenized
"""Text goes through the model's template and tokenizer; token ids are used as they are."""


def text_of(piece: Piece) -> str:
    """Empty: it is not known."""
    match piece:
        case str():
            return piece
        case Tokenized():
            return piece.text
        case _:
            return ""


def ids_of(piece: Piece) -> tuple[int, ...]:
    """
    Raises:
        InvalidRequest: it is text, and whoever asks has no tokenizer.
    """
    match piece:
        case str():
            raise InvalidRequest("piece: is text, and token ids are needed; tokenize it first")
        case Tokenized():
            return piece.token_ids
        case _:
            return piece
