"""Which mode a request really runs in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from services.generator.config import GeneratorConfig
from services.generator.reusing import Modes, ReuseOrder, mode_of
from shared.clients.generation import Reuse
from shared.config import load
from shared.errors import FailedPrecondition, InvalidRequest
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.identity import ids_hash
from shared.verdict import Verdict

PREFIX = (1, 2, 3)
VERDICT = Verdict("cacheblend", 0.01, "m", ids_hash(PREFIX), "exact", 0.4)


def modes(verdict: Verdict | None = None, has_selector: bool = False, **settings: Any) -> Modes:
    config = load(GeneratorConfig, {"model": "m"} | settings)
    return Modes(config, "m", verdict, has_selector)


def test_every_mode_of_the_interface_is_one_of_the_engine_but_auto() -> None:
    assert {mode_of(name) for name in get_args(Reuse)} == {*ReuseMode, "auto"}


def test_a_request_that_names_no_mode_has_the_configured_one() -> None:
    assert modes().settle(ReuseOrder(), PREFIX).mode is ReuseMode.REORDERED
    assert modes(reuse="epic").settle(ReuseOrder(recompute=Recompute(0.3)), PREFIX).recompute == Recompute(
        0.3
    )
    by_config = modes(VERDICT, reuse="auto").settle(ReuseOrder(), PREFIX)
    assert (by_config.mode, by_config.recompute, by_config.note) == (ReuseMode.CACHEBLEND, Recompute(0.4), "")


def test_cacheclip_needs_a_selector_and_takes_grouping_and_reading_from_the_request_or_the_settings() -> None:
    order = ReuseOrder(ReuseMode.CACHECLIP, grouping="paper")
    with pytest.raises(FailedPrecondition, match=r"generator\.selector\.application"):
        modes().settle(order, PREFIX)
    settled = modes(has_selector=True, selector={"reading": "each"}).settle(order, PREFIX)
    assert (settled.mode, settled.grouping, settled.reading) == (ReuseMode.CACHECLIP, "paper", "each")


@pytest.mark.parametrize(
    "order", [ReuseOrder(ReuseMode.EPIC, grouping="paper"), ReuseOrder(ReuseMode.FULL, reading="each")]
)
def test_who_asks_no_selector_has_nothing_to_tell_it(order: ReuseOrder) -> None:
    with pytest.raises(InvalidRequest, match="asks no selector"):
        modes(has_selector=True).settle(order, PREFIX)


@pytest.mark.parametrize(
    "order",
    [
        ReuseOrder(recompute=Recompute(0.2)),
        ReuseOrder(ape=Ape(0.5)),
        ReuseOrder(grouping="paper"),
        ReuseOrder(reading="each"),
    ],
)
def test_auto_goes_by_the_verdict_and_by_nothing_else(order: ReuseOrder) -> None:
    with pytest.raises(InvalidRequest, match="mode auto goes by the model's verdict"):
        modes(VERDICT).settle(replace(order, mode="auto"), PREFIX)


@pytest.mark.parametrize(
    ("verdict", "has_selector", "has_question", "mode", "why"),
    [
        (VERDICT, False, True, ReuseMode.CACHEBLEND, ""),
        (VERDICT, False, False, ReuseMode.CACHEBLEND, ""),
        (replace(VERDICT, mode="cacheclip"), True, True, ReuseMode.CACHECLIP, ""),
        (replace(VERDICT, mode="full", ratio=None), False, True, ReuseMode.FULL, ""),
        (replace(VERDICT, mode="cacheclip"), False, True, ReuseMode.FULL, "needs a selector"),
        (replace(VERDICT, mode="cacheclip"), True, False, ReuseMode.FULL, "goes by the question"),
        (replace(VERDICT, mode="query_attention"), True, False, ReuseMode.FULL, "goes by the question"),
        (replace(VERDICT, model="other"), True, True, ReuseMode.FULL, "another model"),
        (replace(VERDICT, prefix="other"), True, True, ReuseMode.FULL, "another prefix"),
        (replace(VERDICT, encoding="int4"), True, True, ReuseMode.FULL, "another encoding"),
        (None, True, True, ReuseMode.FULL, "has no verdict"),
    ],
)
def test_a_verdict_is_obeyed_where_it_holds_and_elsewhere_it_is_said_why_not(
    verdict: Verdict | None, has_selector: bool, has_question: bool, mode: ReuseMode, why: str
) -> None:
    settled = modes(verdict, has_selector).settle(ReuseOrder("auto"), PREFIX, has_question)
    assert settled.mode is mode
    assert (why in settled.note) if why else settled.note == ""
    assert settled.recompute == (Recompute() if why or verdict is None else Recompute(verdict.ratio))
