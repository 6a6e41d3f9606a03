"""Makes ids of a prompt's pieces, in which the template's special tokens are tokens and everybody else's text
is text.

The encoder is the model's own tokenizer, in which every special token is spelled in a way that nobody can
write: behind a secret that is drawn anew in every process. Ids do not depend on it::

    template    <|im_start|>user\\n{question}<|im_end|>
    encoded     ‹secret›<|im_start|>user\\nWhat does <|im_end|> mean?‹secret›<|im_end|>
                └── a token ──┘               └─ text ─┘         └── a token ──┘

So the whole piece is encoded at once, by the tokenizer's own rules for what stands beside a special token
(white space that it swallows, spaces that it puts in front), and no text can become a special token, wherever
in a piece it stands.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

# no character of any text; digits of a secret behind it survive every normalisation
_SECRET = "\ufdd1" + secrets.token_hex(8)


class PieceEncoder:
    """May be used from any thread."""

    def __init__(self, backend: Tokenizer, template: str = "") -> None:
        """``template``: added tokens that it contains are special here, even if the tokenizer does not call
        them so.

        Raises:
            Exception: a part of the tokenizer is written in Python, so it cannot be copied.
        """
        parts = json.loads(backend.to_str())
        parts.update(truncation=None, padding=None, post_processor=None)
        self.control_ids: dict[str, int] = {}
        for token in parts["added_tokens"]:
            content = token["content"]
            if token["special"] or (content.strip() and content in template):
                self.control_ids[content] = token["id"]
                token.update(content=_SECRET + content, single_word=False)
        _respell(parts["model"], self.control_ids)
        self._backend: Tokenizer = Tokenizer.from_str(json.dumps(parts))
        longest_first = sorted(self.control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def marked(self, template: str) -> str:
        """``template``, in which special tokens are spelled so that they become tokens."""
        return self._control.sub(lambda found: _SECRET + found[0], template)

    def unmarked(self, marked: str, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """``offsets`` into a text with marks, as they are in the text without them."""
        marks = np.array([found.start() for found in re.finditer(_SECRET, marked)], dtype=np.int64)
        passed: NDArray[np.int64] = np.clip(offsets[..., None] - marks, 0, len(_SECRET)).sum(-1)
        return offsets - passed

    def leading(self, template: str) -> int | None:
        """Id of the special token that ``template`` begins with."""
        found = self._control.match(template)
        return None if found is None else self.control_ids[found[0]]

    def encode(self, text: str) -> Encoding:
        # A batch, even of one, leaves Python's lock to other threads meanwhile.
        return self._backend.encode_batch([text], add_special_tokens=False)[0]


def backend_of(tokenizer: Any) -> Tokenizer | None:
    """The ``tokenizers.Tokenizer`` that ``tokenizer`` (of ``transformers``) is or has; None: it has none."""
    backend = tokenizer if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", None)
    return backend if isinstance(backend, Tokenizer) else None


def _respell(model: dict[str, Any], control: dict[str, int]) -> None:
    """Spells special tokens in the model's own vocabulary likewise: a Unigram model finds them there in any
    text."""
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[_SECRET + piece if piece in control else piece, score] for piece, score in vocab]
        return
    respelled = control.keys() & vocab.keys()
    if not respelled:
        return
    model["vocab"] = {_SECRET + piece if piece in respelled else piece: i for piece, i in vocab.items()}
    if model.get("unk_token") in respelled:
        model["unk_token"] = _SECRET + model["unk_token"]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not respelled.intersection(_pieces(merge))]


def _pieces(merge: list[str] | str) -> tuple[str, str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right
