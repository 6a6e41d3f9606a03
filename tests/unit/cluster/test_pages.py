"""The pages for readers name commands, options, settings and pages that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cluster.cli.main import main
from cluster.paths import PROJECT_ROOT
from cluster.reference import reference

DOCS = PROJECT_ROOT / "docs"
PAGES = [PROJECT_ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PLAIN = [DOCS / "overview.md", DOCS / "questions.md"]
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_AT_LINE_START = re.compile(r"^ *kvquilt (.+)$", re.MULTILINE)
_INDENTED = re.compile(r"^ {4,}kvquilt (.+)$", re.MULTILINE)
_IN_TEXT = re.compile(r"`kvquilt ([^`]+)`")
_SETTING = re.compile(r"`((?:prompt|gateway|ingestion|retrieval|kv_store|generator)\.[\w.]+)[`:]")
_LINK = re.compile(r"\]\(((?!https?:)[^)#]+)(?:#[^)]*)?\)")


def _commands(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for block in _FENCED.findall(text):
        yield from _AT_LINE_START.findall(block)
    prose = _FENCED.sub("", text)
    yield from _INDENTED.findall(prose)
    yield from _IN_TEXT.findall(prose)


def _unknown(line: str) -> str:
    """The first word of a command line that is no command or option; empty: there is none."""
    at: click.Command = main
    for word in re.split(r"\s+", re.split(r"\s{2,}|[|<…]| && ", line.strip())[0].strip()):
        name = word.partition("=")[0]
        if isinstance(at, click.Group) and not name.startswith("-"):
            if name not in at.commands:
                return "" if name.isupper() or "/" in name or ":" in name else name
            at = at.commands[name]
        elif name.startswith("--") and name != "--help":
            params = [*at.params, *main.params]
            if name not in {option for one in params for option in (*one.opts, *one.secondary_opts)}:
                return name
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_is_one(page: Path) -> None:
    unknown = {line: word for line in _commands(page) if (word := _unknown(line))}
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_that_a_page_names_is_there(page: Path) -> None:
    named = _LINK.findall(page.read_text(encoding="utf-8"))
    missing = [name for name in named if not (page.parent / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.name)
def test_every_setting_that_the_plain_pages_name_is_one(page: Path) -> None:
    known = reference()
    named = _SETTING.findall(page.read_text(encoding="utf-8"))
    assert named
    missing = [name for name in named if f"`{name}`" not in known and f"### {name}\n" not in known]
    assert not missing


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ("ask QUESTION -c NAME --reuse full", ""),
        ("--target HOST:PORT store stats", ""),
        ("fly", "fly"),
        ("store sink", "sink"),
        ("up --hurry", "--hurry"),
    ],
)
def test_what_is_no_command_is_noticed(line: str, unknown: str) -> None:
    assert _unknown(line) == unknown
