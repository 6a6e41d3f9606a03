"""The retrieval benchmark, whole, over few documents and a tiny embedder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from load_tests.retrieval.__main__ import main
from tests.tiny_embedders import write_embedder


def test_the_report_has_every_mode_and_both_kinds_of_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, embedder = tmp_path / "report.json", write_embedder(tmp_path / "embedder")
    documents = tmp_path / "documents"
    documents.mkdir()
    for i in range(8):
        text = " ".join(
            f"The keeper number {j} of house{i} writes down what he sees every day." for j in range(5)
        )
        (documents / f"{i}.md").write_text(f"# House {i}\n\n{text}\n", encoding="utf-8")
    options = ["--documents", documents, "--questions", "12", "--embedder", embedder, "--json", report]
    monkeypatch.setattr("sys.argv", ["load_tests.retrieval", *map(str, options), "--threads", "1"])
    main()
    measured = {m["name"]: m for m in json.loads(report.read_text())["measurements"]}
    for mode in ("dense", "bm25", "hybrid"):
        assert measured[f"all_recall@8_{mode}"]["n"] > 0
        assert measured[f"invented_mrr@8_{mode}"]["unit"] == "fraction"
    assert 0 <= measured["all_p_hybrid_vs_bm25"]["value"] <= 1
    for name in ("invented", "documents"):
        assert 0 <= measured[f"{name}_refused_without_evidence_strict"]["value"] <= 1
    assert "all_recall@8_hybrid" in capsys.readouterr().out


def test_questions_that_people_wrote_are_looked_for_among_their_articles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paragraphs = [
        f"The mill of Velbrin{i} was built by a careful miller in the year {1800 + i}." for i in range(8)
    ]
    data = [
        {
            "title": f"Mill {i}",
            "paragraphs": [
                {
                    "context": text,
                    "qas": [
                        {
                            "question": f"When was the mill of Velbrin{i} built?",
                            "answers": [{"text": str(1800 + i), "answer_start": text.index(str(1800 + i))}],
                        }
                    ],
                }
            ],
        }
        for i, text in enumerate(paragraphs)
    ]
    file, report = tmp_path / "asked.json", tmp_path / "report.json"
    file.write_text(json.dumps({"data": data}), encoding="utf-8")
    options = ["--data", file, "--embedder", write_embedder(tmp_path / "embedder"), "--json", report]
    monkeypatch.setattr("sys.argv", ["load_tests.retrieval", *map(str, options), "--threads", "1"])
    main()
    measured = {m["name"]: m for m in json.loads(report.read_text())["measurements"]}
    assert measured["written_recall@8_bm25"]["value"] == 1.0
    assert "written_refused_with_evidence_strict" in measured
    assert not any(name.startswith(("invented", "all")) for name in measured)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--data", "no.json"], "there is no file no.json"),
        (["--data", "no.json", "--documents", "."], "leave --documents out"),
    ],
)
def test_data_that_cannot_be_used_are_told(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["load_tests.retrieval", *options])
    with pytest.raises(SystemExit, match=told):
        main()


def test_a_directory_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["load_tests.retrieval", "--documents", str(tmp_path / "no")])
    with pytest.raises(SystemExit, match="is not a directory"):
        main()
