"""From the pieces of a request, text or ids, to checked token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.errors import InvalidRequest
from shared.generation.pieces import Piece, ids_of, plain_of
from shared.identity import TokenIds
from shared.packets import PacketIds
from shared.prompt import PromptTokenizer


class Prompts:
    """``field`` names the piece in the request, for whoever has to correct it. Every method raises
    ``InvalidRequest``."""

    def __init__(
        self, tokenizer: PromptTokenizer | None, vocab_size: int, packets: PacketIds | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._packets = packets

    @property
    def default_prefix_ids(self) -> TokenIds:
        return self._tokenizer.prefix_ids if self._tokenizer else ()

    def prefix(self, piece: Piece | None) -> TokenIds:
        if piece is None:
            return self.default_prefix_ids
        return self._ids("prefix", piece, PromptTokenizer.encode_prefix)

    def chunks(self, pieces: Sequence[Piece], field: str = "chunks") -> tuple[TokenIds, ...]:
        """Without what they are computed behind; between packets, if there are any, also where these did not
        come along."""
        return tuple(self._chunk(f"{field}[{i}]", plain_of(piece)) for i, piece in enumerate(pieces))

    def questions(self, pieces: Sequence[Piece]) -> tuple[TokenIds, ...]:
        if not pieces:
            raise InvalidRequest("questions: at least one is needed")
        return tuple(self.question(f"questions[{i}]", piece) for i, piece in enumerate(pieces))

    def question(self, field: str, piece: Piece) -> TokenIds:
        return self._filled(field, piece, PromptTokenizer.encode_question)

    def plain(self, field: str, piece: Piece) -> TokenIds:
        """Text as it is, without a template."""
        return self._filled(field, piece, PromptTokenizer.encode)

    def _chunk(self, field: str, piece: Piece) -> TokenIds:
        if self._packets is None:
            return self._filled(field, piece, PromptTokenizer.encode_chunk)
        if not isinstance(piece, str):
            piece = self._packets.plain(ids_of(piece))
        return self._packets.around(self._filled(field, piece, PromptTokenizer.encode_passage))

    def _filled(
        self, field: str, piece: Piece, encode: Callable[[PromptTokenizer, str], TokenIds]
    ) -> TokenIds:
        if not (piece.strip() if isinstance(piece, str) else ids_of(piece)):
            raise InvalidRequest(f"{field}: is empty")
        return self._ids(field, piece, encode)

    def _ids(self, field: str, piece: Piece, encode: Callable[[PromptTokenizer, str], TokenIds]) -> TokenIds:
        if isinstance(piece, str):
            if self._tokenizer is None:
                raise InvalidRequest(f"{field}.text: this model has no tokenizer; send token_ids")
            return encode(self._tokenizer, piece)
        token_ids = ids_of(piece)
        for i, token in enumerate(token_ids):
            if not 0 <= token < self._vocab_size:
                raise InvalidRequest(
                    f"{field}.token_ids[{i}]: {token} is outside the model's vocabulary (0 to "
                    f"{self._vocab_size - 1})"
                )
        return token_ids
