"""The file that holds the verdicts on one model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.verdict import Verdict
from shared.verdicts import choose, keep_verdict, read_verdicts, told

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
    of = (VERDICT.model, VERDICT.prefix, VERDICT.encoding)
    of_titles = replace(VERDICT, kv_context=KvContext.HEADER)
    all_three = (VERDICT, of_titles, ISOLATED)
    for verdict in all_three:
        assert choose(all_three, *of, contexts=[verdict.kv_context]) == (verdict, "")
    assert choose(all_three[1:], *of, contexts=[KvContext.HEADER, KvContext.DOCUMENT]) == (of_titles, "")
    assert choose((VERDICT, of_titles), *of, contexts=[KvContext.NONE]) == (None, "kv_context")
    assert choose(all_three, "another", *of[1:], contexts=[KvContext.HEADER]) == (None, "model")
    assert choose((), *of) == (None, "")


def test_an_operator_is_told_the_newest_for_each_setting() -> None:
    older = replace(VERDICT, mode=ReuseMode.CACHECLIP, ratio=0.2)
    assert told((VERDICT, ISOLATED, older)) == "reordered (document), full (none)"
    assert told((older,)) == "cacheclip 0.2 (document)"
    assert told(()) == ""


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (json.dumps([asdict(VERDICT), 3]), "v.json: number 2: expected an object, got 3"),
        (json.dumps([asdict(VERDICT) | {"mode": "magic"}]), "v.json: number 1: mode: 'magic' is not one of"),
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
