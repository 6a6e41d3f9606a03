"""Makes examples of the documents of an ingested collection: what was cut there, and questions about it that
the model itself writes.

Learning the model's own answers takes no good questions, only such as the text answers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Protocol

from cluster.training.examples import Example, ExampleChunk, ExampleDocument
from services.training.distillation.decoding import decoded
from shared.engine import Engine
from shared.engine.model.model import LoadedModel
from shared.errors import InvalidRequest
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.kv_types import Manifest
from shared.prompt import PromptTokenizer

_ASKED = "Write one short question that this text answers. Write nothing but the question."
_OF_ANY_TEXT = re.compile(
    r"\b(question|answer|text|following|sentence|what|which|when|where|whose|does|that|this|these|those|there"
    r"|with|from|about|into|have|been|were|would|could|should)\b"
)
"""Words of prompts, and of any question."""
_MAX_TOKENS = 48
_WINDOW = 48  # chunks of a long document that may stand together
_WORDS = range(3, 41)
_LONG_WORD = re.compile(r"\w{4,}")


@dataclass(frozen=True, slots=True)
class AskedChunks:
    """Documents that may stand together, and which of their chunks are asked about: numbers of a document and
    of a chunk in it."""

    documents: tuple[ExampleDocument, ...]
    chunks: tuple[tuple[int, int], ...]

    @property
    def texts(self) -> list[str]:
        return [self.documents[i].chunks[j].text for i, j in self.chunks]


def subjects_of(
    manifests: Sequence[Manifest], num_chunks: int, num_questions: int, count: int, seed: int
) -> list[AskedChunks]:
    """At most ``count``, each of about twice as many chunks as a context has, asked about at most
    ``num_questions`` of them."""
    rng = random.Random(f"{seed} collection")
    windows = [window for manifest in manifests for window in _windows(manifest)]
    rng.shuffle(windows)
    by_bundle = []
    for bundle in _bundles(windows, 2 * num_chunks):
        places = [(i, j) for i, document in enumerate(bundle) for j in range(len(document.chunks))]
        rng.shuffle(places)
        groups = (places[first : first + num_questions] for first in range(0, len(places), num_questions))
        by_bundle.append([AskedChunks(tuple(bundle), tuple(group)) for group in groups])
    in_turn = (subject for group in zip_longest(*by_bundle) for subject in group if subject is not None)
    return list(islice(in_turn, count))


class QuestionWriter(Protocol):
    """Whoever is asked for questions about texts."""

    def write(self, texts: Sequence[str], name: str) -> Iterator[str]:
        """Of each text what was written about it; ``name``: of the texts, for errors."""
        ...


class ModelWriter:
    """The model itself, over one text at a time."""

    def __init__(self, model: LoadedModel, prompts: PromptTokenizer) -> None:
        self._prompts, self._engine = prompts, Engine(model, decode=prompts.decode)

    def close(self) -> None:
        self._engine.shut_down()

    def write(self, texts: Sequence[str], name: str) -> Iterator[str]:
        asked = (self._prompts.encode_question(_ASKED),)
        requests = [
            GenerateRequest(
                f"{i}",
                self._prompts.prefix_ids,
                (Chunk("0", self._prompts.encode_chunk(text)),),
                asked,
                reuse=ReuseMode.FULL,
                sampling=SamplingParams(max_tokens=_MAX_TOKENS),
            )
            for i, text in enumerate(texts)
        ]
        for (ids,) in decoded(self._engine, requests, [name] * len(texts)):
            yield self._prompts.decode(ids)


def examples_of(
    subjects: Sequence[AskedChunks],
    writer: QuestionWriter,
    collection: str,
    on_progress: Callable[[int, int], None],
) -> list[Example]:
    """
    Raises:
        InvalidRequest: no questions can be generated.
    """
    examples = []
    for number, subject in enumerate(subjects):
        on_progress(number, len(subjects))
        name = f"collection {collection}, context {number}"
        texts = subject.texts
        written = map(question_in, writer.write(texts, name), texts)
        questions = tuple(dict.fromkeys(question for question in written if question))
        if questions:
            examples.append(Example(name, subject.documents, questions))
    on_progress(len(subjects), len(subjects))
    if len(examples) < 2:
        raise InvalidRequest(
            f"--collection: no questions can be generated: of {len(subjects)} contexts of {collection!r} the "
            f"model wrote a question about {len(examples)}; write documents and questions into a file and "
            "give it as --data, or take a model that follows instructions"
        )
    return examples


def question_in(text: str, chunk: str) -> str:
    """The first question of what the model wrote; empty: there is none that has to do with the chunk."""
    question, mark, _ = text.strip().removeprefix("Question:").strip(" \"'").partition("?")
    words = question.split()
    asked = _OF_ANY_TEXT.sub("", question.lower())
    about = set(_LONG_WORD.findall(asked)) & set(_LONG_WORD.findall(chunk.lower()))
    return f"{question}?" if mark and "\n" not in question and len(words) in _WORDS and about else ""


def _windows(manifest: Manifest) -> Iterator[ExampleDocument]:
    chunks = [ExampleChunk(chunk.text, chunk.heading) for chunk in manifest.chunks if chunk.text.strip()]
    for first in range(0, len(chunks), _WINDOW):
        yield ExampleDocument(manifest.title, "", tuple(chunks[first : first + _WINDOW]))


def _bundles(documents: Sequence[ExampleDocument], num_chunks: int) -> Iterator[list[ExampleDocument]]:
    """Bundles documents; what is left over at the end joins the last bundle."""
    bundles: list[list[ExampleDocument]] = []
    for document in documents:
        if not bundles or sum(len(one.chunks) for one in bundles[-1]) >= num_chunks:
            bundles.append([])
        bundles[-1].append(document)
    if len(bundles) > 1 and sum(len(one.chunks) for one in bundles[-1]) < num_chunks:
        rest = bundles.pop()
        bundles[-1] += rest
    return iter(bundles)
