"""What can never be served is refused at once, with the name of the field. Without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.engine import admission
from shared.engine_config import EngineConfig
from shared.errors import ContextTooLong, InvalidRequest
from shared.generation.asked import (
    Beams,
    Choice,
    ChoiceRule,
    Chunk,
    GenerateRequest,
    PrefillRequest,
    SamplingParams,
)
from shared.generation.forest import ForestRequest
from shared.generation.modes import Ape, GoesBy, Recompute, ReuseMode
from shared.packets import PacketIds
from tests.unit.engine.test_residency import SPEC

CONFIG = EngineConfig(max_running_branches=4)
CHUNKS = (Chunk("a", (1, 2, 3)), Chunk("b", (4, 5)))
REQUEST = GenerateRequest("r", (0,), CHUNKS, ((6, 7),), sampling=SamplingParams(max_tokens=3))
WARM = SamplingParams(max_tokens=3, temperature=1.0, n=3)


def check(request: Any, has_text: bool = True, **spec: Any) -> None:
    admission.check(request, replace(SPEC, **spec), CONFIG, has_text)


def test_what_fits_is_admitted() -> None:
    check(REQUEST)
    check(PrefillRequest("p", (), CHUNKS))
    check(ForestRequest("f", (), CHUNKS))
    check(replace(REQUEST, reuse=ReuseMode.TOKENS, recompute=Recompute(by_question=((0, 4),))))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prefix_ids": (10,)}, r"prefix: token id 10 is outside the vocabulary \(0 to 9\)"),
        ({"prefix_ids": (-1,)}, "prefix: token id -1"),
        ({"chunks": (Chunk("a", ()),)}, r"chunks\[0\]: is empty"),
        ({"chunks": (*CHUNKS, Chunk("c", (99,)))}, r"chunks\[2\]: token id 99"),
        ({"questions": ()}, "questions: is empty"),
        ({"questions": ((1,), ())}, r"questions\[1\]: is empty"),
        ({"questions": ((1,),) * 5}, "5 branches"),
        ({"questions": ((1,),) * 2, "sampling": WARM}, "6 branches"),
        ({"beams": Beams(5)}, "beams.width: 5 branches"),
        ({"sampling": SamplingParams(watch_ids=(10,))}, "sampling.watch_ids"),
        ({"beams": Beams(2), "choose": Choice(ChoiceRule.MAJORITY)}, "choose: beams"),
        ({"beams": Beams(2), "sampling": SamplingParams(n=3)}, "sampling.n: 3 answers"),
        ({"beams": Beams(3), "sampling": WARM}, "sampling.temperature: beam"),
        ({"beams": Beams(2), "sampling": SamplingParams(stop=("x",))}, "sampling.stop: beams"),
        ({"choose": Choice(ChoiceRule.MAJORITY)}, "sampling.n: a choice"),
        (
            {"choose": Choice(ChoiceRule.MAJORITY), "sampling": SamplingParams(n=2)},
            "sampling.temperature: at 0",
        ),
        ({"choose": Choice(ChoiceRule.MEAN_LOGPROB, "x"), "sampling": WARM}, "choose.marker"),
        ({"reuse": ReuseMode.TOKENS, "recompute": Recompute(tokens=(5,))}, "recompute.tokens: 5 is out"),
        (
            {"reuse": ReuseMode.TOKENS, "recompute": Recompute(by_question=((1,), (2,)))},
            "recompute.by_question: 2 lists for 1",
        ),
        (
            {"reuse": ReuseMode.TOKENS, "recompute": Recompute(tokens=(1,), by_question=((1,),))},
            "recompute.by_question: 1 lists for 1 questions; give one for each, and no other",
        ),
        ({"recompute": Recompute(tokens=(1,))}, "recompute.tokens: mode reordered"),
        ({"recompute": Recompute(by_question=((1,),))}, "recompute.tokens: mode reordered"),
        (
            {"reuse": ReuseMode.TOKENS, "recompute": Recompute(by_question=((99,),))},
            "recompute.tokens: 99 is out of range; the chunks have 5 tokens",
        ),
        ({"reuse": ReuseMode.TOKENS, "recompute": Recompute(0.5)}, "give recompute.tokens alone"),
        ({"recompute": Recompute(0.5)}, "recompute.ratio: mode reordered"),
        ({"ape": Ape(0.5)}, "ape: mode reordered"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        check(replace(REQUEST, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SamplingParams(stop=("x",))},
        {"choose": Choice(ChoiceRule.MAJORITY), "sampling": WARM},
    ],
    ids=["stop", "majority"],
)
def test_what_needs_text_is_refused_without_a_tokenizer(changes: dict[str, Any]) -> None:
    check(replace(REQUEST, **changes))
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        check(replace(REQUEST, **changes), has_text=False)


@pytest.mark.parametrize(("reuse", "ids"), [(ReuseMode.FULL, (1, 2)), (ReuseMode.REORDERED, (10, 1, 2, 11))])
def test_what_reads_nothing_stored_reads_chunks_without_packets(
    reuse: ReuseMode, ids: tuple[int, ...]
) -> None:
    spec = replace(SPEC, packets=PacketIds(first=10, num_header=1, num_trailer=1))
    request = replace(REQUEST, chunks=(Chunk("a", (10, 1, 2, 11)),), reuse=reuse)
    assert [chunk.token_ids for chunk in admission.without_packets(request, spec).chunks] == [ids]
    assert admission.without_packets(request, SPEC) is request


def test_thoughts_are_chosen_by_log_probability_without_a_tokenizer() -> None:
    choice = Choice(ChoiceRule.MEAN_LOGPROB)
    check(replace(REQUEST, choose=choice, sampling=WARM), has_text=False)


@pytest.mark.parametrize("token_ids", [(1, 2), (11, 1, 2, 10), (10, 1, 2)])
def test_a_chunk_stands_between_the_packets_or_is_refused(token_ids: tuple[int, ...]) -> None:
    places = PacketIds(first=10, num_header=1, num_trailer=1)
    request = replace(REQUEST, chunks=(Chunk("a", (10, 1, 2, 11)),))
    check(request, packets=places)
    with pytest.raises(InvalidRequest, match=r"chunks\[0\]: does not stand .* \(ids 10 to 11\)"):
        check(replace(request, chunks=(Chunk("a", token_ids),)), packets=places)


@pytest.mark.parametrize("limit", ["max_positions", "sliding_window"])
def test_prompt_and_answer_need_a_position_each_but_for_the_last_token(limit: str) -> None:
    """1 of the prefix, 5 of chunks, 2 of the question, and the first 2 of 3 generated ones."""
    check(REQUEST, **{limit: 10})
    with pytest.raises(ContextTooLong, match=r"8 tokens\) and max_tokens \(3\) need 10 positions"):
        check(REQUEST, **{limit: 9})


def test_a_question_that_fits_no_context_is_blamed_itself_and_not_the_chunks() -> None:
    long = replace(REQUEST, questions=(tuple(range(1, 9)),))
    with pytest.raises(ContextTooLong, match=r"9 tokens, without any chunk.*ask a shorter question"):
        check(long, max_positions=10)
    with pytest.raises(ContextTooLong, match="ask for fewer or shorter chunks"):
        check(long, max_positions=11)


def test_of_several_questions_the_longest_must_fit() -> None:
    several = replace(REQUEST, questions=((1,), (1, 2, 3, 4)))
    check(several, max_positions=12)
    with pytest.raises(ContextTooLong):
        check(several, max_positions=11)


def test_a_prefill_needs_room_for_its_longest_chunk_alone() -> None:
    check(PrefillRequest("p", (0,), CHUNKS), max_positions=4)
    with pytest.raises(ContextTooLong):
        check(PrefillRequest("p", (0,), CHUNKS), max_positions=3)
    with pytest.raises(InvalidRequest, match="chunks: is empty"):
        check(PrefillRequest("p", (0,), ()))


def test_a_forest_needs_room_for_a_token_behind_its_context() -> None:
    check(ForestRequest("f", (0,), CHUNKS), max_positions=7)
    with pytest.raises(ContextTooLong):
        check(ForestRequest("f", (0,), CHUNKS), max_positions=6)


@pytest.mark.parametrize("mode", ReuseMode, ids=lambda mode: mode.value)
def test_an_option_is_taken_by_the_modes_that_go_by_it(mode: ReuseMode) -> None:
    for accepts, options in (
        (mode.row.goes_by is GoesBy.RATIO, {"recompute": Recompute(0.5)}),
        (mode.row.goes_by is GoesBy.TOKENS, {"recompute": Recompute(tokens=(1,))}),
        (mode.row.weighed, {"ape": Ape(0.5, 0.5)}),
    ):
        request = replace(REQUEST, reuse=mode, **options)
        if accepts:
            check(request)
        else:
            with pytest.raises(InvalidRequest, match=f"mode {mode.value} "):
                check(request)


@pytest.mark.parametrize("mode", ReuseMode, ids=lambda mode: mode.value)
def test_a_forest_has_no_mode_that_goes_by_the_question(mode: ReuseMode) -> None:
    forest = ForestRequest("f", (), CHUNKS, mode)
    if mode.needs_question:
        with pytest.raises(InvalidRequest, match="goes by the question"):
            check(forest)
    else:
        check(forest)
