"""Judges an answer to an operator's question: by the answers that are accepted, by the evidence that it
should come from, or by whether it says that it does not know."""

from __future__ import annotations

import re
from collections.abc import Sequence

LEAST_SUPPORT = 0.5
_WORD = re.compile(r"\w+")
_UNKNOWING = re.compile(
    r"\b(?:do(?:es)? not (?:say|know|mention|state|contain|provide|specify)|don['’]t (?:know|say)"
    r"|doesn['’]t (?:say|mention)|(?:is|are|was|were) not (?:mentioned|stated|given|specified|provided|known)"
    r"|not (?:in|part of) the (?:documents?|context|text)|no (?:information|mention|answer)"
    r"|cannot (?:answer|say|tell)|can['’]t (?:answer|say|tell)|unanswerable|unknown)\b",
    re.IGNORECASE,
)


def accepted(text: str, expected: Sequence[str]) -> bool:
    """Whether one of ``expected`` stands in ``text`` as whole words, whatever the case."""
    said = _plain(text)
    return any(f" {_plain(answer)} " in f" {said} " for answer in expected if _plain(answer))


def supported(text: str, question: str, evidence: Sequence[str]) -> bool:
    """Whether at least half of the words of ``text`` that are not the question's stand in the evidence; an
    answer that only repeats the question is not."""
    said = _words(text) - _words(question)
    told = set().union(*map(_words, evidence))
    return bool(said) and len(said & told) >= LEAST_SUPPORT * len(said)


def abstains(text: str) -> bool:
    """Whether it says, in English, that the documents do not tell."""
    return _UNKNOWING.search(text) is not None


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
