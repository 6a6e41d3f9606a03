"""`kvquilt train auxiliary`: what it is fed with, what it tells in the end, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from cluster.cli.main import main
from cluster.paths import DEMO_MODEL
from cluster.training.examples import invented_examples
from services.training.names import Split
from shared.selection.auxiliary import load_auxiliary

QUICK = [
    *("--model", "demo", "--kv-context", "none", "--updates", "2", "--contexts-per-update", "2"),
    *("--questions", "4", "--chunks", "4", "--pair-windows", "2", "--answer-tokens", "16"),
]


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def auxiliary(*args: object) -> Result:
    return CliRunner().invoke(main, ["train", "auxiliary", *map(str, args)], catch_exceptions=False)


def test_trains_and_compares_its_choice(tmp_path: Path) -> None:
    out = tmp_path / "aux"
    first = auxiliary(*QUICK, "--invented", 2, "--judge", 1, "--ratios", "0.1,0.3", "--out", out)
    assert first.exit_code == 0, first.output
    assert "update 2/2  loss " in first.output
    assert "30 % of the tokens" in first.output
    for choice in ("stored", "random", "untuned", "tuned", "attention", "ceiling"):
        assert f"\n{choice} " in first.output
    assert f"selector.model: {out}" in first.output.replace("\n", "")
    weights = (out / "model.safetensors").read_bytes()
    assert weights != (DEMO_MODEL / "auxiliary" / "model.safetensors").read_bytes()
    load_auxiliary(str(out))
    again = auxiliary(*QUICK, "--invented", 2, "--judge", 0, "--out", out)
    assert again.exit_code == 0, again.output
    assert "goes on at update 2 of 2" in again.output
    assert (out / "model.safetensors").read_bytes() == weights


def test_trains_on_a_file_beside_another_one(tmp_path: Path) -> None:
    data = tmp_path / "qa.jsonl"
    lines = [
        {"documents": [{"title": d.title, "text": d.text} for d in e.documents], "questions": e.questions[:4]}
        for e in invented_examples(1, 3, apart=1.0)
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    other = DEMO_MODEL / "auxiliary"
    given = ("--data", data, "--target", "attention", "--beside", other, "--out", tmp_path / "aux")
    done = auxiliary(*QUICK, *given)
    assert done.exit_code == 0, done.output
    assert "20 % of the tokens, 4 questions" in done.output


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "--data: name a file, or say --invented N"),
        (("--invented", 2, "--answer-tokens", 1), "of 16 questions teach something, in 0 contexts"),
        (("--invented", 3, "--pair-windows", -1), "pair_windows: must be at least 0"),
        (("--invented", 3, "--ratios", "2"), "--ratios: '2' is not a share of the tokens"),
        (("--invented", 3, "--auxiliary", "/nowhere"), "/nowhere"),
        (("--invented", 2, "--judge", 1, "--beside", DEMO_MODEL), "has another tokenizer than"),
    ],
)
def test_tells_what_is_wrong_in_a_line(args: tuple[object, ...], told: str, tmp_path: Path) -> None:
    refused = auxiliary(*QUICK, *args, "--out", tmp_path / "aux")
    assert refused.exit_code == 2, refused.output
    assert told in refused.output.replace("\n", " ")


def test_judged_examples_have_names_of_their_own() -> None:
    seen, unseen = (list(invented_examples(0, 6, split, 1.0)) for split in Split)
    assert not {d.text for e in seen for d in e.documents} & {d.text for e in unseen for d in e.documents}
    assert all("" in [document.title for document in example.documents] for example in unseen)
