"""Scores answers as the authors of suites score them, each from 0 to 1.

==================  ==========================================================================================
``coverage``        share of the references that stand in the answer (RULER's string match all; CacheClip's
                    reference coverage)
``part``            1 where any reference stands in it (RULER's string match part)
``all_told``        1 where all of them do (RGB)
``rejection``       1 where the answer says that the documents do not tell (RGB)
``error_told``      1 where it says that the documents contradict the facts (RGB)
``exact``           1 where the answer is a reference, after SQuAD's normalisation
``subspan``         1 where a reference stands in the answer, likewise ("lost in the middle")
``f1``              of the words that both have, likewise; the reference that fits best
``rouge_l``         F1 of the longest common subsequence of words
``f1_zh``           ``f1`` and ``rouge_l`` of the characters of Chinese text, without punctuation. (LongBench
``rouge_l_zh``      parts it into words by jieba first, which gives other numbers, in the same order.)
``choice``          1 where the first letter of a choice that is told is the right one (MMLU)
``number``          1 where the last number that is told is the right one (GSM8K)
==================  ==========================================================================================
"""

from __future__ import annotations

import enum
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import chain

from shared.measuring.squad import f1, normalized

References = Sequence[Sequence[str]]
_REJECTIONS = ("insufficient information", "信息不足")
_ERRORS = ("factual errors", "事实性错误")
_CHOICE = re.compile(r"(?<![A-Za-z'’])[A-D](?![A-Za-z'’])")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Metric(enum.StrEnum):
    COVERAGE = "coverage"
    PART = "part"
    ALL_TOLD = "all_told"
    REJECTION = "rejection"
    ERROR_TOLD = "error_told"
    EXACT = "exact"
    SUBSPAN = "subspan"
    F1 = "f1"
    ROUGE_L = "rouge_l"
    F1_ZH = "f1_zh"
    ROUGE_L_ZH = "rouge_l_zh"
    CHOICE = "choice"
    NUMBER = "number"

    def score(self, text: str, references: References) -> float:
        return _SCORES[self](text, references)


def cut_short(text: str, references: References) -> float:
    """Share of the numbers that stand in ``text`` with digits missing at an end or both, half of them at
    least left, and nowhere whole: "566362" in place of 5663623 (CacheClip, its case study)."""
    told = re.findall(r"\d+", text)
    digits = ["".join(re.findall(r"\d", forms[0])) for forms in references]
    return sum(_is_cut(told, number) for number in digits) / len(digits)


def lcs_len(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Of the longest common subsequence."""
    before = [0] * (len(theirs) + 1)
    for one in ours:
        row = [0]
        for j, other in enumerate(theirs):
            row.append(before[j] + 1 if one == other else max(before[j + 1], row[j]))
        before = row
    return before[-1]


def _is_cut(told: Sequence[str], number: str) -> bool:
    if not number or any(number in one for one in told):
        return False
    return any(one in number and 2 * len(one) >= len(number) for one in told)


def _forms(references: References) -> list[str]:
    return list(chain.from_iterable(references))


def _stands(forms: Sequence[str], text: str) -> bool:
    """An empty form stands nowhere."""
    return any(form.lower() in text.lower() for form in forms if form.strip())


def _coverage(text: str, references: References) -> float:
    return sum(_stands(forms, text) for forms in references) / len(references)


def _part(text: str, references: References) -> float:
    return float(_stands(_forms(references), text))


def _all_told(text: str, references: References) -> float:
    """As RGB: whoever rejects has told nothing, and spaces between Chinese characters do not count."""
    if _rejection(text, references):
        return 0.0
    seen = re.sub(r"\s+", "", text) if is_chinese("".join(_forms(references))) else text
    return float(all(_stands(forms, seen) for forms in references))


def _rejection(text: str, references: References) -> float:
    return float(any(rejection in text.lower() for rejection in _REJECTIONS))


def _error_told(text: str, references: References) -> float:
    return float(any(said in text.lower() for said in _ERRORS))


def _exact(text: str, references: References) -> float:
    return float(normalized(text) in map(normalized, _forms(references)))


def _subspan(text: str, references: References) -> float:
    """What normalisation leaves nothing of (“The The”) is looked for as it is."""
    ours = normalized(text)
    return float(
        any(
            known in ours if (known := normalized(form)) else _stands([form], text)
            for form in _forms(references)
        )
    )


def _best_f1(parted: Callable[[str], list[str]]) -> Callable[[str, References], float]:
    def score(text: str, references: References) -> float:
        ours = parted(text)
        return max((f1(ours, parted(form)) for form in _forms(references) if ours), default=0.0)

    return score


def _best_rouge(parted: Callable[[str], list[str]]) -> Callable[[str, References], float]:
    def score(text: str, references: References) -> float:
        ours = parted(text)
        return max((_rouge(ours, parted(form)) for form in _forms(references)), default=0.0)

    return score


def _rouge(ours: Sequence[str], theirs: Sequence[str]) -> float:
    shared = lcs_len(ours, theirs)
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def _words(text: str) -> list[str]:
    return normalized(text).split()


def _plain_words(text: str) -> list[str]:
    """As the package ``rouge`` parts text."""
    return text.split()


def _characters(text: str) -> list[str]:
    """In lower case, without white space and punctuation."""
    return [c for c in text.lower() if not c.isspace() and unicodedata.category(c)[0] not in "PS"]


def _choice(text: str, references: References) -> float:
    found = _CHOICE.search(text.strip())
    return float(found is not None and found.group() == references[0][0])


def _number(text: str, references: References) -> float:
    found = _NUMBER.findall(text)
    return float(bool(found) and _value(found[-1]) == _value(references[0][0]))


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def is_chinese(text: str) -> bool:
    return any("\u4e00" <= c <= "\u9fff" for c in text)


_SCORES: dict[Metric, Callable[[str, References], float]] = {
    Metric.COVERAGE: _coverage,
    Metric.PART: _part,
    Metric.ALL_TOLD: _all_told,
    Metric.REJECTION: _rejection,
    Metric.ERROR_TOLD: _error_told,
    Metric.EXACT: _exact,
    Metric.SUBSPAN: _subspan,
    Metric.F1: _best_f1(_words),
    Metric.ROUGE_L: _best_rouge(_plain_words),
    Metric.F1_ZH: _best_f1(_characters),
    Metric.ROUGE_L_ZH: _best_rouge(_characters),
    Metric.CHOICE: _choice,
    Metric.NUMBER: _number,
}
