"""Measures how well a model reads what it has never seen: ``python -m services.training.evaluate --model
DIR``.

Documents with held-out names become files, are parted by the splitter and tokenizer that ingestion uses, and
come back as a retriever would return them: the passage with the answer somewhere among passages of the same
and of other documents.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from semantic_text_splitter import MarkdownSplitter, TextSplitter

from services.training.corpus import CorpusDocument, Fact, Worlds
from services.training.names import Split
from services.training.reader import Mode, Reader
from services.training.rendering import to_markdown, to_text
from shared.measuring.paired import wilson

MODES: tuple[Mode, ...] = ("full", "reordered")


@dataclass(frozen=True, slots=True)
class EvaluationTrial:
    chunks: tuple[str, ...]
    question: str
    value: str


@dataclass(frozen=True, slots=True)
class Share:
    right: int
    asked: int

    def __str__(self) -> str:
        low, high = wilson(self.right, self.asked)
        return (
            f"{self.right / self.asked:6.1%} ({self.right}/{self.asked}, 95 % interval {low:.1%} "
            f"to {high:.1%})"
        )


def answers(text: str, value: str) -> bool:
    """Whether ``value`` stands in ``text`` as whole words."""
    padded = "".join(c if c.isalnum() or c == "," else " " for c in f" {text} ")
    wanted = "".join(c if c.isalnum() or c == "," else " " for c in value)
    return f" {wanted} " in padded.replace(", ", "  ")


def draw_trials(
    reader: Reader, count: int, k: int, chunk_tokens: int, seed: int
) -> Iterator[EvaluationTrial]:
    """Questions about held-out documents; each with the ``k`` passages it is asked over."""
    rng, worlds = random.Random(f"{seed} trials"), Worlds.load()
    while count:
        kinds = list(worlds.kinds) if rng.random() < 0.5 else [rng.choice(list(worlds.kinds))]
        documents = [worlds.write(rng, rng.choice(kinds), Split.HELD_OUT) for _ in range(k)]
        chunks = [split_document(rng, document, reader, chunk_tokens) for document in documents]
        fact = rng.choice(sorted(documents[0].facts.values(), key=lambda fact: fact.answer))
        if (gold := _telling(chunks[0], documents[0], fact)) is not None:
            yield EvaluationTrial(_retrieved(rng, gold, chunks, k), rng.choice(fact.questions), fact.value)
            count -= 1


def split_document(
    rng: random.Random, document: CorpusDocument, reader: Reader, chunk_tokens: int
) -> list[str]:
    splitter, render = (MarkdownSplitter, to_markdown) if rng.random() < 0.5 else (TextSplitter, to_text)
    cutting = splitter.from_huggingface_tokenizer(reader.prompt.backend, chunk_tokens)
    return cutting.chunks(render(document).decode())


def _telling(chunks: Sequence[str], document: CorpusDocument, fact: Fact) -> str | None:
    """The passage that states the fact and names its subject, if one does both."""
    named = [
        chunk for chunk in chunks if answers(chunk, fact.value) and document.name.lower() in chunk.lower()
    ]
    return named[0] if len(named) == 1 else None


def _retrieved(rng: random.Random, gold: str, chunks: Sequence[Sequence[str]], k: int) -> tuple[str, ...]:
    """Passages of the same document first, as they name the same thing; then others; in any order."""
    siblings = [chunk for chunk in chunks[0] if chunk != gold]
    others = [chunk for document in chunks[1:] for chunk in document]
    rng.shuffle(others)
    found = [gold, *siblings, *others][:k]
    rng.shuffle(found)
    return tuple(found)


def measure(reader: Reader, trials: Sequence[EvaluationTrial], mode: Mode) -> Share:
    right = sum(answers(reader.answer(trial.chunks, trial.question, mode), trial.value) for trial in trials)
    return Share(right, len(trials))


@click.command()
@click.option("--model", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--questions", type=int, default=300, show_default=True)
@click.option("--k", type=int, default=5, show_default=True, help="Passages per question.")
@click.option("--chunk-tokens", type=int, default=96, show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--show-errors", is_flag=True)
def main(
    model: Path, questions: int, k: int, chunk_tokens: int, dtype: str, seed: int, show_errors: bool
) -> None:
    """Prints the share of right answers with the whole context computed (full) and with stitched chunks
    (reordered)."""
    torch.set_num_threads(1)
    reader = Reader.of_directory(str(model), dtype)
    trials = list(draw_trials(reader, questions, k, chunk_tokens, seed))
    for mode in MODES:
        click.echo(f"{mode:10s} {measure(reader, trials, mode)}")
    for trial in trials if show_errors else ():
        if not answers(text := reader.answer(trial.chunks, trial.question, "full"), trial.value):
            click.echo(f"{trial.question} Expected {trial.value!r}, read {text!r}")


if __name__ == "__main__":
    main()
