"""Structured logs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from shared import log
from shared.errors import InvalidRequest, NotFound
from shared.log import LogConfig
from shared.request import RequestContext
from tests.recorded_spans import TRACE_ID, TRACEPARENT


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)


def test_a_json_line_names_service_request_tenant_and_extras(stream: io.StringIO) -> None:
    log.configure("gateway", LogConfig("INFO", "json"), stream)
    log.bind(RequestContext.create("r-7", "acme"))
    logging.getLogger("here").info("searched %d", 3, extra={"took_ms": 1.5})
    line = json.loads(stream.getvalue())
    assert line["message"] == "searched 3"
    assert (line["service"], line["level"], line["logger"]) == ("gateway", "INFO", "here")
    assert (line["request_id"], line["tenant"], line["took_ms"]) == ("r-7", "acme", 1.5)


def test_records_of_a_request_that_has_a_trace_name_it(stream: io.StringIO) -> None:
    log.configure("gateway", LogConfig("INFO", "json"), stream)
    log.bind(RequestContext.create("r-7", traceparent=TRACEPARENT))
    logging.getLogger("here").info("traced")
    log.bind(RequestContext.create("r-8"))
    logging.getLogger("here").info("not traced")
    traced, quiet = map(json.loads, stream.getvalue().splitlines())
    assert (traced["request_id"], traced["trace_id"]) == ("r-7", TRACE_ID)
    assert "trace_id" not in quiet


def test_an_exception_stays_within_one_json_line(stream: io.StringIO) -> None:
    log.configure("gateway", LogConfig("INFO", "json"), stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("here").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["error"]


def test_what_an_exception_quotes_is_left_out_and_its_places_are_not(stream: io.StringIO) -> None:
    log.configure("gateway", LogConfig("INFO", "json"), stream)
    try:
        {}["Orla Venn"]
    except KeyError:
        logging.getLogger("here").exception("failed")
    error = json.loads(stream.getvalue())["error"]
    assert "Orla" not in error
    assert "KeyError: '…'" in error
    assert f'File "{__file__}"' in error


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("collection: 'Orla Venn' is no name", "collection: '…' is no name"),
        ("the caller's \"secret\" is 'it\\'s' there", "the caller's '…' is '…' there"),
        ("kept “Orla Venn”", "kept '…'"),
        ("nothing of the caller's is quoted, nor of the others' words", None),
    ],
)
def test_what_an_error_quotes_is_somebodys_words(said: str, left: str | None) -> None:
    assert log.unquoted(said) == (said if left is None else left)


def test_ray_serve_tells_the_code_alone_of_a_request_that_failed(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray, imported by another test, keeps its messages to itself.
    monkeypatch.setattr(logging.getLogger("ray.serve"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("ray.serve"), "parent", logging.getLogger())
    log.configure("gateway", LogConfig("INFO", "json"), stream)
    for error in (NotFound("collection 'Orla Venn' does not exist"), ValueError("a bug")):
        try:
            raise error
        except Exception:
            logging.getLogger("ray.serve").exception("Request failed.")
    known, unknown = map(json.loads, stream.getvalue().splitlines())
    assert known["message"] == "Request failed. NOT_FOUND"
    assert "error" not in known
    assert "ValueError: a bug" in unknown["error"]


def test_text_has_the_same_for_eyes(stream: io.StringIO) -> None:
    log.configure("kv_store", LogConfig("DEBUG", "text"), stream)
    logging.getLogger("here").debug("opened", extra={"chunks": 2})
    assert "DEBUG   kv_store: opened" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("chunks=2")


def test_what_a_caller_says_neither_begins_a_line_nor_steers_a_terminal(stream: io.StringIO) -> None:
    log.configure("gateway", LogConfig("INFO", "text"), stream)
    logging.getLogger("here").info("refused %s", "a\n2026-01-01 INFO b: \x1b[2Jforged\u2028")
    (line,) = stream.getvalue().splitlines()
    assert "refused a\\x0a2026-01-01 INFO b: \\x1b[2Jforged\\x2028" in line


@pytest.mark.parametrize("request_id", ["a\nb", "\x1b[2J", "a b", "é", "r" * 129, "a\0"])
def test_a_request_id_is_one_word_of_visible_ascii(request_id: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^meta.request_id: ") as refusal:
        RequestContext.create(request_id)
    assert refusal.value.detail.isprintable()
    assert RequestContext.create("trace-7/5:a_b.c#1").request_id == "trace-7/5:a_b.c#1"


def test_configuring_again_replaces_the_first_setup(stream: io.StringIO) -> None:
    log.configure("a", LogConfig("INFO", "text"), stream)
    log.configure("b", LogConfig("WARNING", "text"), stream)
    logging.getLogger("here").info("quiet")
    logging.getLogger("here").warning("loud")
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["b:"]
