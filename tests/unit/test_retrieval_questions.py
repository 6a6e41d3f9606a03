"""Questions of the retrieval benchmark: what is held out, what is not indexed, how ranks are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from load_tests.reading.articles import Article, ReadingQuestion
from load_tests.retrieval.bench import measure_ranks, measure_refusals, ranks
from load_tests.retrieval.passages import (
    KINDS,
    STATED,
    WRITTEN,
    Query,
    QuerySet,
    from_articles,
    from_directory,
    invented,
)
from services.gateway.config import RefusalConfig
from shared.search import IndexedChunk, SearchHit, SearchMode

SEED = 3


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    for i in range(24):
        sentences = [
            f"Sentence {j} of part {i} tells of harbour{i}x{j} and of ships that sail far." for j in range(5)
        ]
        parts = [
            f"## Chapter {i} part {p}\n\n" + " ".join(s.replace("part", f"part{p}") for s in sentences)
            for p in range(2)
        ]
        (tmp_path / f"d{i}.md").write_text(f"# Document {i}\n\n" + "\n\n".join(parts), encoding="utf-8")
    (tmp_path / "copy.md").write_text((tmp_path / "d0.md").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "empty.md").write_text(" ", encoding="utf-8")
    return tmp_path


def _passages(questions: QuerySet) -> dict[str, IndexedChunk]:
    return {chunk.chunk_id: chunk for document in questions.documents for chunk in document.chunks}


def test_what_a_question_was_made_of_is_not_in_its_passage_unless_it_is_to_judge_refusal(
    documents: Path,
) -> None:
    questions = from_directory(documents, 80, SEED)
    passages = _passages(questions)
    asked = [query for query in questions.queries if query.chunk_id]
    assert {query.kind for query in asked} == {*KINDS, STATED}
    for query in asked:
        passage = passages[query.chunk_id]
        names = [word for word in query.text.split() if word.startswith("harbour")]
        if query.kind == STATED:
            assert all(name in passage.text for name in names)
        elif query.kind == "heading":
            assert query.text not in passage.text
            assert query.text not in passage.heading
        else:
            assert not any(name in passage.text for name in names)


def test_documents_that_are_left_out_give_questions_without_a_passage(documents: Path) -> None:
    questions = from_directory(documents, 80, SEED)
    indexed = {document.document_id for document in questions.documents}
    assert 0 < len(indexed) < 24
    assert all(query.chunk_id in _passages(questions) for query in questions.queries if query.chunk_id)
    assert any(not query.chunk_id for query in questions.queries)


def test_equal_documents_and_seeds_give_equal_questions_and_copies_give_none(documents: Path) -> None:
    questions = from_directory(documents, 80, SEED)
    assert from_directory(documents, 80, SEED) == questions
    assert from_directory(documents, 80, SEED + 1) != questions
    texts = [chunk.text for chunk in _passages(questions).values()]
    assert len(set(texts)) == len(texts)


def test_invented_documents_answer_the_questions_about_them() -> None:
    questions = invented(40, SEED)
    assert invented(40, SEED) == questions
    assert len(questions.queries) == 40
    assert {bool(query.chunk_id) for query in questions.queries} == {True, False}
    assert all(q.chunk_id in _passages(questions) for q in questions.queries if q.chunk_id)


def _article(number: int) -> Article:
    paragraphs = [
        f"Mill {number} part {p} " + "grinds grain " * 10 + f"by wheel{number}x{p}." for p in range(3)
    ]
    text = "\n\n".join(paragraphs)
    answers = [f"wheel{number}x{p}" for p in range(3)]
    asked = [ReadingQuestion(f"What drives {a[5:]}?", (a,), (text.index(a),)) for a in answers]
    cut = ReadingQuestion("What is cut?", (text[:200],), (0,))
    return Article("Mills", text, (*asked, cut))


def test_questions_that_people_wrote_have_the_passage_that_holds_their_answer() -> None:
    questions = from_articles([_article(i) for i in range(16)], 40, SEED)
    passages = _passages(questions)
    asked = [query for query in questions.queries if query.chunk_id]
    assert len(questions.queries) == 16 * 3  # that whose answer no passage holds whole is left out
    assert 0 < len(asked) < len(questions.queries)
    assert {query.kind for query in questions.queries} == {WRITTEN}
    for query in asked:
        assert f"wheel{query.text.split()[-1][:-1]}" in passages[query.chunk_id].text
    assert len({chunk_id.partition("#")[0] for chunk_id in passages}) * 3 == len(asked)


def _hits(*names: str, similarity: float = 0.5) -> tuple[SearchHit, ...]:
    return tuple(
        SearchHit(IndexedChunk(name, "text", ()), "d", "", "m", 1.0, similarity=similarity) for name in names
    )


def test_recall_reciprocal_ranks_and_who_finds_more_are_those_of_the_ranks() -> None:
    queries = [Query("sentence", "q", f"d{i}#0") for i in range(4)]
    hybrid = [_hits("d0#0"), _hits("x", "d1#0"), _hits("x", "x", "d2#0"), _hits("x")]
    dense = [_hits("d0#0"), _hits("d1#0"), _hits("x"), _hits("x")]
    assert list(ranks(queries, hybrid)) == [1, 2, 3, np.inf]
    by_mode = {SearchMode.DENSE: dense, SearchMode.BM25: [_hits("x")] * 4, SearchMode.HYBRID: hybrid}
    found = {m.name: m for m in measure_ranks("all", queries, by_mode, 8)}
    assert found["all_recall@8_hybrid"].value == 0.75
    assert found["all_recall@8_hybrid"].baseline == 0.5
    assert found["all_mrr@8_hybrid"].value == pytest.approx((1 + 1 / 2 + 1 / 3) / 4)
    assert found["all_only_hybrid_over_dense"].value == 1
    assert found["all_only_hybrid_over_dense"].baseline == 0
    assert found["all_p_hybrid_vs_dense"].value == 1.0
    low, high = found["all_recall@8_hybrid"].min, found["all_recall@8_hybrid"].max
    assert low is not None
    assert high is not None
    assert low <= 0.75 <= high


def test_refusals_are_counted_with_and_without_evidence() -> None:
    queries = [Query(STATED, "orla", "d0#0"), Query(STATED, "orla", ""), Query(STATED, "orla", "")]
    found = [_hits("d0#0", similarity=1.0), _hits("x", similarity=0.1), _hits("x", similarity=0.8)]
    config = RefusalConfig(lenient=0.3, strict=0.6)
    rates = {m.name: m.value for m in measure_refusals("docs", queries, found, config)}
    assert rates == {
        "docs_refused_without_evidence_lenient": 0.5,
        "docs_refused_with_evidence_lenient": 0.0,
        "docs_refused_without_evidence_strict": 1.0,
        "docs_refused_with_evidence_strict": 1.0,
    }
