"""The benchmark of selective recompute, at sizes that take seconds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.benchmark import line
from load_tests.kv_store.stored_ttft import stored_source
from load_tests.recompute import __main__ as command
from load_tests.recompute.clipper import Clipper
from load_tests.recompute.limits import prefill_work, scoring_work
from load_tests.recompute.measurements import RecomputePlan, measure
from load_tests.recompute.primary import Primary
from load_tests.recompute.text import Speech
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.generation.selection import Grouping, Reading
from shared.measuring.case import Case
from shared.measuring.rates import Rates
from shared.measuring.shapes import Shape, build_model
from shared.selection.spans import SpanTokenizer

PRIMARY = Shape(hidden=32, layers=3, heads=4, kv_heads=2, head_dim=8, mlp=64, vocab=600)
AUXILIARY = Shape(hidden=24, layers=2, heads=3, kv_heads=3, head_dim=8, mlp=32, vocab=500, family="llama")
SMALL = Case(PRIMARY, context=96, question=5, chunk_len=32, prefix=4, threads=1)
RATES = Rates(flops=1e15, bytes_per_s=1e12)
ARITHMETIC = Rates(flops=1.0, bytes_per_s=1e30)
MEMORY = Rates(flops=1e30, bytes_per_s=1.0)


def test_text_has_the_wanted_number_of_tokens_and_both_tokenizers_stay_in_their_vocabularies() -> None:
    speech = Speech(600, 500)
    primary, auxiliary = (
        SpanTokenizer(speech.primary, "primary"),
        SpanTokenizer(speech.auxiliary, "auxiliary"),
    )
    texts = [speech.text(num_tokens) for num_tokens in (1, 2, 7, 32, 32)]
    assert [len(primary.tokenize(text)) for text in texts] == [1, 2, 7, 32, 32]
    assert len(set(texts)) == 5
    assert all(0 <= token < 600 for text in texts for token in primary.tokenize(text).token_ids)
    # 0 is what it does not know
    assert all(0 < token < 500 for text in texts for token in auxiliary.tokenize(text).token_ids)
    assert any(set(primary.tokenize(text).starts) - set(auxiliary.tokenize(text).starts) for text in texts)
    assert Speech(600, 500).text(32) == Speech(600, 500).text(32)


def test_the_limit_of_a_prefill_counts_the_rows_and_what_each_of_them_sees() -> None:
    weights, per_key = (
        2 * PRIMARY.layers * PRIMARY.layer_weights,
        4 * PRIMARY.layers * PRIMARY.heads * PRIMARY.head_dim,
    )
    head = 2 * PRIMARY.hidden * PRIMARY.vocab
    assert ARITHMETIC.limit_s(*prefill_work(PRIMARY, [3, 10], 9)) == 2 * weights + (4 + 11) * per_key + head
    assert MEMORY.limit_s(*prefill_work(PRIMARY, [3, 10], 9)) == PRIMARY.bytes_read(9)


def test_the_limit_of_a_scoring_leaves_out_what_the_last_layer_need_not_give() -> None:
    shape, queries_and_keys = AUXILIARY, AUXILIARY.hidden * 6 * AUXILIARY.head_dim
    expected = 2 * (2 * 7) * (shape.layer_weights + queries_and_keys) + (4 + 2) * 24 * 7 * (50 + 60)
    assert ARITHMETIC.limit_s(*scoring_work(shape, 7, [50, 60])) == expected
    kv = (50 + 60) * shape.kv_bytes_per_token * 3 / 4
    read = 2 * (shape.layer_weights + queries_and_keys) + kv
    assert MEMORY.limit_s(*scoring_work(shape, 7, [50, 60])) == read


@pytest.mark.parametrize(
    ("setting", "changes"),
    [("--ratios", {"percents": (20, 101)}), ("--ratios", {"percents": ()}), ("--runs", {"runs": 0})],
)
def test_plans_that_make_no_sense_are_refused_by_name(setting: str, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=setting):
        RecomputePlan(SMALL, AUXILIARY, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("percents", "looked_at"), [((0, 10, 20), 20), ((0, 10, 40), 10), ((0, 100), None)])
def test_what_leaves_something_to_choose_is_looked_at(
    percents: tuple[int, ...], looked_at: int | None
) -> None:
    assert RecomputePlan(SMALL, AUXILIARY, percents).looked_at == looked_at


@pytest.fixture
def clipper(tmp_path: Path) -> Iterator[Clipper]:
    model, speech = build_model(AUXILIARY), Speech(PRIMARY.vocab, AUXILIARY.vocab)
    texts = [speech.text(SMALL.chunk_len) for _ in range(3)]
    with (
        stored_source(tmp_path, model) as (source, _),
        closing(Clipper(model, source, speech, texts, speech.text(5))) as clipper,
    ):
        yield clipper


def test_a_clip_chooses_what_the_ratio_asks_for_and_times_every_part(clipper: Clipper) -> None:
    clip = clipper.clip(0.25, Grouping.BUDGET, Reading.STITCHED)
    assert 24 <= len(clip.tokens) < 24 + 32  # less than a window more
    assert list(clip.tokens) == sorted(set(clip.tokens))
    assert set(clip.tokens) <= set(range(96))
    assert min(clip.pair_s, clip.load_s, clip.score_s, clip.group_s) > 0
    assert clip.total_s == clip.pair_s + clip.load_s + clip.score_s + clip.group_s


def test_what_is_read_back_from_the_store_scores_like_what_was_computed(clipper: Clipper) -> None:
    first = [clipper.clip(0.25, Grouping.BUDGET, reading).tokens for reading in Reading]
    assert first == [clipper.clip(0.25, Grouping.BUDGET, reading).tokens for reading in Reading]
    assert first[0] != first[1]


@pytest.mark.parametrize(("ratio", "tokens"), [(0.0, ()), (1.0, tuple(range(96)))])
def test_ratios_that_leave_nothing_to_choose_ask_no_model(
    clipper: Clipper, ratio: float, tokens: tuple[int, ...]
) -> None:
    clip = clipper.clip(ratio, Grouping.BUDGET, Reading.STITCHED)
    assert (clip.tokens, clip.score_s) == (tokens, 0.0)


@pytest.fixture
def primary() -> Iterator[Primary]:
    noise = random.Random(0)
    ids = [tuple(noise.randrange(PRIMARY.vocab) for _ in range(length)) for length in (32, 32, 32, 5)]
    with closing(Primary(SMALL, ids[:3], ids[3])) as primary:
        yield primary


def test_a_selection_beside_loading_starts_after_the_request_and_is_waited_for(primary: Primary) -> None:
    resident = primary.resident_s(ReuseMode.FULL), primary.resident_s(ReuseMode.TOKENS, (3, 40))
    asked: list[tuple[int, ...]] = []

    def select() -> tuple[int, ...]:
        asked.append((1, 2, 90))
        return asked[-1]

    assert min(resident) > 0
    for first in (primary.loading((3, 40), 0.05), primary.selecting(select, 0.05)):
        assert 0.05 < first.placed_s < first.token_s
    assert asked == [(1, 2, 90)]


def test_a_selection_that_fails_ends_the_measurement(primary: Primary) -> None:
    def select() -> tuple[int, ...]:
        raise LookupError("no scores")

    with pytest.raises(LookupError, match="no scores"):
        primary.selecting(select, 0.01)
    with pytest.raises(InvalidRequest, match=r"recompute\.tokens"):
        primary.selecting(lambda: (96,), 0.01)


def test_everything_is_measured_in_one_run() -> None:
    plan = RecomputePlan(SMALL, AUXILIARY, percents=(0, 25, 100), runs=2)
    found = {m.name: m for m in measure(plan, RATES)}
    curve = [name for percent in plan.percents for name in _curve(percent)]
    parts = [f"{part}_25" for part in ("pair", "load", "score", "group", "prefill")]
    readings = ["selection_stitched", "selection_each"]
    beside = [f"{of}_{what}_25" for of in ("ttft", "placed") for what in ("loading", "loading_selecting")]
    rest = ["ttft_recompute_25_evenly", *parts, *readings, *beside, "selector_hidden_fraction"]
    assert list(found) == ["ttft_full", "ttft_reordered", *curve, *rest]
    assert [found[f"tokens_recompute_{percent}"].value for percent in (0, 100)] == [0, 96]
    assert all(name in line(m) for name, m in found.items())
    assert 0 <= found["selector_hidden_fraction"].value <= 1
    work = [found[f"ttft_{name}"].tflop or 0 for name in ("reordered", "recompute_25", "full")]
    assert 0 < work[0] < work[1] < work[2]
    full, clipped = found["ttft_full"], found["ttft_recompute_25"]
    assert clipped.baseline == full.value
    assert clipped.ratio == pytest.approx(full.value / clipped.value)
    assert 0 < (clipped.fraction_of_limit or 0) < 1
    assert found["ttft_recompute_100"].limit == full.limit  # nothing is scored, everything is computed
    assert found["full_over_recompute_25"].limit == pytest.approx((full.limit or 0) / (clipped.limit or 1))


def _curve(percent: int) -> list[str]:
    return [f"{of}_recompute_{percent}" for of in ("ttft", "full_over", "tokens")]


def test_a_context_need_not_be_of_whole_chunks() -> None:
    plan = RecomputePlan(replace(SMALL, context=70), AUXILIARY, percents=(20,), runs=1)
    found = {m.name: m for m in measure(plan, RATES)}
    assert 14 <= found["tokens_recompute_20"].value < 14 + 32


def test_a_selection_is_hidden_as_far_as_the_request_waits_for_its_kv(primary: Primary) -> None:
    def select() -> tuple[int, ...]:
        time.sleep(0.3)
        return (1, 2)

    assert primary.selecting(select, 1.0).hidden == 1
    assert primary.selecting(select, 0.0).hidden < 0.5


def test_without_anything_to_choose_only_the_curve_is_measured() -> None:
    found = [m.name for m in measure(RecomputePlan(SMALL, AUXILIARY, percents=(0, 100), runs=1), RATES)]
    assert found == ["ttft_full", "ttft_reordered", *_curve(0), *_curve(100)]


def test_the_command_says_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--context", "0"]) == 2
    assert command.main(["--ratios", "20,200"]) == 2
    told = capsys.readouterr().err
    assert "--context: must be at least 1" in told
    assert "--ratios: must be percentages" in told
