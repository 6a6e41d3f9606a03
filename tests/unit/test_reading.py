"""The reading benchmark: files in SQuAD's format, scores, contexts, and a whole run with a tiny model."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.evaluation.arms import CLOSED, FULL, EvalArm, arms_of, parse_contexts, parse_modes
from load_tests.reading.__main__ import main
from load_tests.reading.articles import Article, ReadingQuestion, read_articles
from load_tests.reading.bench import ReadingAnswer
from load_tests.reading.contexts import ArticleCutter, ArticleShape, ReadingContext, draw_contexts
from load_tests.reading.findings import findings
from services.training.recipe import AUXILIARY, PRIMARY
from services.training.trainer import Trainer
from shared.errors import InvalidRequest
from shared.generation.asked import chain_of
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.measuring.agreement import agreement
from shared.measuring.paired import divergence
from shared.measuring.squad import normalized, score

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = ArticleShape(chunk_tokens=24, context_tokens=4096, k=3, per_context=2)
OF = ("", "f" * 32, (1, 2))


class Words:
    """A token per word."""

    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return tuple(1 + hash(word) % 1000 for word in text.split())


def paragraph(number: int) -> dict[str, Any]:
    text = (
        f"The {number}. mill stands in Velbrin{number}. It was built in {1800 + number} by a careful miller."
    )
    asked = {f"Where does mill {number} stand?": f"Velbrin{number}", "When was it built?": str(1800 + number)}
    return {
        "context": text,
        "qas": [
            {"question": question, "id": question, "answers": [{"text": a, "answer_start": text.index(a)}]}
            for question, a in asked.items()
        ],
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    told = [
        {"title": f"Mills_of_{name}", "paragraphs": [paragraph(10 * i + j) for j in range(6)]}
        for i, name in enumerate(("Ost", "West"))
    ]
    path = tmp_path / "mills.json"
    path.write_text(json.dumps({"version": "1.1", "data": told}), encoding="utf-8")
    return path


# --- articles ----------------------------------------------------------------------------------------------


def test_answers_stand_in_the_article_where_they_are_said_to(data: Path) -> None:
    articles = read_articles(data)
    assert [article.title for article in articles] == ["Mills of Ost", "Mills of West"]
    for article in articles:
        assert len(article.questions) == 12
        for question in article.questions:
            for start, answer in zip(question.starts, question.answers, strict=True):
                assert article.text[start : start + len(answer)] == answer


def test_questions_that_the_text_does_not_answer_are_left_out_and_titles_may_be_missing(
    tmp_path: Path,
) -> None:
    impossible = {"question": "Why?", "answers": [], "is_impossible": True}
    one = paragraph(1)
    one["qas"].append(impossible)
    (tmp_path / "x.json").write_text(json.dumps({"data": [{"title": None, "paragraphs": [one]}]}))
    (article,) = read_articles(tmp_path / "x.json")
    assert article.title == ""
    assert len(article.questions) == 2


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (None, "there is no file"),
        ("[]", "is not in SQuAD's format"),
        ("{", "is not in SQuAD's format"),
        ('{"data": [{"title": "x"}]}', "is not in SQuAD's format.*paragraphs"),
        ('{"data": []}', "holds no question"),
    ],
)
def test_a_file_of_another_format_is_told(tmp_path: Path, written: str | None, says: str) -> None:
    path = tmp_path / "x.json"
    if written is not None:
        path.write_text(written, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=f"--data: .*{says}"):
        read_articles(path)


# --- scores ------------------------------------------------------------------------------------------------


def test_answers_are_normalised_as_squad_does() -> None:
    assert normalized("The  Quick, (brown) fox's an idea!") == "quick brown foxs idea"


@pytest.mark.parametrize(
    ("text", "expected", "exact", "contains", "f1"),
    [
        ("The Denver Broncos.", ["Denver Broncos"], True, True, 1.0),
        ("It was the Denver Broncos", ["Broncos", "Denver Broncos"], False, True, 2 / 3),
        ("13080 people", ["308"], False, False, 0.0),
        ("", ["308"], False, False, 0.0),
        ("the", ["a"], True, False, 1.0),
    ],
)
def test_a_score_is_that_of_the_answer_that_fits_best(
    text: str, expected: list[str], exact: bool, contains: bool, f1: float
) -> None:
    found = score(text, expected)
    assert (found.exact, found.contains) == (exact, contains)
    assert found.f1 == pytest.approx(f1)


def test_the_divergence_is_that_of_the_whole_distributions_where_nothing_is_left_out() -> None:
    rng = np.random.default_rng(0)
    p_V, q_V = rng.dirichlet(np.ones(8), 2)
    logs = [{i: math.log(value) for i, value in enumerate(values)} for values in (p_V, q_V)]
    assert divergence(*logs) == pytest.approx(float((p_V * np.log(p_V / q_V)).sum()))
    assert divergence(logs[0], logs[0]) == 0
    few = {i: logs[0][i] for i in range(4)}
    assert 0 < divergence(few, logs[1]) < divergence(*logs)


# --- contexts ----------------------------------------------------------------------------------------------


def drawn(data: Path, shape: ArticleShape = SHAPE) -> tuple[list[Article], list[ReadingContext]]:
    articles = read_articles(data)
    cutter = ArticleCutter(Words(), shape, OF)
    cut = {i: cutter.cut(article) for i, article in enumerate(articles)}
    return articles, list(draw_contexts(articles, cut, shape, seed=3))


def test_every_question_is_asked_once_over_chunks_of_its_article_one_of_which_answers_it(data: Path) -> None:
    articles, contexts = drawn(data)
    cutter = ArticleCutter(Words(), SHAPE, OF)
    asked = []
    for context in contexts:
        article = articles[context.article]
        cut = cutter.cut(article)
        assert len(set(context.chunks)) == len(context.chunks) == min(SHAPE.k, len(cut))
        assert 1 <= len(context.questions) <= SHAPE.per_context
        for question in context.questions:
            assert question in article.questions
            assert any(question.answers[0] in cut[i].text for i in context.chunks)
            asked.append((context.article, question))
    assert len(set(asked)) == len(asked) == sum(len(article.questions) for article in articles)
    assert [context.article for context in contexts[:2]] in ([0, 1], [1, 0])
    assert any(list(context.chunks) != sorted(context.chunks) for context in contexts)


def test_contexts_are_a_function_of_the_seed(data: Path) -> None:
    assert drawn(data)[1] == drawn(data)[1]


def test_a_question_whose_answer_is_cut_apart_is_not_asked() -> None:
    text = "One. " * 40
    article = Article("", text, (ReadingQuestion("All?", (text.strip(),), (0,)),))
    cut = {0: ArticleCutter(Words(), SHAPE, OF).cut(article)}
    assert len(cut[0]) > 1
    assert not list(draw_contexts([article], cut, SHAPE, 0))


def test_the_same_chunks_stand_behind_their_document_their_header_or_nothing(data: Path) -> None:
    article = read_articles(data)[0]
    cutter = ArticleCutter(Words(), SHAPE, OF)
    cut = cutter.cut(article)
    for context in KvContext:
        chunks, headers = cutter.chained(article, cut, context)
        assert [chunk.token_ids for chunk in chunks] == [chunk.token_ids for chunk in cut]
        chains = [chain_of(chunk, (*headers, *chunks)) for chunk in chunks]
        depths = [-1 if chain is None else len(chain) for chain in chains]
        assert (
            depths
            == {
                KvContext.NONE: [0] * len(cut),
                KvContext.HEADER: [1] * len(cut),
                KvContext.DOCUMENT: [*range(1, len(cut) + 1)],
            }[context]
        )
        assert {chunk.isolated_id for chunk in chunks} == {cutter.isolated(chunk).chunk_id for chunk in cut}


# --- arms and findings -------------------------------------------------------------------------------------


def test_arms_are_named_by_mode_ratio_and_context() -> None:
    modes, contexts = parse_modes("reordered, query_attention"), parse_contexts("none,document")
    assert [arm.label for arm in arms_of(modes, contexts, (0.2,))] == [
        CLOSED,
        "full",
        "reordered none",
        "query_attention 20% none",
        "reordered document",
        "query_attention 20% document",
    ]
    with pytest.raises(InvalidRequest, match="--modes: 'full' is not one of reordered"):
        parse_modes("full")
    with pytest.raises(InvalidRequest, match="--kv-context: 'title' is not one of document, header, none"):
        parse_contexts("title")


def answered(arm: EvalArm, number: int, found: bool, kl: float = 0.0) -> ReadingAnswer:
    return ReadingAnswer(
        arm.label, number, 0, number % 3, "?", str(found), found, found, float(found), kl, 100, 0.5
    )


def test_a_row_is_compared_with_full_and_with_the_same_mode_over_isolated_chunks() -> None:
    arms = [FULL, *(EvalArm(ReuseMode.REORDERED, c) for c in (KvContext.NONE, KvContext.DOCUMENT))]
    rights = {"full": 8, "reordered none": 4, "reordered document": 6}
    answers = [answered(arm, n, n < rights[arm.label], 0.1) for arm in arms for n in range(10)]
    found = findings([*answers, answered(FULL, 10, True)], arms)
    assert found is not None
    assert (found.num_questions, found.num_contexts, found.num_articles) == (10, 10, 3)
    rows = {row.arm: row for row in found.rows}
    assert rows["full"].contains.value == pytest.approx(0.8)
    assert rows["reordered none"].against_full.value == pytest.approx(-0.4)
    assert rows["reordered none"].against_isolated is None
    isolated = rows["reordered document"].against_isolated
    assert isolated is not None
    assert isolated.value == pytest.approx(0.2)
    assert rows["reordered document"].same == pytest.approx(0.8)
    assert rows["reordered document"].kl.value == pytest.approx(0.1)


def test_there_are_no_findings_before_a_context_was_asked_in_every_mode() -> None:
    assert findings([answered(FULL, 0, True)], [FULL, EvalArm(None)]) is None


# --- a whole run -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Random weights: options that name a primary and an auxiliary model."""
    directory = tmp_path_factory.mktemp("models")
    tiny = {"steps": 1, "tokenizer_documents": 40, "hidden_size": 32, "intermediate_size": 48}
    heads = {"vocab_size": 500, "num_layers": 3, "num_heads": 2, "num_kv_heads": 2}
    for name, recipe in (("model", PRIMARY), ("auxiliary", AUXILIARY)):
        Trainer(dataclasses.replace(recipe, **tiny, **heads), directory / name).save()
    return ["--model", str(directory / "model"), "--auxiliary", str(directory / "auxiliary")]


def test_a_run_asks_in_every_arm_and_a_second_one_asks_nothing(
    tmp_path: Path, data: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kept, report = tmp_path / "answers.jsonl", tmp_path / "report.json"
    command = ["--data", str(data), *models, "--questions", "6", "--per-context", "2", "--k", "3"]
    command += ["--modes", "reordered,query_attention,cacheclip", "--chunk-tokens", "64", "--max-tokens", "4"]
    command += ["--answers", str(kept), "--json", str(report)]
    assert main(command) == 0
    assert "6 questions about 3 contexts of 2 articles" in capsys.readouterr().out
    of_first_run = kept.read_bytes()
    assert main(command) == 0
    assert kept.read_bytes() == of_first_run

    answers = [
        ReadingAnswer(**one) for line in of_first_run.decode().splitlines()[1:] for one in json.loads(line)
    ]
    modes = list(dict.fromkeys(answer.mode for answer in answers))
    assert modes == [
        arm.label
        for arm in arms_of(
            parse_modes(command[command.index("--modes") + 1]), tuple(reversed(KvContext)), (0.2,)
        )
    ]
    for answer in answers:
        assert answer.kl == 0 if answer.mode == "full" else answer.kl >= 0
        assert (answer.num_tokens == 0) == (answer.mode == CLOSED)
        assert answer.ttft_s > 0
    told = {m["name"]: m for m in json.loads(report.read_text())["measurements"]}
    assert {"contains_full", "f1_reordered_document", "kl_cacheclip_20_none", "ttft_closed_book"} <= set(told)
    assert main([*command[:-2], "--seed", "1"]) == 2
    assert "holds answers with seed 0, not 1" in capsys.readouterr().err


def test_cacheclip_needs_an_auxiliary_model(
    data: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(data), *models[:2], "--modes", "cacheclip"]) == 2
    assert "needs an auxiliary model" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("ours", "theirs", "alike"),
    [
        ("It was built in 1425.", "it was built in 1425", 1.0),
        ("The bridge was built in 1425.", "1425", 2 / 3),  # but for "in"
        ("1111", "1425", 0.0),
        ("The bridge was built.", "bridge", 1.0),  # neither says anything
        ("The bridge was built.", "1425", 0.0),
        ("", "", 1.0),
    ],
)
def test_answers_agree_by_the_words_that_the_question_does_not_have(
    ours: str, theirs: str, alike: float
) -> None:
    assert agreement("When was the bridge built?", ours, theirs) == pytest.approx(alike)
