"""Cuts a text into words, whatever its script: what BM25, citations and refusal count by."""

from __future__ import annotations

import re

# Scripts without spaces count character by character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def words_of(text: str) -> list[str]:
    """In order, without case."""
    return _WORD.findall(text.casefold())
