"""The file that holds the verdicts on one model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.verdict import FORM, MadeWith, Verdict
from shared.verdicts import choose, keep_verdict, read_verdicts, status_of, suspend_verdict, told

VERDICT = Verdict(ReuseMode.REORDERED, 0.01, "f" * 32, "0" * 32, "exact", kv_context=KvContext.DOCUMENT)
ISOLATED = replace(VERDICT, mode=ReuseMode.FULL, kv_context=KvContext.NONE)


def test_a_new_one_takes_the_place_of_its_predecessor_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "model" / "quilt.verdict.json"
    keep_verdict(path, VERDICT)
    keep_verdict(path, ISOLATED)
    assert read_verdicts(path) == (ISOLATED, VERDICT)
    again = replace(VERDICT, tolerance=0.02)
    keep_verdict(path, again)
    assert read_verdicts(path) == (again, ISOLATED)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_one_alone_as_it_was_written_before_is_read_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "quilt.verdict.json"
    ISOLATED.write(path)
    assert read_verdicts(path) == (ISOLATED,)
    keep_verdict(path, VERDICT)
    assert read_verdicts(path) == (VERDICT, ISOLATED)


def test_the_one_that_holds_is_chosen_or_what_the_newest_was_not_made_for_is_named() -> None:
    served = MadeWith(VERDICT.model, VERDICT.prefix, VERDICT.encoding)
    both = (VERDICT, ISOLATED)
    assert choose(both, served, conditioned=True) == (VERDICT, "")
    assert choose(both, served, conditioned=False) == (ISOLATED, "")
    assert choose((VERDICT,), served, conditioned=False) == (None, "kv_context")
    assert choose(both, replace(served, model="another"), conditioned=True) == (None, "model")
    assert choose((), served) == (None, "")


FULLY = replace(
    VERDICT,
    mode=ReuseMode.CACHECLIP,
    ratio=0.2,
    tokenizer="t" * 32,
    auxiliary="a" * 32,
    grouping="budget",
    reading="stitched",
    form=FORM,
)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"tokenizer": "other"},
        {"prefix": "other"},
        {"adapter": "other"},
        {"kv_context": KvContext.HEADER},
        {"encoding": "int8"},
        {"auxiliary": "other"},
        {"grouping": "paper"},
        {"reading": "each"},
    ],
)
def test_a_change_of_anything_that_it_depends_on_expires_it_and_is_named(change: dict[str, Any]) -> None:
    served = FULLY.made_with
    assert choose([FULLY], served, conditioned=True) == (FULLY, "")
    assert status_of([FULLY], served) == "cacheclip 0.2 (document)"
    (name,) = change
    changed = replace(served, **change)
    assert choose([FULLY], changed, conditioned=True) == (None, name)
    assert status_of([FULLY], changed) == f"expired: it was made for another {name}; run `kvquilt gate`"


def test_what_only_cacheclip_depends_on_expires_no_other_verdict() -> None:
    verdict = replace(FULLY, mode=ReuseMode.REORDERED, ratio=None)
    served = replace(verdict.made_with, auxiliary="other", grouping="paper")
    assert choose([verdict], served, conditioned=True) == (verdict, "")


def test_all_that_has_changed_is_named() -> None:
    served = replace(FULLY.made_with, tokenizer="other", encoding="int8")
    assert choose([FULLY], served, conditioned=True) == (None, "tokenizer, encoding")


def test_one_of_an_older_form_holds_for_what_it_names_and_status_says_so() -> None:
    served = replace(FULLY.made_with)
    assert choose([VERDICT], served, conditioned=True) == (VERDICT, "")
    assert status_of([VERDICT], served) == (
        "reordered (document; of an older form, which does not name its tokenizer and selector: run "
        "`kvquilt gate`)"
    )
    assert status_of([], served) == "none"
    assert status_of([FULLY, replace(ISOLATED, form=FORM)], served) == "cacheclip 0.2 (document), full (none)"


def test_one_of_a_later_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps([asdict(VERDICT) | {"form": FORM + 1}]), encoding="utf-8")
    with pytest.raises(ConfigError, match="form: 3 is not known to this version"):
        read_verdicts(tmp_path / "v.json")


def test_an_operator_is_told_the_newest_for_each_setting() -> None:
    older = replace(VERDICT, mode=ReuseMode.CACHECLIP, ratio=0.2)
    assert told((VERDICT, ISOLATED, older)) == "reordered (document), full (none)"
    assert told((older,)) == "cacheclip 0.2 (document)"
    assert told(()) == ""


def test_a_suspended_one_says_so_until_another_is_made(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    keep_verdict(path, VERDICT)
    keep_verdict(path, replace(ISOLATED, form=FORM))
    assert suspend_verdict(path, VERDICT.id, "agreement 50 % of 20 questions")
    assert suspend_verdict(path, VERDICT.id, "agreement 40 % of 30 questions")
    assert not suspend_verdict(path, "other", "agreement 40 % of 30 questions")
    assert not suspend_verdict(tmp_path / "none.json", VERDICT.id, "agreement 40 % of 30 questions")
    verdicts = read_verdicts(path)
    assert [verdict.id for verdict in verdicts] == [replace(ISOLATED, form=FORM).id, VERDICT.id]
    assert told(verdicts) == "reordered (document, suspended), full (none)"
    assert status_of(verdicts, VERDICT.made_with) == (
        "reordered (document) is suspended by shadow: agreement 50 % of 20 questions; run `kvquilt gate`, "
        "full (none)"
    )
    anew = replace(VERDICT, form=FORM, made_s=5.0)
    assert anew.id != VERDICT.id
    keep_verdict(path, anew)
    assert status_of(read_verdicts(path), VERDICT.made_with) == "reordered (document), full (none)"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (json.dumps([asdict(VERDICT), 3]), "v.json: number 2: expected an object, got 3"),
        (json.dumps([asdict(VERDICT) | {"mode": "magic"}]), "v.json: number 1: mode: 'magic' is not one of"),
        (json.dumps([asdict(VERDICT) | {"agreement": 1.5}]), "v.json: number 1: agreement: 1.5 is out of"),
        ("{", "v.json: cannot be read as JSON"),
        ("3", "v.json: expected an object"),
        ("[]", "v.json: expected an object"),
    ],
)
def test_a_wrong_one_is_named_and_nothing_is_written_over_it(tmp_path: Path, written: str, says: str) -> None:
    path = tmp_path / "v.json"
    path.write_text(written, encoding="utf-8")
    for read in (read_verdicts, lambda path: keep_verdict(path, VERDICT)):
        with pytest.raises(ConfigError) as error:
            read(path)
        assert error.value.detail.startswith(says)
    assert path.read_text(encoding="utf-8") == written


def test_where_it_cannot_be_written_the_remedy_is_told(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("a file", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cannot be written: .*name another file.*generator\.verdict"):
        keep_verdict(tmp_path / "model" / "v.json", VERDICT)
