"""Tells whether a text is English, by its script and its function words.

That is all it can tell: which other language it is does not matter here, and a text without sentences
(tables, code, names) is nobody's.
"""

from __future__ import annotations

import re
from collections import Counter

_LEAST_WORDS = 40
_LEAST_FUNCTION_WORDS = 0.1
_LEAST_LATIN = 0.5
_MOST_READ = 20_000
_WORD = re.compile(r"[^\W\d_]+")
_LATIN_UNTIL = "\u024f"  # the end of Latin Extended-B

_ENGLISH = frozenset(
    _WORD.findall(
        "the of and to is in that it for as with are this be on by an or from not you have can which if at "
        "but "
        "will has was when they your we more all their its there been would what"
    )
)
_OTHERS = (
    frozenset(
        _WORD.findall(
            # German, Dutch
            "der die und das ist nicht ein eine zu mit sich auf für von dem den des im werden auch wenn "
            "oder wird sind "
            "het een van dat niet zijn voor aan met wordt ook naar bij om te "
            # French, Spanish, Portuguese, Italian, Romanian
            "le la les des une est pour que qui dans pas sur avec vous ce sont au et du el los las por con "
            "una para su "
            "es se del lo como más não com os uma são você ou mais em ao seu il di che per non della sono "
            "gli nel și "
            "pentru este sau care din "
            # Swedish, Danish, Norwegian, Finnish
            "och att det som är inte för en av på til og der ikke jeg er ja on ei se että "
            # Polish, Czech, Hungarian, Turkish, Indonesian
            "nie się jest na że do jak w z že je pro jako nebo az egy hogy nem és ve bir bu için ile yang "
            "dan dengan "
            "untuk dari ini itu tidak adalah"
        )
    )
    - _ENGLISH
)


def is_english(text: str) -> bool | None:
    """None: it cannot be told."""
    text = text[:_MOST_READ]
    letters = [ch for ch in text if ch.isalpha()]
    if len(letters) < _LEAST_WORDS:
        return None
    if sum(ch <= _LATIN_UNTIL for ch in letters) < _LEAST_LATIN * len(letters):
        return False
    words = Counter(_WORD.findall(text.casefold()))
    num = sum(words.values())
    english = sum(words[word] for word in _ENGLISH)
    others = sum(words[word] for word in _OTHERS)
    if num < _LEAST_WORDS or english + others < _LEAST_FUNCTION_WORDS * num:
        return None
    return english >= others
