"""Which mode a request really runs in."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from services.generator.config import GeneratorConfig
from services.generator.reuse_modes import Modes
from shared.config import load
from shared.errors import FailedPrecondition, InvalidRequest, NotFound
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.orders import Auto, Reuse
from shared.generation.selection import Grouping, Reading
from shared.generation.told import ObeyedVerdict
from shared.identity import ids_hash
from shared.kv_types import KvContext
from shared.verdict import Verdict
from shared.verdicts import keep_verdict, read_verdicts

PREFIX = (1, 2, 3)
VERDICT = Verdict(ReuseMode.CACHEBLEND, 0.01, "m", ids_hash(PREFIX), "exact", 0.4)


def modes(verdict: Verdict | None = None, has_selector: bool = False, **settings: Any) -> Modes:
    config = load(GeneratorConfig, {"model": "m"} | settings)
    return Modes(config, "m", (verdict,) if verdict else (), has_selector)


def test_a_request_that_names_no_mode_has_the_configured_one() -> None:
    assert modes().settle(Reuse(), PREFIX).mode is ReuseMode.REORDERED
    assert modes(reuse="epic").settle(Reuse(recompute=Recompute(0.3)), PREFIX).recompute == Recompute(0.3)
    by_config = modes(VERDICT, reuse="auto").settle(Reuse(), PREFIX)
    assert (by_config.mode, by_config.recompute, by_config.note) == (ReuseMode.CACHEBLEND, Recompute(0.4), "")


def test_cacheclip_needs_a_selector_and_takes_grouping_and_reading_from_the_request_or_the_settings() -> None:
    order = Reuse(ReuseMode.CACHECLIP, grouping=Grouping.PAPER)
    with pytest.raises(FailedPrecondition, match=r"generator\.selector\.application"):
        modes().settle(order, PREFIX)
    settled = modes(has_selector=True, selector={"reading": "each"}).settle(order, PREFIX)
    assert (settled.mode, settled.grouping, settled.reading) == (
        ReuseMode.CACHECLIP,
        Grouping.PAPER,
        Reading.EACH,
    )


@pytest.mark.parametrize(
    "order", [Reuse(ReuseMode.EPIC, grouping=Grouping.PAPER), Reuse(ReuseMode.FULL, reading=Reading.EACH)]
)
def test_who_asks_no_selector_has_nothing_to_tell_it(order: Reuse) -> None:
    with pytest.raises(InvalidRequest, match="asks no selector"):
        modes(has_selector=True).settle(order, PREFIX)


@pytest.mark.parametrize(
    "order",
    [
        Reuse(recompute=Recompute(0.2)),
        Reuse(ape=Ape(0.5)),
        Reuse(grouping=Grouping.PAPER),
        Reuse(reading=Reading.EACH),
    ],
)
def test_auto_goes_by_the_verdict_and_by_nothing_else(order: Reuse) -> None:
    with pytest.raises(InvalidRequest, match="mode auto goes by the model's verdict"):
        modes(VERDICT).settle(replace(order, mode=Auto.AUTO), PREFIX)


@pytest.mark.parametrize(
    ("verdict", "has_selector", "has_question", "mode", "why"),
    [
        (VERDICT, False, True, ReuseMode.CACHEBLEND, ""),
        (VERDICT, False, False, ReuseMode.CACHEBLEND, ""),
        (replace(VERDICT, mode=ReuseMode.CACHECLIP), True, True, ReuseMode.CACHECLIP, ""),
        (replace(VERDICT, mode=ReuseMode.FULL, ratio=None), False, True, ReuseMode.FULL, ""),
        (replace(VERDICT, mode=ReuseMode.CACHECLIP), False, True, ReuseMode.FULL, "needs a selector"),
        (replace(VERDICT, mode=ReuseMode.CACHECLIP), True, False, ReuseMode.FULL, "goes by the question"),
        (
            replace(VERDICT, mode=ReuseMode.QUERY_ATTENTION),
            True,
            False,
            ReuseMode.FULL,
            "goes by the question",
        ),
        (replace(VERDICT, model="other"), True, True, ReuseMode.FULL, "another model"),
        (replace(VERDICT, prefix="other"), True, True, ReuseMode.FULL, "another prefix"),
        (replace(VERDICT, encoding="int4"), True, True, ReuseMode.FULL, "another encoding"),
        (None, True, True, ReuseMode.FULL, "has no verdict"),
    ],
)
def test_a_verdict_is_obeyed_where_it_holds_and_elsewhere_it_is_said_why_not(
    verdict: Verdict | None, has_selector: bool, has_question: bool, mode: ReuseMode, why: str
) -> None:
    settled = modes(verdict, has_selector).settle(Reuse(Auto.AUTO), PREFIX, has_question)
    assert settled.mode is mode
    assert (why in settled.note) if why else settled.note == ""
    assert settled.recompute == (Recompute() if why or verdict is None else Recompute(verdict.ratio))


FORBIDS = replace(
    VERDICT, mode=ReuseMode.REORDERED, ratio=None, kv_context=KvContext.DOCUMENT, recompute=False
)


@pytest.mark.parametrize(
    ("conditioned", "mode", "why"),
    [
        (True, ReuseMode.REORDERED, ""),
        (None, ReuseMode.REORDERED, ""),  # a request without chunks
        (False, ReuseMode.FULL, "another kv_context"),
    ],
)
def test_a_verdict_on_conditioned_kv_is_obeyed_where_chunks_are_computed_behind_others(
    conditioned: bool | None, mode: ReuseMode, why: str
) -> None:
    settled = modes(FORBIDS).settle(Reuse(Auto.AUTO), PREFIX, conditioned=conditioned)
    assert settled.mode is mode
    assert (why in settled.note) if why else settled.note == ""


@pytest.mark.parametrize("configured", ["document", "header"])
@pytest.mark.parametrize(
    ("told", "mode"),
    [
        (KvContext.DOCUMENT, ReuseMode.REORDERED),
        (KvContext.HEADER, ReuseMode.EPIC),
        (KvContext.NONE, ReuseMode.CACHEBLEND),
    ],
)
def test_of_several_verdicts_that_is_obeyed_which_was_made_for_what_the_chunks_were_made_under(
    told: KvContext, mode: ReuseMode, configured: str
) -> None:
    of_titles = replace(VERDICT, mode=ReuseMode.EPIC, kv_context=KvContext.HEADER)
    config = load(GeneratorConfig, {"model": "m", "kv_context": configured})
    for verdicts in permutations((FORBIDS, of_titles, VERDICT)):
        ours = Modes(config, "m", verdicts, False)
        # chunks in front of which nothing stands may be of any
        for conditioned in (True, False):
            settled = ours.settle(Reuse(Auto.AUTO), PREFIX, conditioned=conditioned, kv_context=told)
            assert (settled.mode, settled.note) == (mode, "")


@pytest.mark.parametrize(
    "order",
    [
        Reuse(ReuseMode.EPIC, Recompute(0.2)),
        Reuse(ReuseMode.TOKENS, Recompute(tokens=(1,))),
        Reuse(ReuseMode.CACHECLIP),
        Reuse(),
    ],
)
def test_who_recomputes_against_the_verdict_is_told(order: Reuse) -> None:
    ours = modes(FORBIDS, has_selector=True, reuse="query_attention")
    settled = ours.settle(order, PREFIX, conditioned=True)
    assert settled.mode is (order.mode or ReuseMode.QUERY_ATTENTION)
    assert "recomputes against the model's verdict" in settled.note
    assert "reordered is advised" in settled.note


@pytest.mark.parametrize(
    ("verdict", "order", "conditioned"),
    [
        (FORBIDS, Reuse(ReuseMode.EPIC), False),
        (FORBIDS, Reuse(ReuseMode.EPIC, Recompute(0.0)), True),
        (FORBIDS, Reuse(ReuseMode.FULL), True),
        (FORBIDS, Reuse(ReuseMode.REORDERED), True),
        (replace(FORBIDS, model="other"), Reuse(ReuseMode.EPIC), True),
        (VERDICT, Reuse(ReuseMode.EPIC), False),
        (None, Reuse(ReuseMode.EPIC), True),
    ],
)
def test_who_does_not_is_told_nothing(verdict: Verdict | None, order: Reuse, conditioned: bool) -> None:
    assert modes(verdict).settle(order, PREFIX, conditioned=conditioned).note == ""


SERVING = {"engine": {"adapters": {"qa": "there", "law": "there"}}}


@pytest.mark.parametrize(
    ("settings", "asked", "used"),
    [
        ({}, "", ""),
        ({}, "qa", "qa"),
        ({"adapter": "law"}, "", "law"),
        ({"adapter": "law"}, "qa", "qa"),
        ({"adapter": "law"}, "none", ""),
        ({}, "none", ""),
    ],
)
def test_an_adapter_is_the_one_asked_for_or_the_configured_one(
    settings: dict[str, Any], asked: str, used: str
) -> None:
    settled = modes(**SERVING, **settings).settle(Reuse(adapter=asked), PREFIX)
    assert (settled.adapter, settled.note) == (used, "")


def test_who_asks_for_an_adapter_under_full_is_told_that_there_is_none() -> None:
    served = modes(**SERVING, adapter="law")
    assert served.settle(Reuse(ReuseMode.FULL, adapter="qa"), PREFIX).note == (
        "full is computed by the model alone, without adapter qa"
    )
    assert served.settle(Reuse(ReuseMode.FULL), PREFIX).note == ""
    assert served.settle(Reuse(ReuseMode.FULL, adapter="none"), PREFIX).note == ""
    by_verdict = served.settle(Reuse(Auto.AUTO, adapter="qa"), PREFIX)
    assert by_verdict.note.startswith("auto is full: the model has no verdict")
    assert by_verdict.note.endswith("; full is computed by the model alone, without adapter qa")
    assert by_verdict.adapter == "qa", "the engine still says whether there is such a one"


def test_a_verdict_holds_for_requests_with_its_adapter() -> None:
    of_adapter = replace(VERDICT, mode=ReuseMode.REORDERED, ratio=None, adapter="identity of legal")
    config = load(
        GeneratorConfig,
        {"model": "m", "adapter": "legal", "engine": {"adapters": {"legal": "a", "support": "b"}}},
    )
    ours = Modes(
        config, "m", (of_adapter, VERDICT), False, adapters={"legal": "identity of legal", "support": "x"}
    )

    def settled(adapter: str = "") -> tuple[ReuseMode, str]:
        found = ours.settle(Reuse(Auto.AUTO, adapter=adapter), PREFIX)
        return found.mode, found.note.partition(";")[0]

    assert settled() == settled("legal") == (ReuseMode.REORDERED, "")
    assert settled("none") == (ReuseMode.CACHEBLEND, "")
    assert settled("support") == (ReuseMode.FULL, "auto is full: the verdict was made for another adapter")


def test_what_has_changed_since_the_verdict_is_told_to_operators() -> None:
    full = replace(VERDICT, kv_context=KvContext.DOCUMENT, tokenizer="t", form=2)
    assert Modes(load(GeneratorConfig, {"model": "m"}), "m", (full,), False, "t").status(PREFIX) == (
        "cacheblend 0.4 (document)"
    )
    changed = Modes(
        load(GeneratorConfig, {"model": "m", "kv_context": "header", "kv_encoding": "int8"}),
        "m",
        (full,),
        False,
        "u",
    )
    assert changed.status(PREFIX) == (
        "expired: it was made for another tokenizer, encoding, kv_context; run `kvquilt gate`"
    )
    assert changed.settle(Reuse(Auto.AUTO), PREFIX, conditioned=True).note == (
        "auto is full: the verdict was made for another tokenizer, encoding, kv_context"
    )


def test_a_suspended_verdict_is_not_obeyed_and_what_was_seen_is_told(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    keep_verdict(path, VERDICT)
    served = Modes(GeneratorConfig("m", verdict=str(path)), "m", read_verdicts(path), has_selector=False)
    assert served.settle(Reuse(Auto.AUTO), PREFIX).verdict == ObeyedVerdict(VERDICT.id)
    assert served.settle(Reuse(ReuseMode.EPIC), PREFIX).verdict is None
    assert served.suspend(VERDICT.id, "agreement 50 %")
    settled = served.settle(Reuse(Auto.AUTO), PREFIX)
    assert (settled.mode, settled.verdict) == (ReuseMode.FULL, None)
    assert settled.note == "auto is full: the verdict is suspended by shadow: agreement 50 %"
    again = Modes(GeneratorConfig("m"), "m", read_verdicts(path), has_selector=False)
    assert again.settle(Reuse(Auto.AUTO), PREFIX) == settled
    anew = replace(VERDICT, made_s=1.0, agreement=0.9)
    keep_verdict(path, anew)
    assert modes(*read_verdicts(path)).settle(Reuse(Auto.AUTO), PREFIX).verdict == ObeyedVerdict(anew.id, 0.9)


def test_a_verdict_is_suspended_where_its_file_cannot_be_written_and_none_is_that_is_not_served(
    tmp_path: Path,
) -> None:
    (tmp_path / "verdict.json").write_text("{", encoding="utf-8")
    config = GeneratorConfig("m", verdict=str(tmp_path / "verdict.json"))
    served = Modes(config, "m", (VERDICT,), has_selector=False)
    with pytest.raises(NotFound, match="verdict: none with the identity 'other' is served here"):
        served.suspend("other", "agreement 50 %")
    assert served.settle(Reuse(Auto.AUTO), PREFIX).verdict
    assert not served.suspend(VERDICT.id, "agreement 50 %")
    assert served.settle(Reuse(Auto.AUTO), PREFIX).mode is ReuseMode.FULL


SETTINGS: dict[str, Any] = {
    "kv_context": "document",
    "kv_encoding": "int8",
    "adapter": "legal",
    "engine": {"adapters": {"legal": "a", "support": "b"}},
    "selector": {"application": "selector", "grouping": "paper", "reading": "each"},
}
MADE_WITH_ALL = Verdict(
    ReuseMode.CACHECLIP,
    0.03,
    "m",
    ids_hash(PREFIX),
    "int8",
    0.2,
    KvContext.DOCUMENT,
    tokenizer="t",
    adapter="identity of legal",
    auxiliary="a",
    grouping="paper",
    reading="each",
    form=2,
)


def served_by(
    settings: dict[str, Any] | None = None,
    model: str = "m",
    tokenizer: str = "t",
    legal: str = "identity of legal",
    has_selector: bool = True,
) -> Modes:
    config = load(GeneratorConfig, {"model": "m"} | SETTINGS | (settings or {}))
    identities = {"legal": legal, "support": "identity of support"}
    return Modes(config, model, (MADE_WITH_ALL,), has_selector, tokenizer, identities)


def test_a_verdict_holds_for_what_it_was_made_with() -> None:
    ours = served_by()
    assert ours.status(PREFIX, "a") == "cacheclip 0.2 (document)"
    settled = ours.settle(Reuse(Auto.AUTO), PREFIX, conditioned=True)
    assert (settled.mode, settled.note) == (ReuseMode.CACHECLIP, "")


@pytest.mark.parametrize(
    ("name", "changed", "prefix", "auxiliary"),
    [
        ("model", {"model": "another"}, PREFIX, "a"),
        ("tokenizer", {"tokenizer": "another"}, PREFIX, "a"),
        ("prefix", {}, (1, 2), "a"),
        ("adapter", {"settings": {"adapter": "support"}}, PREFIX, "a"),
        ("adapter", {"settings": {"adapter": ""}}, PREFIX, "a"),
        ("adapter", {"legal": "trained anew"}, PREFIX, "a"),
        ("kv_context", {"settings": {"kv_context": "header"}}, PREFIX, "a"),
        ("kv_context", {"settings": {"kv_context": "none"}}, PREFIX, "a"),
        ("encoding", {"settings": {"kv_encoding": "exact"}}, PREFIX, "a"),
        ("auxiliary", {}, PREFIX, "another"),
        ("auxiliary", {"has_selector": False}, PREFIX, ""),
        ("grouping", {"settings": {"selector": {"application": "s", "reading": "each"}}}, PREFIX, "a"),
        ("reading", {"settings": {"selector": {"application": "s", "grouping": "paper"}}}, PREFIX, "a"),
    ],
)
def test_a_change_of_any_of_it_expires_it_and_status_and_answers_say_which(
    name: str, changed: dict[str, Any], prefix: tuple[int, ...], auxiliary: str
) -> None:
    ours = served_by(**changed)
    expired = f"expired: it was made for another {name}; run `kvquilt gate`"
    # what is ingested already may be of another setting
    of_earlier = ", cacheclip 0.2 (document)" if changed.get("settings") == {"kv_context": "none"} else ""
    assert ours.status(prefix, auxiliary) == f"{expired}{of_earlier}"
    if name == "auxiliary":  # whose it is now is told with the choice (``services.generator.selection``)
        return
    context = KvContext(changed.get("settings", {}).get("kv_context", "document"))
    settled = ours.settle(Reuse(Auto.AUTO), prefix, conditioned=True, kv_context=context)
    assert settled.mode is ReuseMode.FULL
    assert settled.note.startswith(f"auto is full: the verdict was made for another {name}")
