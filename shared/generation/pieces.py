"""A piece of a prompt: text, or token ids, or both."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.identity import TokenIds


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Token ids and the text they were made of, without the template."""

    token_ids: TokenIds
    text: str


PlainPiece = str | TokenIds | Tokenized
"""Text goes through the model's template and tokenizer; token ids are used as they are."""


@dataclass(frozen=True, slots=True)
class Conditioned:
    """A chunk whose KV is computed behind others of its document: behind all of ``context``, in order, or
    behind the chunk with the identity ``parent_id`` and all that this one was computed behind.

    Raises:
        InvalidRequest: both are given.
    """

    piece: PlainPiece
    context: tuple[PlainPiece, ...] = ()
    parent_id: str = ""

    def __post_init__(self) -> None:
        if self.context and self.parent_id:
            raise InvalidRequest("parent_id: follows from the context; give one of them")


Piece = PlainPiece | Conditioned


def plain_of(piece: Piece) -> PlainPiece:
    """Without what it is computed behind."""
    return piece.piece if isinstance(piece, Conditioned) else piece


def text_of(piece: Piece) -> str:
    """Empty: it is not known."""
    match plain := plain_of(piece):
        case str():
            return plain
        case Tokenized():
            return plain.text
        case _:
            return ""


def ids_of(piece: Piece) -> TokenIds:
    """
    Raises:
        InvalidRequest: it is text, and whoever asks has no tokenizer.
    """
    match plain := plain_of(piece):
        case str():
            raise InvalidRequest("piece: is text, and token ids are needed; tokenize it first")
        case Tokenized():
            return plain.token_ids
        case _:
            return plain
