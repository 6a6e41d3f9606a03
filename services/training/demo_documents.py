"""Writes the demo's documents and questions: ``python -m services.training.demo_documents --out
cluster/demo_assets``.

The names are held out from training: the demo model has to read these documents to answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from services.training.corpus import CorpusDocument, Style, Worlds
from services.training.names import Split
from services.training.rendering import RENDERERS

SEED = 7
QUESTIONS_PER_DOCUMENT = 2
_STYLE = Style(back_reference=0.2, filler=0.6, omission=0.0)
_FORMATS = ("md", "html", "txt", "pdf", "md", "txt")
_FOLDERS = {"company": "companies", "observatory": "observatories"}


@dataclass(frozen=True, slots=True)
class DemoDocument:
    path: str
    document: CorpusDocument


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """``document``: the path of the one that answers it."""

    question: str
    answer: str
    document: str


def demo_documents(seed: int = SEED) -> list[DemoDocument]:
    """As many of each kind as there are formats in turn; no two share a name, not even its first word."""
    rng, worlds = random.Random(f"{seed} demo documents"), Worlds.load()
    taken: set[str] = set()
    written = []
    for i, kind in enumerate(worlds.kinds):
        folder = _FOLDERS.get(kind, kind + "s")
        for form in (*_FORMATS[i % len(_FORMATS) :], *_FORMATS[: i % len(_FORMATS)]):
            document = _unlike(taken, rng, worlds, kind)
            slug = document.name.removeprefix("the ").lower().replace(" ", "_")
            written.append(DemoDocument(f"{folder}/{slug}.{form}", document))
    return written


def _unlike(taken: set[str], rng: random.Random, worlds: Worlds, kind: str) -> CorpusDocument:
    while True:
        document = worlds.write(rng, kind, Split.HELD_OUT, _STYLE)
        word = document.name.removeprefix("the ").split()[0]
        if word not in taken:
            taken.add(word)
            return document


def demo_questions(documents: list[DemoDocument], seed: int = SEED) -> list[DemoQuestion]:
    """Questions about every document; the first ones, which the demo shows, are about one document of each
    kind."""
    rng = random.Random(f"{seed} demo questions")
    rounds = [list(_ask(rng, documents[i :: len(_FORMATS)])) for i in range(len(_FORMATS))]
    return [question for asked in rounds for question in asked]


def _ask(rng: random.Random, documents: list[DemoDocument]) -> Iterator[DemoQuestion]:
    drawn = [(entry, rng.sample(sorted(entry.document.facts), QUESTIONS_PER_DOCUMENT)) for entry in documents]
    for i in range(QUESTIONS_PER_DOCUMENT):
        for entry, keys in drawn:
            fact = entry.document.facts[keys[i]]
            yield DemoQuestion(rng.choice(fact.questions), fact.value, entry.path)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the demo's assets.")
def main(out: Path) -> None:
    """Writes documents/ and questions.json."""
    documents = demo_documents()
    for entry in documents:
        path = out / "documents" / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(RENDERERS[path.suffix[1:]](entry.document))
    questions = [
        {"question": q.question, "answer": q.answer, "document": q.document}
        for q in demo_questions(documents)
    ]
    (out / "questions.json").write_text(
        json.dumps(questions, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    click.echo(f"{len(documents)} documents, {len(questions)} questions in {out}")


if __name__ == "__main__":
    main()
