"""An operator's own questions: the file, what is a right answer, and what would be retrieved."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.gate.judging import abstains, accepted, supported
from cluster.gate.questions import OwnQuestion, read_questions
from cluster.gate.retrieved import only_collection, retrieve
from shared.errors import InvalidRequest, NotFound
from shared.kv_types import Manifest, ManifestChunk
from shared.request import RequestContext
from shared.search import (
    CollectionInfo,
    ContextOrder,
    Filter,
    IndexedChunk,
    SearchHit,
    SearchMode,
    SearchResult,
)


def file(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_a_line_is_a_question_and_what_is_known_about_its_answer(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        {"question": "Who signs?", "answers": "the manager", "documents": ["a.md"], "id": 7},
        "",
        {"question": "When?", "evidence": ["On Monday."], "feedback": {"rating": 1}},
        {"question": "Why?"},
        {"question": "Where?", "unanswerable": True},
    )
    assert read_questions(path) == [
        OwnQuestion("Who signs?", ("the manager",), documents=("a.md",)),
        OwnQuestion("When?", evidence=("On Monday.",)),
        OwnQuestion("Why?"),
        OwnQuestion("Where?", unanswerable=True),
    ]
    assert [one.kind for one in read_questions(path)] == ["own", "own", "own_unjudged", "own_unanswerable"]


def test_a_text_may_hold_any_character_that_json_allows(tmp_path: Path) -> None:
    """Separators of lines and paragraphs end no line; carriage returns and byte order marks to none."""
    path, asked = tmp_path / "questions.jsonl", ["Who signs\u2028the order\x85?", "When\u2029?"]
    lines = [json.dumps({"question": question}, ensure_ascii=False) for question in asked]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, "["]).encode())
    with pytest.raises(InvalidRequest, match="line 3: is no JSON"):
        read_questions(path)
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert [one.question for one in read_questions(path)] == asked


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: is no JSON"),
        ("[1]", "line 2: expected an object"),
        (10**5 * "[", "line 2: is no JSON (it is nested too deeply)"),
        ({"question": "a\ud83d?"}, "line 2: question: holds half of a surrogate pair"),
        ({"answers": ["a"]}, "line 2: question: expected a text, got None"),
        ({"question": " "}, "line 2: question: expected a text"),
        ({"question": "a?", "answer": ["b"]}, "line 2: answer: unknown field; did you mean 'answers'?"),
        ({"question": "a?", "xyz": 1}, "line 2: xyz: unknown field; known here: question, answers"),
        ({"question": "a?", "answers": [1]}, "line 2: answers: expected texts, got 1"),
        ({"question": "a?", "evidence": {"b": 1}}, "line 2: evidence: expected a list of texts"),
        ({"question": "a?", "unanswerable": "yes"}, "line 2: unanswerable: expected true or false"),
        ({"question": "a?", "unanswerable": True, "answers": ["b"]}, "line 2: unanswerable: is true"),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path: Path, line: object, says: str) -> None:
    path = file(tmp_path, {"question": "Why?"}, line)
    with pytest.raises(InvalidRequest, match=re.escape(says)) as error:
        read_questions(path)
    assert str(path) in error.value.detail


def test_a_file_without_questions_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no question; write a JSON object per line"):
        read_questions(file(tmp_path, "", " "))
    with pytest.raises(InvalidRequest, match="cannot be read as text"):
        read_questions(tmp_path)


def test_an_answer_is_right_by_accepted_texts_by_evidence_or_by_saying_that_nobody_knows() -> None:
    assert accepted("It is the Site  Manager.", ["director", "site manager"])
    assert not accepted("It is the site managers' club.", ["site manager"])
    evidence = ["Orders above 500 need the signature of the site manager."]
    question = "Who signs orders?"
    assert supported("The site manager signs orders.", question, evidence)
    assert not supported("The accountant in Lisbon signs orders.", question, evidence)
    assert not supported("Who signs orders", question, evidence)
    for text in ("The documents do not say.", "I don't know", "That is not mentioned.", "No information."):
        assert abstains(text)
    assert not abstains("The site manager.")
    asked = OwnQuestion(question, evidence=tuple(evidence))
    assert asked.is_right("the site manager")
    assert OwnQuestion(question, unanswerable=True).is_right("This is not stated.")


@dataclass
class Index:
    """A retriever that finds, for each query, the chunks that hold its last word."""

    manifests: Sequence[Manifest]
    asked: list[tuple[tuple[str, ...], tuple[Filter, ...], int]] = field(default_factory=list)

    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int,
        mode: SearchMode,
        filters: Sequence[Filter],
    ) -> SearchResult:
        self.asked.append((tuple(queries), tuple(filters), k))
        allowed = {value for one in filters for value in one.values} or {
            m.document_id for m in self.manifests
        }
        rankings = tuple(
            tuple(
                SearchHit(IndexedChunk(c.chunk_id, c.text, c.token_ids), m.document_id, "", "", 1.0)
                for m in self.manifests
                if m.document_id in allowed
                for c in m.chunks
                if query.split()[-1] in c.text
            )[:k]
            for query in queries
        )
        return SearchResult(rankings, mode)

    async def list_collections(self, ctx: RequestContext) -> list[CollectionInfo]:
        return [CollectionInfo(name, 1) for name in dict.fromkeys(m.collection for m in self.manifests)]

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        return next(m for m in self.manifests if (m.collection, m.document_id) == (collection, document_id))


def document(name: str, *texts: str, collection: str = "c") -> Manifest:
    chunks = tuple(ManifestChunk(f"{name}{i}", (i,), text=text) for i, text in enumerate(texts))
    return Manifest("", collection, name, chunks=chunks)


INDEX = (document("a", "red one", "blue two"), document("b", "red three"))
CTX = RequestContext.create(deadline_ms=60_000)


def test_of_each_question_it_is_known_which_chunks_of_which_documents_it_would_get() -> None:
    index = Index(INDEX)
    questions = [
        OwnQuestion("what is red"),
        OwnQuestion("what is blue"),
        OwnQuestion("what is green"),
        OwnQuestion("what is red", documents=("b",)),
    ]
    found = asyncio.run(retrieve(CTX, index, index, "c", questions, 5))
    hits = {one.number: one.hits for one in found.subjects}
    assert hits == {0: (("a", 0), ("b", 0)), 1: (("a", 1),), 3: (("b", 0),)}
    assert (found.left_out, set(found.documents)) == (1, {"a", "b"})
    assert {one.number: one.texts for one in found.subjects}[1] == ("blue two",)
    assert [one.values for _, filters, _ in index.asked for one in filters] == [("b",)]
    assert {k for *_, k in index.asked} == {5}
    again = asyncio.run(retrieve(CTX, index, index, "c", questions, 5))
    assert (again.subjects, again.digest) == (found.subjects, found.digest)
    assert asyncio.run(retrieve(CTX, index, index, "c", questions[:2], 1)).digest != found.digest


def test_chunks_stand_in_the_order_that_the_gateway_gives_them() -> None:
    index = Index(INDEX)
    found = asyncio.run(
        retrieve(CTX, index, index, "c", [OwnQuestion("what is red")], 5, order=ContextOrder.BEST_LAST)
    )
    assert [one.hits for one in found.subjects] == [(("b", 0), ("a", 0))]
    assert found.subjects[0].texts == ("red three", "red one")


def test_where_nothing_is_found_the_remedy_is_told() -> None:
    index = Index(INDEX)
    with pytest.raises(
        InvalidRequest, match="nothing in collection 'c' was found for any of 1 questions; name"
    ):
        asyncio.run(retrieve(CTX, index, index, "c", [OwnQuestion("what is green")], 5))


def test_the_only_collection_need_not_be_named() -> None:
    assert asyncio.run(only_collection(CTX, Index(INDEX))) == "c"
    with pytest.raises(InvalidRequest, match="name the collection by -c, one of c, d"):
        asyncio.run(only_collection(CTX, Index([*INDEX, document("x", collection="d")])))
    with pytest.raises(NotFound, match="no document is ingested; run `kvquilt ingest"):
        asyncio.run(only_collection(CTX, Index([])))
