"""Every error of kvquilt has a status, and comes back out of it as something that callers catch."""

from __future__ import annotations

import ast
import importlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from shared import errors
from shared.errors import InternalError, InvalidRequest, KvquiltError, Overloaded, Unavailable
from shared.status import HTTP_STATUS_OF, STATUS_OF, from_status, status_of, to_status

ROOT = Path(__file__).resolve().parents[2]


def _classes() -> Iterator[tuple[str, str, set[str]]]:
    """Module, name and names of the bases of every class that stands in our sources."""
    for package in ("shared", "services", "cluster"):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                    yield module, node.name, bases


def _errors() -> list[type[KvquiltError]]:
    """All classes of the tree, those that only one service knows included; importing everything would load
    torch and Ray."""
    classes, kinds = list(_classes()), {"KvquiltError"}
    while grown := {name for _, name, bases in classes if bases & kinds} - kinds:
        kinds |= grown
    found = {getattr(importlib.import_module(module), name) for module, name, _ in classes if name in kinds}
    return sorted(found, key=lambda kind: str(kind.__qualname__))


ERRORS = _errors()


def _subclasses(kind: type[KvquiltError]) -> set[type[KvquiltError]]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


def test_all_classes_of_the_tree_are_looked_at() -> None:
    ours = {kind for kind in _subclasses(KvquiltError) if kind.__module__.startswith(("shared", "services"))}
    assert ours <= set(ERRORS)
    assert len(ERRORS) > len(STATUS_OF)  # some are known to one service only


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_reaches_the_caller_as_one_that_is_caught_and_repeated_alike(
    kind: type[KvquiltError],
) -> None:
    raised = kind("say what to do")
    name, details = to_status(raised)
    told = from_status(name, raised.detail, details)
    assert isinstance(raised, type(told)) or kind is KvquiltError
    assert (told.code, told.retryable, told.detail) == (kind.code, kind.retryable, "say what to do")
    assert name == status_of(type(told))


def test_every_error_that_callers_know_has_a_row_of_its_own() -> None:
    assert set(STATUS_OF) == {kind for kind in ERRORS if kind.__module__ == errors.__name__}


def test_every_status_has_one_over_http() -> None:
    assert set(HTTP_STATUS_OF) == set(STATUS_OF.values())
    assert all(400 <= status < 600 for status in HTTP_STATUS_OF.values())


def test_an_error_that_nobody_foresaw_has_the_status_of_the_nearest_class_above_it() -> None:
    class NoFloppyInDrive(Unavailable):
        pass

    class NoLabelOnFloppy(NoFloppyInDrive):
        pass

    assert status_of(NoLabelOnFloppy) == "UNAVAILABLE"
    assert type(from_status(*_told(NoLabelOnFloppy("insert it")))) is Unavailable
    assert type(from_status(*_told(KvquiltError("a bug")))) is InternalError


def _told(error: KvquiltError) -> tuple[str, str, bytes]:
    name, details = to_status(error)
    return name, error.detail, details


def test_when_to_call_again_reaches_the_caller() -> None:
    name, details = to_status(Overloaded("too often", retry_after_s=2.5))
    told = from_status(name, "too often", details)
    assert (type(told), told.detail, told.retry_after_s) == (Overloaded, "too often", 2.5)
    again = pickle.loads(pickle.dumps(told))  # as between services
    assert again.retry_after_s == 2.5
    assert from_status(*_told_without_a_time()).retry_after_s is None


def _told_without_a_time() -> tuple[str, str, bytes]:
    name, details = to_status(Overloaded("full"))
    return name, "full", details


@pytest.mark.parametrize("quoted", ["x" * 900_000, "\u20ac" * 3000])
def test_what_an_error_quotes_at_length_leaves_room_for_its_trailer(quoted: str) -> None:
    error = InvalidRequest(f"mode: {quoted!r} is not one of full, auto; name one")
    _, details = to_status(error)
    percent_encoded, base64 = len(quote(error.detail)), len(details) * 4 // 3
    assert percent_encoded + base64 < 8192
    assert error.detail.startswith("mode: '")
    assert error.detail.endswith("is not one of full, auto; name one")


def test_a_detail_of_usual_length_is_told_whole() -> None:
    said = "collection: " + "\u00e9" * 700
    assert InvalidRequest(said).detail == said
