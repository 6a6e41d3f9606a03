"""The file that requests of mode ``auto`` go by."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.verdict import MadeWith, Tally, Verdict

VERDICT = Verdict(ReuseMode.CACHECLIP, 0.01, "f" * 32, "0" * 32, "exact", 0.2)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    for verdict in (VERDICT, replace(VERDICT, mode=ReuseMode.FULL, ratio=None)):
        verdict.write(tmp_path / "verdict.json")
        assert Verdict.read(tmp_path / "verdict.json") == verdict


def test_it_holds_for_its_model_prefix_and_encoding_and_names_what_differs() -> None:
    own: dict[str, Any] = {"model": VERDICT.model, "prefix": VERDICT.prefix, "encoding": VERDICT.encoding}
    assert VERDICT.misfits(MadeWith(**own)) == ()
    for name in own:
        assert VERDICT.misfits(MadeWith(**own | {name: "another"})) == (name,)


def test_it_holds_for_what_its_kv_was_computed_behind(tmp_path: Path) -> None:
    own = MadeWith(VERDICT.model, VERDICT.prefix, VERDICT.encoding)
    for context in KvContext:
        verdict = replace(VERDICT, kv_context=context)
        fits = context is not KvContext.NONE
        assert verdict.misfits(own, conditioned=fits) == verdict.misfits(own) == ()
        assert verdict.misfits(own, conditioned=not fits) == ("kv_context",)


def test_a_verdict_of_an_earlier_version_is_of_kv_that_is_alone(tmp_path: Path) -> None:
    written = {k: v for k, v in asdict(VERDICT).items() if k not in ("kv_context", "recompute", "asked")}
    (tmp_path / "v.json").write_text(json.dumps(written), encoding="utf-8")
    assert Verdict.read(tmp_path / "v.json") == VERDICT
    assert VERDICT.kv_context is KvContext.NONE


def test_what_was_asked_is_kept(tmp_path: Path) -> None:
    asked = {"spread": Tally(400, 50, {"full": (0.95, 0.93, 0.97)})}
    reordered = replace(VERDICT, mode=ReuseMode.REORDERED, ratio=None)
    verdict = replace(reordered, kv_context=KvContext.DOCUMENT, recompute=False, asked=asked)
    verdict.write(tmp_path / "v.json")
    assert Verdict.read(tmp_path / "v.json") == verdict


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mode": "magic"}, "v.json: mode: 'magic' is not one of"),
        ({"mode": "auto"}, "v.json: mode: 'auto' is not one of full"),
        ({"mode": "tokens"}, "v.json: mode: 'tokens' is no verdict"),
        ({"ratio": 1.5}, "v.json: ratio: 1.5 is out of range"),
        ({"ratio": float("nan")}, "v.json: ratio: nan is out of range"),
        ({"ratio": "much"}, "v.json: ratio: expected float"),
        ({"mode": "ape"}, "v.json: ratio: mode ape does not go by a ratio"),
        ({"tolerance": -1}, "v.json: tolerance: -1.0 is out of range"),
        ({"tolerance": float("nan")}, "v.json: tolerance: nan"),
        ({"model": ""}, "v.json: model: is empty"),
        ({"kv_context": "page"}, "v.json: kv_context: 'page' is not one of document, header, none"),
        ({"recompute": False}, "v.json: recompute: mode cacheclip recomputes"),
        (
            {"asked": {"spread": {"num_questions": "many"}}},
            "v.json: asked.spread.num_questions: expected",
        ),
        ({"prefx": "0"}, "v.json: prefx: unknown setting; did you mean 'v.json: prefix'"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = tmp_path / "v.json"
    path.write_text(json.dumps(asdict(VERDICT) | changes), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        Verdict.read(path)
    assert error.value.detail.startswith(says)


def test_bytes_that_are_no_text_and_folders_are_no_verdicts(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_bytes(b"\xff\xfe{")
    for path in (tmp_path / "v.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read as JSON"):
            Verdict.read(path)
