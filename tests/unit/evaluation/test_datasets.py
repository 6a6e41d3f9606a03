"""Published files: small ones of our own in their formats become cases; others are told by line and field."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.evaluation.cases import EvalTask
from cluster.evaluation.datasets.ctxs import ctxs_tasks
from cluster.evaluation.datasets.longbench import longbench_tasks, passages_of
from cluster.evaluation.datasets.regression import gsm8k_tasks, mmlu_tasks, triviaqa_tasks
from cluster.evaluation.datasets.rgb import rgb_tasks
from cluster.evaluation.datasets.wanted import WantedCases, parse_noise
from cluster.evaluation.metrics import Metric
from shared.errors import InvalidRequest

Read = Callable[[Path, WantedCases], list[EvalTask]]
WANTED = WantedCases(100, noise=(0.0, 0.4, 0.8))
PLAIN = {
    "id": 7,
    "query": "When was the mill of Ost built?",
    "answer": [["1801", "in 1801"]],
    "positive": [f"The mill of Ost was built in 1801 ({i})." for i in range(6)],
    "negative": [f"The mill of West was built in 18{10 + i}." for i in range(6)],
}
INTEGRATION = {
    "id": 1,
    "query": "When were the mills of Ost and West built?",
    "answer": ["1801", ["1802", "in 1802"]],
    "asnwer1": ["1801"],
    "answer2": ["1802"],
    "positive": [["Ost: 1801.", "Ost, 1801."], ["West: 1802.", "West, 1802.", "In West: 1802."]],
    "negative": [f"South: {i}." for i in range(6)],
}
COUNTERFACTUAL = {
    **PLAIN,
    "id": 3,
    "answer": "1801",
    "fakeanswer": "1901",
    "positive_wrong": [f"The mill of Ost was built in 1901 ({i})." for i in range(3)],
}
LONGBENCH = {
    "input": "Who built the mill?",
    "context": "Passage 1:\nOst\nThe mill was built by Tilo.\n\nPassage 2:\nWest\nNothing was built.\n",
    "answers": ["Tilo", "Tilo Ost"],
    "length": 12,
    "dataset": "musique",
    "language": "en",
    "all_classes": None,
    "_id": "abc",
}
CTXS = {
    "question": "Who built it?",
    "answers": ["Tilo"],
    "ctxs": [{"title": "Ost", "text": "Tilo built it."}, {"title": "", "text": "Nobody did."}],
}


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in records), encoding="utf-8")
    return path


def texts(task: EvalTask, case: int = 0) -> list[str]:
    return [document.text for document in task.cases[case].documents]


# --- RGB ----------------------------------------------------------------------------------------------------


def test_rgbs_plain_part_is_asked_with_noise_and_with_noise_alone(tmp_path: Path) -> None:
    tasks = rgb_tasks(lines(tmp_path / "en.json", PLAIN), WANTED)
    assert [task.name for task in tasks] == [
        "rgb_en_noise_0",
        "rgb_en_noise_0.4",
        "rgb_en_noise_0.8",
        "rgb_en_rejection",
    ]
    for task, num_good in zip(tasks, (5, 3, 1, 0), strict=True):
        (case,) = task.cases
        assert (case.name, case.references) == ("7", (("1801", "in 1801"),))
        good = [i for i, text in enumerate(texts(task)) if "of Ost" in text]
        assert len(good) == num_good
        assert list(case.evidence) == good
        assert len(case.documents) == 5
    assert [task.metric for task in tasks] == [*[Metric.ALL_TOLD] * 3, Metric.REJECTION]
    assert [task.grounded for task in tasks] == [True, True, True, False]
    assert "insufficient information" in tasks[-1].cases[0].question
    assert tasks[0].cases[0].question == PLAIN["query"]


def test_what_rgb_has_too_little_of_is_made_up_by_the_other(tmp_path: Path) -> None:
    few = {**PLAIN, "positive": ["The mill of Ost was built in 1801."]}
    (task, *_) = rgb_tasks(lines(tmp_path / "en.json", few), WANTED)
    assert sum("of Ost" in text for text in texts(task)) == 1
    assert len(texts(task)) == 5
    (*_, noisy) = rgb_tasks(lines(tmp_path / "x.json", {**PLAIN, "negative": []}), WANTED)[:3]
    assert sum("of Ost" in text for text in texts(noisy)) == 5


def test_rgbs_integration_has_a_passage_for_each_part_of_the_answer(tmp_path: Path) -> None:
    tasks = rgb_tasks(lines(tmp_path / "en_int.json", INTEGRATION), WANTED)
    assert [task.name for task in tasks] == [
        f"rgb_en_int_integration_noise_{noise}" for noise in ("0", "0.4", "0.8")
    ]
    for task, num_good in zip(tasks, (5, 3, 2), strict=True):
        told = texts(task)
        assert any("Ost" in text for text in told)
        assert any("West" in text for text in told)
        assert sum("South" not in text for text in told) == num_good
        assert len(told) == 5
        assert task.cases[0].references == (("1801",), ("1802", "in 1802"))


def test_rgbs_counterfactual_part_gives_wrong_passages(tmp_path: Path) -> None:
    tasks = rgb_tasks(lines(tmp_path / "en_fact.json", COUNTERFACTUAL), WANTED)
    assert {task.name: task.metric for task in tasks} == {
        "rgb_en_fact_counterfactual": Metric.ALL_TOLD,
        "rgb_en_fact_error_detection": Metric.ERROR_TOLD,
    }
    for task in tasks:
        assert sum("1901" in text for text in texts(task)) == 3
        assert not any("1801" in text for text in texts(task))
        assert task.cases[0].references == (("1801",),)
        assert "factual errors" in task.cases[0].question


def test_chinese_questions_are_instructed_in_chinese(tmp_path: Path) -> None:
    chinese = {**PLAIN, "query": "磨坊何时建成？", "answer": ["1801年"]}
    *_, rejection = rgb_tasks(lines(tmp_path / "zh.json", chinese), WANTED)
    assert rejection.cases[0].question.startswith("如果文档")


# --- LongBench, ctxs ----------------------------------------------------------------------------------------


def test_longbenchs_contexts_are_parted_into_passages(tmp_path: Path) -> None:
    other = {
        **LONGBENCH,
        "dataset": "dureader",
        "_id": "d",
        "context": "文章1\n标题：甲\n甲是人。\n文章2\n标题：乙\n乙也是。",
    }
    tasks = longbench_tasks(lines(tmp_path / "x.jsonl", LONGBENCH, other), WANTED)
    assert [(task.name, task.metric, task.max_tokens) for task in tasks] == [
        ("longbench_musique", Metric.F1, 32),
        ("longbench_dureader", Metric.ROUGE_L_ZH, 128),
    ]
    case = tasks[0].cases[0]
    assert (case.name, case.question, case.references) == (
        "abc",
        "Who built the mill?",
        (("Tilo", "Tilo Ost"),),
    )
    assert [(d.title, d.text) for d in case.documents] == [
        ("Ost", "Ost\nThe mill was built by Tilo."),
        ("West", "West\nNothing was built."),
    ]
    assert [document.title for document in tasks[1].cases[0].documents] == ["甲", "乙"]
    assert [document.text for document in passages_of("One text, Passage 1: is no border.")] == [
        "One text, Passage 1: is no border."
    ]


def test_ctxs_are_read_as_cacheblend_and_as_nq_open_write_them(tmp_path: Path) -> None:
    blend = tmp_path / "musique_s.json"
    blend.write_text(json.dumps([CTXS, CTXS], indent=2), encoding="utf-8")
    (task,) = ctxs_tasks(blend, WANTED)
    assert (task.name, task.metric, len(task.cases)) == ("musique_s", Metric.F1, 2)
    assert [document.title for document in task.cases[0].documents] == ["Ost", ""]
    gold = {
        **CTXS,
        "ctxs": [{**one, "isgold": i == 1, "hasanswer": True} for i, one in enumerate(CTXS["ctxs"])],
    }
    packed = tmp_path / "nq-open-10_total_documents_gold_at_4.jsonl.gz"
    packed.write_bytes(gzip.compress(f"{json.dumps(gold)}\n".encode()))
    (task,) = ctxs_tasks(packed, WANTED)
    assert (task.name, task.metric) == ("nq-open-10_total_documents_gold_at_4", Metric.SUBSPAN)
    assert task.cases[0].evidence == (1,)


# --- regression ---------------------------------------------------------------------------------------------


def test_questions_without_documents_are_read(tmp_path: Path) -> None:
    sheet = tmp_path / "anatomy_test.csv"
    sheet.write_text('"Which, of these, is one?",2,1,"a, b",3,B\nWhich is two?,2,1,0,3,A\n', encoding="utf-8")
    (mmlu,) = mmlu_tasks(sheet, WANTED)
    assert (mmlu.name, mmlu.metric, mmlu.grounded) == ("mmlu_anatomy", Metric.CHOICE, False)
    assert {case.references for case in mmlu.cases} == {(("A",),), (("B",),)}
    first = next(case for case in mmlu.cases if case.name == "line 1")
    assert "Which, of these, is one?\nA. 2\nB. 1\nC. a, b\nD. 3\n" in first.question
    trivia = {
        "Data": [
            {"Question": "Who?", "QuestionId": "q", "Answer": {"Value": "Tilo", "Aliases": ["T.", "Tilo"]}}
        ]
    }
    asked = tmp_path / "web-dev.json"
    asked.write_text(json.dumps(trivia, indent=1), encoding="utf-8")
    (task,) = triviaqa_tasks(asked, WANTED)
    assert task.cases[0].references == (("Tilo", "T."),)
    (sums,) = gsm8k_tasks(
        lines(tmp_path / "test.jsonl", {"question": "1+1?", "answer": "1+1=2\n#### 1,002"}), WANTED
    )
    assert (sums.metric, sums.cases[0].references) == (Metric.NUMBER, (("1,002",),))
    assert not any(case.documents for case in (*mmlu.cases, *task.cases, *sums.cases))


# --- which cases --------------------------------------------------------------------------------------------


def test_fewer_cases_are_among_more_and_the_seed_draws_them(tmp_path: Path) -> None:
    path = lines(tmp_path / "x.json", *({**CTXS, "question": f"{i}?"} for i in range(20)))

    def asked(cases: int, seed: int = 0) -> list[str]:
        (task,) = ctxs_tasks(path, WantedCases(cases, seed))
        return [case.question for case in task.cases]

    assert len(asked(50)) == 20
    assert asked(5) == asked(9)[:5]
    assert asked(5) != asked(5, seed=1)


def test_metric_and_length_of_answers_can_be_others(tmp_path: Path) -> None:
    wanted = WantedCases(5, max_tokens=7, metric=Metric.EXACT)
    (task,) = ctxs_tasks(lines(tmp_path / "x.json", CTXS), wanted)
    assert (task.metric, task.max_tokens) == (Metric.EXACT, 7)


def test_noise_is_shares_of_the_passages() -> None:
    assert parse_noise("0, 0.2,0.2,1") == (0.0, 0.2, 1.0)
    for wrong in ("2", "-1", "x", "nan"):
        with pytest.raises(InvalidRequest, match=f"--noise: '{wrong}' is not a share of the passages"):
            parse_noise(wrong)


def test_records_that_share_an_id_are_cases_of_their_own(tmp_path: Path) -> None:
    for task in rgb_tasks(lines(tmp_path / "en.json", PLAIN, {**PLAIN, "query": "And when?"}), WANTED):
        assert {case.name for case in task.cases} == {"7", "7, line 2"}
    (task,) = longbench_tasks(lines(tmp_path / "x.jsonl", LONGBENCH, LONGBENCH), WANTED)
    assert {case.name for case in task.cases} == {"abc", "abc, line 2"}


def test_empty_texts_are_no_references(tmp_path: Path) -> None:
    (task,) = ctxs_tasks(lines(tmp_path / "x.json", {**CTXS, "answers": ["", "Tilo"]}), WANTED)
    assert task.cases[0].references == (("Tilo",),)
    asked = {"Question": "Who?", "Answer": {"Value": "Tilo", "Aliases": ["", "T."]}}
    (task,) = triviaqa_tasks(lines(tmp_path / "web.json", asked), WANTED)
    assert task.cases[0].references == (("Tilo", "T."),)


# --- other formats ------------------------------------------------------------------------------------------


def without(record: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in fields}


@pytest.mark.parametrize(
    ("read", "records", "says"),
    [
        (rgb_tasks, [PLAIN, without(PLAIN, "query")], r"line 2: query: is missing; RGB holds id, query"),
        (rgb_tasks, [{**PLAIN, "answer": 7}], r"line 1: answer: must be text or a list, got 7"),
        (rgb_tasks, [{**PLAIN, "positive": [1]}], r"line 1: positive: must be a list of texts, got \[1\]"),
        (rgb_tasks, [{**INTEGRATION, "answer": [[]]}], r"line 1: answer: must hold texts, or lists"),
        (rgb_tasks, [CTXS], r"line 1: positive: is missing"),
        (longbench_tasks, [CTXS], r"line 1: dataset: is missing; LongBench holds input, context"),
        (longbench_tasks, [{**LONGBENCH, "dataset": "lcc"}], r"line 1: dataset: 'lcc' is not one of musique"),
        (longbench_tasks, [{**LONGBENCH, "context": "  "}], r"line 1: context: must be text, got "),
        (ctxs_tasks, [CTXS, LONGBENCH], r"line 2: ctxs: is missing; a file of ctxs holds question"),
        (ctxs_tasks, [{**CTXS, "ctxs": [{"title": "x"}]}], r"line 1, ctxs\[0\]: text: is missing"),
        (ctxs_tasks, [{**CTXS, "ctxs": ["x"]}], r"line 1: ctxs: must be a list of objects"),
        (ctxs_tasks, [{**CTXS, "ctxs": []}], r"line 1: ctxs: is empty"),
        (ctxs_tasks, [7], r"line 1: is no object, but 7"),
        (gsm8k_tasks, [{"question": "?", "answer": "2"}], r"line 1: answer: does not end with “#### NUMBER”"),
        (
            gsm8k_tasks,
            [{"question": "?", "answer": "#### --2"}],
            r"line 1: answer: does not end with “#### NU",
        ),
        (triviaqa_tasks, [{"Question": "?", "Answer": "x"}], r'line 1: Answer: must be an object, got "x"'),
        (
            rgb_tasks,
            [{**PLAIN, "answer": [["", " "]]}],
            r'line 1: answer: must hold text, got \[\["", " "\]\]',
        ),
        (ctxs_tasks, [{**CTXS, "answers": [""]}], r'line 1: answers: must hold text, got \[""\]'),
    ],
)
def test_a_record_of_another_format_is_told_by_line_and_field(
    tmp_path: Path, read: Read, records: Sequence[Any], says: str
) -> None:
    path = lines(tmp_path / "x.json", *records)
    with pytest.raises(InvalidRequest, match=rf"--data: .*x\.json, {says}") as refused:
        read(path, WANTED)
    assert "Give such a file, or another --suite" in refused.value.detail


@pytest.mark.parametrize(
    ("read", "written", "says"),
    [
        (ctxs_tasks, b'{"question": ', "line 1: is no JSON"),
        (ctxs_tasks, b'{"question": "\\ud83d"}', "line 1: question: holds half of a surrogate pair"),
        (ctxs_tasks, b'{"x": [{"y": "\\udc00"}]}', "line 1: x: holds half of a surrogate pair"),
        (ctxs_tasks, b'{"question": ' + 10**5 * b"[", r"line 1: is no JSON \(it is nested too deeply\)"),
        (ctxs_tasks, 10**5 * b"[", r"line 1: is no JSON \(it is nested too deeply\)"),
        (ctxs_tasks, gzip.compress(b"{}", mtime=0)[:10] + 20 * b"x", "cannot be read"),
        (ctxs_tasks, b"", "line 1: the file is empty"),
        (ctxs_tasks, b'[{"question": "?"}]', "item 1: ctxs: is missing"),
        (ctxs_tasks, b"\xff\xfe\x00", "cannot be read"),
        (mmlu_tasks, b"a,b,c\n", "line 1: has 3 columns, not 6; MMLU holds rows"),
        (mmlu_tasks, b"q,1,2,3,4,A\nq,1,2,3,4,E\n", "line 2: column 6: must be A, B, C or D, got 'E'"),
        (mmlu_tasks, b"", "line 1: the file is empty"),
        (triviaqa_tasks, b'{\n"Data": 3}', "line 1: Data: must be a list"),
    ],
)
def test_a_file_of_another_kind_is_told(tmp_path: Path, read: Read, written: bytes, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(written)
    with pytest.raises(InvalidRequest, match=rf"--data: .*x\.json.*{says}"):
        read(path, WANTED)
    with pytest.raises(InvalidRequest, match="--data: there is no file"):
        read(tmp_path / "none.json", WANTED)
