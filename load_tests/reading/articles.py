"""Reads articles and the questions about them from a file in SQuAD's format, version 1.1 or 2.0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest

_BETWEEN = "\n\n"  # two paragraphs of an article


@dataclass(frozen=True, slots=True)
class ReadingQuestion:
    """``answers``: any of them is right, each with the character of the article at which it stands."""

    text: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Article:
    title: str
    text: str
    questions: tuple[ReadingQuestion, ...]


def read_articles(path: Path) -> list[Article]:
    """Questions without an answer in the text (SQuAD 2.0) are left out.

    Raises:
        InvalidRequest: there is no such file, or it is of another format; names what is missing.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))["data"]
        articles = [_article(told) for told in data]
    except FileNotFoundError:
        raise InvalidRequest(f"--data: there is no file {path}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"--data: {path} is not in SQuAD's format (data, paragraphs, context, qas): {error!r}"
        ) from None
    if not any(article.questions for article in articles):
        raise InvalidRequest(f"--data: {path} holds no question with an answer")
    return articles


def _article(told: Mapping[str, Any]) -> Article:
    texts, questions, start = [], list[ReadingQuestion](), 0
    for paragraph in told["paragraphs"]:
        text = str(paragraph["context"])
        questions += _questions(paragraph, start)
        texts.append(text)
        start += len(text) + len(_BETWEEN)
    title = str(told.get("title") or "").replace("_", " ")
    return Article(title, _BETWEEN.join(texts), tuple(questions))


def _questions(paragraph: Mapping[str, Any], start: int) -> Iterator[ReadingQuestion]:
    for asked in paragraph["qas"]:
        answers = {int(a["answer_start"]) + start: str(a["text"]) for a in asked["answers"]}
        if answers and not asked.get("is_impossible"):
            yield ReadingQuestion(str(asked["question"]).strip(), tuple(answers.values()), tuple(answers))
