"""What a gate does not judge, and which of the ways of serving that it judged it advises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.gate.answering import Models
from cluster.gate.modes import CONTROLS, OTHERS, ClipSetting, Comparison
from cluster.gate.served import LeftOut, served_plan
from cluster.gate.servings import JudgedServing, Serving, advised, servings_details
from services.ingestion.config import IngestionConfig
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.prompt_config import PromptConfig
from shared.verdict import Verdict

PLAN = Comparison(ratios=(0.1, 0.2), others=OTHERS, as_served=True)
MODELS = Models("model", "auxiliary", IngestionConfig("model"))
WITH_PACKETS = replace(MODELS, ingestion=IngestionConfig("model", prompt=PromptConfig(packets="packets")))


class TestLeftOut:
    def test_beside_packets_is_all_that_computes_tokens_anew(self) -> None:
        for models in (WITH_PACKETS, replace(WITH_PACKETS, auxiliary="")):
            plan, left = served_plan(PLAN, models)
            assert {arm.label for arm in plan.candidates} == {"reordered_0", *OTHERS}
            assert [one.what for one in left] == [*CONTROLS, "cacheclip"]
            assert {one.why for one in left} == {"not served beside packets (prompt.packets)"}

    def test_without_an_auxiliary_model_is_cacheclip(self) -> None:
        plan, left = served_plan(PLAN, replace(MODELS, auxiliary=""))
        assert left == (LeftOut("cacheclip", "no auxiliary model (selector.model) chooses for it"),)
        assert plan == replace(PLAN, clips=())

    def test_is_nothing_that_is_served_and_nothing_that_nobody_wanted(self) -> None:
        assert served_plan(PLAN, MODELS) == (PLAN, ())
        for models in (WITH_PACKETS, replace(MODELS, auxiliary="")):
            plan, left = served_plan(replace(PLAN, ratios=()), models)
            assert (plan.clips, left) == ((), ())
            alone = Comparison(controls=(), clips=(), ratios=(0.2,))
            assert served_plan(alone, models) == (alone, ())


class TestRatios:
    def test_only_what_is_asked_as_it_is_served_may_be_the_verdict(self) -> None:
        """Beside ``cacheclip`` the others compute as much as it does, ``cacheblend`` more in any case."""
        control = {mode for mode in CONTROLS if not mode.row.surveys_all}
        for plan, named in (
            (PLAN, {*CONTROLS, "cacheclip"}),
            (replace(PLAN, as_served=False), {"cacheclip"}),
            (replace(PLAN, as_served=False, clips=()), control),
        ):
            assert {arm.mode for arm in plan.candidates if arm.ratio} == named

    def test_kept_answers_of_the_one_kind_are_not_those_of_the_other(self) -> None:
        plans = (PLAN, replace(PLAN, as_served=False), replace(PLAN, as_served=False, clips=()))
        assert [plan.controls_as for plan in plans] == ["served", ClipSetting().label, "ratio"]


VERDICT = Verdict(ReuseMode.REORDERED, 0.03, "m", "p", "exact", loss_at_most={"within_documents": 0.02})
EVERYWHERE = {"within_documents": 0.02, "cross_document": 0.03}
LOST = {"within_documents": 0.02, "cross_document": 0.4}


def judged(
    context: str, encoding: str = "exact", adapter: str = "none", verdict: Verdict | None = VERDICT
) -> JudgedServing:
    return JudgedServing(
        Serving(KvContext(context), encoding, adapter), verdict, "" if verdict else "too few"
    )


class TestAdvice:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (
                judged("document", verdict=replace(VERDICT, loss_at_most=EVERYWHERE)),
                judged("none", "int4", verdict=replace(VERDICT, loss_at_most=LOST)),
            ),
            (judged("document"), judged("none", verdict=replace(VERDICT, mode=ReuseMode.EPIC, ratio=0.1))),
            (
                judged("none", verdict=replace(VERDICT, mode=ReuseMode.EPIC, ratio=0.1)),
                judged("none", "int4", verdict=replace(VERDICT, mode=ReuseMode.CACHECLIP, ratio=0.2)),
            ),
            (
                judged("none", verdict=replace(VERDICT, mode=ReuseMode.EPIC, ratio=0.9)),
                judged("none", "int4", verdict=replace(VERDICT, mode=ReuseMode.FULL)),
            ),
            (judged("document", "int4", "legal"), judged("none", "int8")),
            (judged("document", "int8"), judged("none", "int8", "legal")),
            (judged("header"), judged("document")),
            (judged("none"), judged("header")),
            (judged("document"), judged("none", "int4", verdict=None)),
        ],
    )
    def test_is_the_cheapest_of_those_that_are_good_enough(
        self, first: JudgedServing, second: JudgedServing
    ) -> None:
        for both in ((first, second), (second, first)):
            assert advised(both) is first

    def test_is_none_without_a_verdict(self) -> None:
        assert advised([judged("none", verdict=None)]) is None
        assert advised([]) is None

    def test_is_in_the_report_with_what_was_left_out_and_why(self) -> None:
        left = [LeftOut("kv_context header", "not served")]
        details = servings_details([judged("none"), judged("document", verdict=None)], left)
        assert details["advised"] == {"kv_context": "none", "encoding": "exact", "adapter": "none"}
        assert details["left_out"] == [{"what": "kv_context header", "why": "not served"}]
        found = details["servings"]
        assert isinstance(found, list)
        assert [(one["kv_context"], bool(one["verdict"]), one["no_verdict"]) for one in found] == [
            ("none", True, ""),
            ("document", False, "too few"),
        ]

    def test_names_settings_and_a_report_of_its_own(self) -> None:
        serving = Serving(KvContext.HEADER, "int8", "legal")
        assert serving.settings == (
            "ingestion.kv_context header, generator.kv_encoding int8, generator.adapter legal"
        )
        assert Serving(KvContext.NONE, "exact").settings.endswith("generator.adapter ''")
        assert serving.report_of(Path("d/gate.json")) == Path("d/gate.header.int8.legal.json")
