"""The table of modes, and what must be there for each of its rows."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from shared.engine.modes import token_selection
from shared.engine.modes.policy import Policy, policy_of
from shared.errors import InvalidRequest
from shared.generation.asked import Chunk, GenerateRequest
from shared.generation.modes import Chooser, GoesBy, Recompute, ReuseMode

ROOT = Path(__file__).resolve().parents[3]
every_mode = pytest.mark.parametrize("mode", ReuseMode, ids=lambda mode: mode.value)


@every_mode
def test_a_mode_is_found_by_its_name_and_travels_as_it(mode: ReuseMode) -> None:
    assert ReuseMode(mode.value) is mode
    assert pickle.loads(pickle.dumps(mode)) is mode
    assert mode.row.about


@every_mode
def test_a_mode_is_documented(mode: ReuseMode) -> None:
    assert f"`{mode.value}`" in (ROOT / "docs" / "recompute.md").read_text(encoding="utf-8")


@every_mode
def test_a_mode_that_does_more_than_to_place_has_a_policy_of_its_own(mode: ReuseMode) -> None:
    assert isinstance(policy_of(mode), Policy)
    assert (type(policy_of(mode)) is not Policy) == mode.has_policy


def test_every_policy_belongs_to_a_mode() -> None:
    modules = {
        p.stem
        for p in Path(str(token_selection.__file__)).parent.glob("*.py")
        if "POLICY = " in p.read_text()
    }
    assert modules == {mode.value for mode in ReuseMode if mode.has_policy}


@every_mode
def test_a_row_does_not_contradict_itself(mode: ReuseMode) -> None:
    row = mode.row
    if row.goes_by is GoesBy.TOKENS:
        assert row.chooser is Chooser.CALLER
    assert (row.goes_by is GoesBy.NOTHING) == (row.chooser is Chooser.NOBODY)
    assert row.stored or row.chooser is Chooser.NOBODY, "nothing is left to choose"
    assert not row.surveys_all or row.chooser is Chooser.ENGINE
    assert not row.seeded or row.chooser is Chooser.ENGINE


def test_a_token_that_is_listed_twice_is_found_in_one_pass_over_a_long_list() -> None:
    with pytest.raises(InvalidRequest, match=r"^recompute.tokens: 99999 is there more than once"):
        Recompute(tokens=(*range(100_000), 99_999))


@pytest.mark.parametrize(
    ("mode", "recompute", "num_private"),
    [
        (ReuseMode.FULL, Recompute(), 100),
        (ReuseMode.REORDERED, Recompute(), 0),
        (ReuseMode.COMPOSITE, Recompute(), 0),
        (ReuseMode.APE, Recompute(), 0),
        (ReuseMode.TOKENS, Recompute(tokens=(3, 50)), 2),
        (ReuseMode.EPIC, Recompute(), 20),
        (ReuseMode.RANDOM, Recompute(0.5), 50),
        (ReuseMode.CACHEBLEND, Recompute(0.1), 100),
        (ReuseMode.QUERY_ATTENTION, Recompute(0.1), 30),
    ],
)
def test_room_is_kept_for_as_many_tokens_as_a_mode_may_compute(
    mode: ReuseMode, recompute: Recompute, num_private: int
) -> None:
    chunks = (Chunk("a", tuple(range(60))), Chunk("b", tuple(range(40))))
    request = GenerateRequest("r", (), chunks, ((1,), (2, 3), (4,)), mode, recompute=recompute)
    assert token_selection.num_private(request) == num_private
