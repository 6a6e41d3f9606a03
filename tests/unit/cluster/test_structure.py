"""The list of modules in docs/structure.md is complete and says what the modules say."""

from __future__ import annotations

import re

from cluster.paths import PROJECT_ROOT
from cluster.structure import ROOMS, listing, modules, renewed, sentence

TEXT = (PROJECT_ROOT / "docs" / "structure.md").read_text(encoding="utf-8")


def test_the_committed_list_is_fresh() -> None:
    assert renewed(TEXT) == TEXT, "run `make docs`"


def test_every_module_stands_in_it_exactly_once() -> None:
    ours = {
        p.relative_to(PROJECT_ROOT).as_posix() for room in ROOMS for p in (PROJECT_ROOT / room).rglob("*.py")
    }
    listed = re.findall(r"^- \[`[\w.]+`\]\(\.\./([\w/.]+)\): ", listing(), re.MULTILINE)
    assert sorted(listed) == sorted(ours)


def test_every_module_says_what_it_does_in_one_sentence() -> None:
    silent = [module.as_posix() for module in modules() if not sentence(module)]
    assert not silent, f"modules without a docstring: {silent}"


def test_what_is_written_by_hand_stays_and_names_files_that_exist() -> None:
    by_hand = TEXT.replace(listing(), "")
    assert "## To add" in by_hand
    named = re.findall(r"`((?:services|shared|cluster|load_tests|protos|docs|helm|tests)/[\w/.-]+)`", by_hand)
    assert named
    missing = [name for name in named if not (PROJECT_ROOT / name).exists()]
    assert not missing, f"docs/structure.md names what is not there: {missing}"
