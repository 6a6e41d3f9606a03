"""Numbers of a rate, the report on disk, the page, the comparison, the terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from load_tests.service.command import main
from load_tests.service.compare import changes, differences
from load_tests.service.loads import QuestionPlan, TokenPlan
from load_tests.service.outcome import BothWays, Outcome, Unloaded, read_outcome, write_outcome
from load_tests.service.page import write_page
from load_tests.service.quality import agreement
from load_tests.service.result import Count, RateResult, Tokens, rate_result
from load_tests.service.sample import Sample
from load_tests.service.setting import LIBRARY_ROUNDS, Setting, library_tpot_ms
from load_tests.service.terminal import show
from shared.errors import InvalidRequest
from shared.generation.selection import SelectionTimings
from shared.measuring.shapes import SHAPES, Shape
from shared.measuring.svg import Axis
from tests.unit.service_load.simulated import sample

LIMITS = {"ttft": 100.0}


def result(reuse: str, rate: float, good: int, bad: int, *more: Sample) -> RateResult:
    """Requests one second apart, warm-up aside."""
    samples = [sample(i, 50.0 if i < good else 200.0, intended_s=float(i)) for i in range(good + bad)]
    num_planned = good + bad + len(more)
    return rate_result(
        reuse, rate, [*samples, *more], LIMITS, Count(num_planned, 0, max_bad=num_planned // 10)
    )


def chosen(one: Sample, selecting: SelectionTimings) -> Sample:
    """Whose tokens a selector chose in 0.2 s, a quarter of which the request waited."""
    assert one.reply is not None
    timings = replace(one.reply.timings, select_s=0.2, select_wait_s=0.05)
    return replace(one, reply=replace(one.reply, timings=timings, selecting=selecting))


def outcome(factor: float = 1.0) -> Outcome:
    return Outcome(
        target="127.0.0.1:9000",
        level="generate",
        load={"k": "8"},
        slo="ttft:2x",
        slo_fraction=0.9,
        limits_ms=LIMITS,
        unloaded=(
            Unloaded("full", (50.0, 52.0, 48.0), (10.0,), (80.0,), (9.0, 9.5, 8.0)),
            Unloaded(
                "reordered", (10.0 * factor, 11.0 * factor), (10.0,), (40.0,), (5.0 * factor, 6.0 * factor)
            ),
        ),
        rates=(
            result("full", 1.0, 10, 0),
            result("full", 2.0, 2, 8),
            result("reordered", 4.0 * factor, 40, 1),
            result("reordered", 9.0 * factor, 3, 9, sample(12, status="UNAVAILABLE", intended_s=12.0)),
            result("cacheclip", 4.0, 0, 0, chosen(sample(), SelectionTimings(total_s=0.123, wait_s=0.045))),
        ),
        quality=(agreement("reordered", [sample()], [sample()]),),
        token_overhead_ms=(0.4 * factor, 0.5 * factor, 0.6 * factor),
        both_ways=BothWays("reordered", (20.0, 22.0, 24.0), (21.0, 24.0, 27.0)),
        rate_limits={"full": 2.0, "reordered": 40.0},
        library_tpot_ms=(7.0, 8.0, 9.0),
    )


class TestRateResult:
    def test_only_requests_after_the_warm_up_count(self) -> None:
        samples = [sample(0, 900.0), sample(1, 60.0, intended_s=5.0), sample(2, 150.0, intended_s=6.0)]
        found = rate_result("full", 1.0, samples, LIMITS, Count(3, 1, max_bad=1))
        assert (found.num_requests, found.num_good, found.holds) == (2, 1, True)
        assert found.ttft_ms == (60.0, 150.0)
        assert found.window_s == pytest.approx(1.17)
        assert found.goodput == pytest.approx(1 / 1.17)

    def test_requests_that_were_never_answered_are_not_good(self) -> None:
        found = rate_result(
            "full", 1.0, [sample(0), sample(1)], LIMITS, Count(10, 0, max_bad=9, stopped_early=True)
        )
        assert (found.num_requests, found.num_good, found.holds) == (10, 2, False)

    def test_tokens_are_told_apart_by_where_their_kv_came_from(self) -> None:
        found = rate_result(
            "full", 1.0, [sample(0), sample(1), sample(2, status="INTERNAL")], LIMITS, Count(3, 0, 0)
        )
        assert found.tokens == Tokens(resident=100, loaded=60, computed=40, generated=6)
        assert [found.tokens.share(name) for name in ("resident", "loaded", "computed")] == [0.5, 0.3, 0.2]

    def test_what_a_selector_did_is_told_by_those_for_whom_it_chose(self) -> None:
        samples = [
            chosen(sample(0), SelectionTimings(0.01, 0.0, 0.0, 0.02, 0.04)),
            chosen(sample(1, intended_s=0.88), SelectionTimings(0.03, 0.06, 0.08, 0.02, 0.2)),
            sample(2),
        ]
        found = rate_result("cacheclip", 2.0, samples, LIMITS, Count(3, 0, 0)).selecting
        assert found is not None
        assert (found.per_s, found.busy) == (pytest.approx(2.0), pytest.approx(0.1))
        assert (found.wait_ms, found.total_ms) == ((0.0, 80.0), (40.0, 200.0))
        assert found.stages_ms == {"load_ms": 20.0, "encode_ms": 30.0, "score_ms": 20.0}
        assert found.hidden == pytest.approx(0.75)
        assert rate_result("full", 2.0, samples[2:], LIMITS, Count(1, 0, 0)).selecting is None

    def test_a_rate_at_which_everything_failed_has_no_times(self) -> None:
        found = rate_result(
            "full", 1.0, [sample(i, status="UNAVAILABLE") for i in range(3)], LIMITS, Count(3, 0, 0)
        )
        assert (found.statuses, found.ttft_ms, found.holds) == ({"UNAVAILABLE": 3}, (), False)
        assert found.metric_ms("ttft", 0.5) == 0.0


class TestOutcome:
    def test_goodput_is_that_of_the_highest_rate_that_met_the_slo(self) -> None:
        found = outcome()
        by_name = {m.name: m for m in found.measurements()}
        assert by_name["goodput_full"].value == pytest.approx(found.rates[0].goodput)
        reordered = by_name["goodput_reordered"]
        assert reordered.value == pytest.approx(found.rates[2].goodput)
        assert reordered.baseline == by_name["goodput_full"].value
        assert reordered.ratio == pytest.approx(reordered.value / by_name["goodput_full"].value)
        assert reordered.fraction_of_limit == pytest.approx(reordered.value / 40)

    def test_overheads_are_those_of_the_quickest_mode(self) -> None:
        by_name = {m.name: m for m in outcome().measurements()}
        assert by_name["gateway_overhead_ms"].value == 5.5
        assert by_name["token_overhead_ms"].value == 0.5
        assert "gateway_overhead_ms" not in {
            m.name for m in replace(outcome(), level="answer").measurements()
        }

    def test_a_token_of_the_service_is_compared_with_one_of_the_library(self) -> None:
        by_name = {m.name: m for m in outcome().measurements()}
        assert by_name["service_token_ratio"].value == pytest.approx(10 / 8)
        assert "idle_cluster_token_ratio" not in by_name
        without = replace(outcome(), library_tpot_ms=(), beside_tpot_ms=(9.0,))
        assert not {m.name for m in without.measurements() if m.name.endswith("token_ratio")}

    def test_it_is_said_what_an_idle_cluster_takes_from_a_token(self) -> None:
        beside = replace(outcome(), beside_tpot_ms=(9.0, 8.8, 9.2))
        by_name = {m.name: m for m in beside.measurements()}
        assert by_name["idle_cluster_token_ratio"].value == pytest.approx(9 / 8)

    def test_the_library_decodes_what_the_service_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shape = Shape(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=64, vocab=100)
        monkeypatch.setitem(SHAPES, "tiny", shape)
        sizes = TokenPlan(k=2, chunk_len=20, question_len=8, num_generated=4, vocab=100, prefix_len=8)
        found = library_tpot_ms(Setting(sizes, QuestionPlan("", ())), "tiny")
        assert len(found) == LIBRARY_ROUNDS
        assert min(found) > 0

    def test_a_mode_that_never_met_the_slo_has_no_goodput(self) -> None:
        found = replace(outcome(), rates=(result("full", 1.0, 0, 5),))
        assert found.best("full") is None
        assert found.measurements()[0].value == 0.0

    def test_it_survives_the_disk_in_the_form_of_every_benchmark(self, tmp_path: Path) -> None:
        write_outcome(tmp_path / "new" / "report.json", outcome(), flops=1e12)
        report = json.loads((tmp_path / "new" / "report.json").read_text())
        assert set(report) == {"machine", "command", "measurements", "details"}
        assert report["machine"]["flops"] == 1e12
        assert {"goodput_full", "goodput_reordered", "gateway_overhead_ms", "token_overhead_ms"} <= {
            m["name"] for m in report["measurements"]
        }
        assert read_outcome(tmp_path / "new" / "report.json") == outcome()

    @pytest.mark.parametrize("text", ["{}", "nothing", '{"details": {"target": 3}}', '{"details": []}'])
    def test_what_is_no_report_is_refused_by_name(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(InvalidRequest, match=r"other\.json: is no report"):
            read_outcome(tmp_path / "other.json")


class TestPage:
    def test_it_is_one_file_with_four_plots_and_nothing_from_elsewhere(self, tmp_path: Path) -> None:
        path = tmp_path / "report.html"
        write_page(path, replace(outcome(), target="<b>&host"))
        text = path.read_text()
        tags = tags_of(text)
        assert tags.count("svg") == 4
        assert not {"script", "link", "img", "iframe"} & set(tags)
        assert "://" not in text
        assert "&lt;b&gt;&amp;host" in text
        assert "1 UNAVAILABLE" in text
        assert "nan" not in text
        assert len(text) < 100_000

    def test_a_run_without_any_answer_can_be_shown(self, tmp_path: Path) -> None:
        failed = rate_result("full", 1.0, [sample(0, status="UNAVAILABLE")], LIMITS, Count(1, 0, 0))
        write_page(
            tmp_path / "report.html",
            replace(outcome(), rates=(failed,), unloaded=(), quality=(), token_overhead_ms=()),
        )
        assert tags_of((tmp_path / "report.html").read_text()).count("svg") == 4

    def test_ticks_are_round_and_within_the_axis(self) -> None:
        assert Axis("", 0.0, 10.0).ticks() == [0, 2, 4, 6, 8, 10]
        assert Axis("", 8.0, 300.0, log=True).ticks() == [10, 20, 50, 100, 200]
        assert Axis("", 1.0, 100.0, log=True).place(10.0) == pytest.approx(0.5)


class TestComparison:
    def test_it_says_how_many_times_better_the_second_run_is(self) -> None:
        by_name = {change.name: change for change in changes(outcome(), outcome(factor=0.5))}
        assert by_name["gateway_overhead_ms"].better == pytest.approx(2.0)
        assert by_name["goodput_full"].better == pytest.approx(1.0)
        assert by_name["full at 1/s, ttft p90"].better == pytest.approx(1.0)
        assert "reordered at 4/s, ttft p90" not in by_name, "the second run has no such rate"

    def test_it_says_what_makes_it_doubtful(self) -> None:
        other = replace(outcome(), load={"k": "4"}, slo="ttft:1s", level="answer")
        found = differences(outcome(), other)
        assert len(found) == 3
        assert "k: 8 and 4" in found
        assert differences(outcome(), outcome()) == []

    def test_the_command_compares_two_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        a, b, page = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "compared.html"
        write_outcome(a, outcome())
        write_outcome(b, outcome(factor=0.5))
        assert main(["--compare", str(a), str(b), "--html", str(page)]) == 0
        assert "2.00 ×" in capsys.readouterr().out
        assert tags_of(page.read_text()).count("svg") == 8

    def test_a_missing_file_is_wrong_input(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
        assert "No such file" in capsys.readouterr().err


def test_the_terminal_names_rates_errors_and_measurements() -> None:
    console = Console(file=io.StringIO(), width=140, highlight=False)
    show(console, outcome())
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for part in (
        "1 UNAVAILABLE",
        "why it was UNAVAILABLE",
        "goodput_reordered",
        "selections_cacheclip",
        "45 ms",
        "75%",
        "90% of the requests within ttft 100 ms",
    ):
        assert part in shown
    assert "…" not in shown, "nothing is cut off"


def test_agreement_counts_answers_first_tokens_and_leading_tokens() -> None:
    def answers(*tokens: int) -> Sample:
        one = sample()
        assert one.reply is not None
        return replace(one, reply=replace(one.reply, tokens=(tokens,)))

    references = [answers(1, 2, 3, 4), answers(1, 2, 3, 4), answers(1, 2, 3, 4), answers(1, 2)]
    ours = [answers(1, 2, 3, 4), answers(1, 2, 9, 4), answers(7, 2, 3, 4), answers(1)]
    agreed = agreement("reordered", ours, references)
    assert (agreed.num_branches, agreed.same, agreed.first) == (4, 0.25, 0.75)
    assert agreed.leading == pytest.approx((1 + 0.5 + 0 + 0.5) / 4)


def tags_of(text: str) -> list[str]:
    found: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append(tag)  # type: ignore[method-assign]
    parser.feed(text)
    return found
