"""Contexts to train on out of a collection: which documents stand together, and what counts as a question."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.training_collection import collection_examples, model_writer
from cluster.paths import DEMO_MODEL
from cluster.training.collection import examples_of, question_in, subjects_of
from cluster.training.contexts import ContextMaker
from cluster.training.examples import Example, ExampleChunk, ExampleDocument, read_examples, write_examples
from cluster.training.task import TrainedModel
from services.ingestion.config import IngestionConfig
from shared.errors import InvalidRequest, NotFound
from shared.kv_types import KvContext, Manifest, ManifestChunk
from shared.prompt import PromptTokenizer

CHUNK = "The harbour of Velbrin was built in 1891 by the engineer Tomas Arkel. A question and an answer."


def manifest(name: str, num_chunks: int) -> Manifest:
    chunks = tuple(
        ManifestChunk(f"{name}{i}", (1, 2), text=f"{name} chunk {i}.", heading=name)
        for i in range(num_chunks)
    )
    return Manifest("t", "c", name, name.title(), chunks=chunks)


def words(text: str) -> str:
    return text.rstrip(".") + " say"


class FakeWriter:
    """A model that follows instructions: a question about each text, but none about those of ``silent``."""

    def __init__(self, silent: Sequence[str] = ()) -> None:
        self.silent = silent

    def write(self, texts: Sequence[str], name: str) -> Iterator[str]:
        for text in texts:
            yield text if text in self.silent else f"What does {words(text)}? It says more."


@contextmanager
def fake_writer(served: TrainedModel) -> Iterator[FakeWriter]:
    yield FakeWriter()


class TestSubjects:
    def test_documents_are_put_together_until_there_is_something_to_choose_from(self) -> None:
        subjects = subjects_of([manifest(name, 3) for name in "abcdefg"], 3, 4, 99, seed=0)
        for subject in subjects:
            assert sum(len(document.chunks) for document in subject.documents) >= 6
            assert 1 <= len(subject.texts) <= 4
        asked = [text for subject in subjects for text in subject.texts]
        assert sorted(asked) == sorted(f"{name} chunk {i}." for name in "abcdefg" for i in range(3))

    def test_a_long_document_is_several(self) -> None:
        subjects = subjects_of([manifest("long", 130)], 6, 8, 999, seed=0)
        assert {len(subject.documents[0].chunks) for subject in subjects} == {48, 34}
        assert sum(len(subject.texts) for subject in subjects) == 130

    def test_no_more_than_asked_for_and_from_all_of_the_collection(self) -> None:
        manifests = [manifest(name, 12) for name in "abcd"]
        subjects = subjects_of(manifests, 6, 2, 4, seed=0)
        assert {subject.documents[0].title for subject in subjects} == set("ABCD")
        assert subjects == subjects_of(manifests, 6, 2, 4, seed=0)
        assert subjects != subjects_of(manifests, 6, 2, 4, seed=1)

    def test_what_says_nothing_is_left_out(self) -> None:
        assert subjects_of([Manifest("t", "c", "empty"), manifest("a", 2)], 1, 2, 9, seed=0)[0].texts


class TestQuestions:
    @pytest.mark.parametrize(
        ("written", "question"),
        [
            ("When was the harbour built? It was built in 1891.", "When was the harbour built?"),
            (' "Who built the harbour of Velbrin?"', "Who built the harbour of Velbrin?"),
            ("The harbour was built in 1891.", ""),
            ("Question: When was the harbour built?", "When was the harbour built?"),
            ("What is the answer to this question?", ""),
            ("What is the capital city?", ""),
            ("Harbour?", ""),
            ("Sure!\nWhen was the harbour built?", ""),
            ("Why " + "harbour " * 60 + "?", ""),
            ("", ""),
        ],
    )
    def test_are_one_line_about_the_text(self, written: str, question: str) -> None:
        assert question_in(written, CHUNK) == question

    @pytest.mark.parametrize("written", ["What is the answer to this question?", "What does the text say?"])
    def test_are_not_about_a_text_whose_small_words_they_share(self, written: str) -> None:
        assert question_in(written, "This is what the harbour does, and what this text is about.") == ""

    def test_a_model_that_writes_none_is_refused(self) -> None:
        subjects = subjects_of([manifest("a", 4)], 2, 2, 2, seed=0)
        with (
            model_writer(TrainedModel(IngestionConfig(str(DEMO_MODEL), 96))) as writer,
            pytest.raises(
                InvalidRequest, match=r"--collection: no questions can be generated: of 2 contexts .* --data"
            ),
        ):
            examples_of(subjects, writer, "notes", lambda done, of: None)

    def test_that_were_written_stay_with_the_documents_that_they_are_about(self) -> None:
        subjects = subjects_of([manifest("a", 4), manifest("b", 4)], 2, 2, 9, seed=0)
        told: list[tuple[int, int]] = []
        examples = examples_of(subjects, FakeWriter(), "notes", lambda done, of: told.append((done, of)))
        assert [example.documents for example in examples] == [subject.documents for subject in subjects]
        for example, subject in zip(examples, subjects, strict=True):
            assert example.questions == tuple(f"What does {text}?" for text in map(words, subject.texts))
        assert told == [(n, len(subjects)) for n in range(len(subjects) + 1)]

    def test_contexts_without_any_are_left_out(self) -> None:
        subjects = subjects_of([manifest("a", 6), manifest("b", 6)], 3, 2, 9, seed=0)
        silent = subjects[1].texts
        examples = examples_of(subjects, FakeWriter(silent), "notes", lambda done, of: None)
        assert len(examples) == len(subjects) - 1
        assert not [
            q for example in examples for q in example.questions for text in silent if words(text) in q
        ]


class TestFiles:
    def test_examples_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        path = tmp_path / "out" / "collection.jsonl"
        documents = (
            ExampleDocument("Lease", "", (ExampleChunk(CHUNK, "Lease > Rent"), ExampleChunk("é"))),
            ExampleDocument("", "plain\u2028text\x85\x0c"),
        )
        write_examples(path, [Example("x", documents, ("Who?", "When?"))])
        assert read_examples(path) == [Example(f"{path}, line 1", documents, ("Who?", "When?"))]

    @pytest.mark.parametrize(
        ("chunks", "told"),
        [
            ("[]", r"documents\[0\]: chunks: expected a list that is not empty"),
            ('["a"]', r"documents\[0\].chunks\[0\]: expected an object"),
            ('[{"text": " "}]', r"documents\[0\].chunks\[0\].text: expected text"),
            ('[{"text": "a", "heading": 1}]', r"documents\[0\].chunks\[0\].heading: expected text, got 1"),
        ],
    )
    def test_chunks_of_another_form_are_named(self, chunks: str, told: str, tmp_path: Path) -> None:
        path = tmp_path / "data.jsonl"
        path.write_text(f'{{"documents": [{{"chunks": {chunks}}}], "questions": ["a"]}}\n', encoding="utf-8")
        with pytest.raises(InvalidRequest, match=f"data.jsonl, line 1: {told}"):
            read_examples(path)

    def test_chunks_stay_as_they_were_cut(self) -> None:
        prompts = PromptTokenizer.of_model(str(DEMO_MODEL))
        assert prompts is not None
        chunks = tuple(ExampleChunk(f"The {thing} of Velbrin is old.", "Town") for thing in ("mill", "gate"))
        maker = ContextMaker(prompts, IngestionConfig(str(DEMO_MODEL), 40, KvContext.DOCUMENT), 2, 2, seed=0)
        (context,) = maker.contexts(
            [Example("x", (ExampleDocument("Velbrin", "", chunks),), ("Which mill?",))]
        )
        assert context.blocks == tuple(prompts.encode_chunk(chunk.text) for chunk in chunks)
        assert {len(chunk.chain) for chunk in context.chunks} == {1, 2}, "below a header of title and heading"


class FakeStore:
    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests = manifests

    async def list_manifests(self, ctx: object, collection: str) -> AsyncIterator[Manifest]:
        for one in self.manifests:
            if one.collection == collection:
                yield one


class FakeSession:
    """Of a system that runs and holds these documents."""

    def __init__(self, *manifests: Manifest) -> None:
        self.store = FakeStore(list(manifests))

    @asynccontextmanager
    async def connect(self, door: object) -> AsyncIterator[FakeStore]:
        yield self.store

    def context(self, deadline_ms: int) -> None:
        return None


class TestTheCommandsPart:
    def examples(
        self, session: FakeSession, out: Path, collection: str = "c", writer_of: Any = model_writer
    ) -> list[Example]:
        options = {"out": out, "collection": collection, "contexts": 2, "seed": 0}
        served = TrainedModel(IngestionConfig(str(DEMO_MODEL), 96), num_chunks=2, num_questions=2)
        of_session: Any = session
        return collection_examples(of_session, options, served, lambda done, of: None, writer_of)

    def test_what_is_trained_on_are_the_collections_documents_and_questions_about_them(
        self, tmp_path: Path
    ) -> None:
        session = FakeSession(manifest("a", 4), manifest("b", 4))
        made = self.examples(session, tmp_path / "out", writer_of=fake_writer)
        assert len(made) == 2
        for example in made:
            texts = [chunk.text for document in example.documents for chunk in document.chunks]
            assert example.questions
            assert all(any(words(text) in question for text in texts) for question in example.questions)
        again = self.examples(FakeSession(), tmp_path / "out", writer_of=fake_writer)
        assert again == made, "neither the system nor the model is asked once more"
        with pytest.raises(
            InvalidRequest, match=r"collection.jsonl was made of 'c', not of 'd'; name another"
        ):
            self.examples(FakeSession(), tmp_path / "out", "d")
        served = TrainedModel(IngestionConfig(str(DEMO_MODEL), 96, KvContext.DOCUMENT), num_chunks=2)
        assert len(served.contexts(made, served.prompts(), seed=0)) == 2

    def test_a_collection_without_documents_is_not_found(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match="--collection: 'd' has no documents; run `kvquilt ingest"):
            self.examples(FakeSession(manifest("a", 4)), tmp_path, "d")

    def test_nothing_is_kept_without_questions(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="no questions can be generated"):
            self.examples(FakeSession(manifest("a", 4)), tmp_path)
        assert not list(tmp_path.iterdir())

    def test_what_was_made_once_stays(self, tmp_path: Path) -> None:
        made = [Example("x", (ExampleDocument("Lease", CHUNK),), ("Who?",))]
        write_examples(tmp_path / "collection.jsonl", made)
        assert self.examples(FakeSession(), tmp_path)[0].documents == made[0].documents
