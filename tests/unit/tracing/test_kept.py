"""Spans that are kept on the machine: where, how many, and how they are shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from cluster.cli.trace_command import gathered
from cluster.cli.trace_tree import spans_of, trace_lines, traces_table, trees_of
from shared.config import load
from shared.errors import ConfigError, NotFound
from shared.tracing.config import TracingConfig
from shared.tracing.kept import KeptSpan, SpanFile, kept_spans
from shared.tracing.provider import KeepingExporter, has_endpoint, otlp_exporter, start_tracing
from shared.tracing.spans import Recording, record_by, span
from tests.recorded_spans import CALLER_ID, TRACE_ID, traced


def kept(
    name: str, span_id: str, parent_id: str = "", began: int = 0, ended: int = 9, **told: object
) -> KeptSpan:
    attributes = {"kvquilt.request_id": "r1"} | {f"kvquilt.{key}": value for key, value in told.items()}
    return KeptSpan(
        TRACE_ID, span_id, parent_id, "gateway", name, began * 10**6, ended * 10**6, "", attributes
    )


def test_what_is_kept_is_read_again_and_its_owners_alone(tmp_path: Path) -> None:
    file = SpanFile(tmp_path / "traces", "gateway", 1 << 20)
    spans = [kept("answer", "a", began=1), kept("retrieval", "b", "a", chunks=3)]
    file.write(spans[:1])
    file.write(spans[1:])
    (path,) = (tmp_path / "traces").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    path.write_text(path.read_text() + '{"half": ')
    assert list(kept_spans(tmp_path / "traces")) == spans


def test_no_more_are_kept_than_there_is_room_for(tmp_path: Path) -> None:
    file = SpanFile(tmp_path, "gateway", 2_000)
    for number in range(100):
        file.write([kept(f"span {number}", f"{number:016x}")])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2_000
    names = [found.name for found in kept_spans(tmp_path)]
    assert "span 99" in names
    assert "span 0" not in names


def test_of_what_earlier_processes_of_a_service_left_the_oldest_goes_first(
    tmp_path: Path,
) -> None:
    for age, name in enumerate(["gateway-1.jsonl", "gateway-2.jsonl", "generator-1.jsonl"]):
        (tmp_path / name).write_text("x" * 600)
        os.utime(tmp_path / name, (age, age))
    SpanFile(tmp_path, "gateway", 1_500)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gateway-2.jsonl", "generator-1.jsonl"]


def test_a_file_that_cannot_be_written_costs_the_spans_alone(tmp_path: Path) -> None:
    file = SpanFile(tmp_path / "traces", "gateway", 1_000)
    (tmp_path / "traces").rmdir()
    file.write([kept("lost", "a")])


def test_spans_of_a_process_are_kept_as_they_were(tmp_path: Path) -> None:
    exporter = KeepingExporter(SpanFile(tmp_path, "selector", 1 << 20), "selector")
    before = record_by(Recording(SimpleSpanProcessor(exporter), Resource.get_empty()))
    try:
        with pytest.raises(NotFound), span(traced("r7"), "score", {"kvquilt.names": ("a", "b")}):
            raise NotFound("a secret")
    finally:
        record_by(before)
    (found,) = kept_spans(tmp_path)
    assert (found.trace_id, found.parent_id) == (TRACE_ID, CALLER_ID)
    assert (found.service, found.name, found.error) == ("selector", "score", "NOT_FOUND")
    assert found.ended_ns >= found.began_ns > 0
    assert found.attributes["kvquilt.names"] == ["a", "b"]
    assert "secret" not in str(found)


def test_a_tree_shows_when_what_began_and_whose_it_is() -> None:
    spans = [
        kept("decode", "c", "b", 30, 40, tokens=7),
        kept("answer", "a", "the caller's", 10, 50),
        kept("chat", "b", "a", 20, 45, reuse="cacheclip"),
    ]
    head, *lines = trace_lines(trees_of(spans))
    assert head.split() == ["began", "took", "ms", "service", "span"]
    assert [line.split() for line in lines] == [
        ["0.0", "40.0", "gateway", "answer"],
        ["10.0", "25.0", "gateway", "chat", "reuse=cacheclip"],
        ["20.0", "10.0", "gateway", "decode", "tokens=7"],
    ]
    assert lines[2].index("decode") - lines[0].index("answer") == 4


def test_a_trace_is_found_by_its_id_or_by_a_requests() -> None:
    of_trace = [kept("answer", "a"), KeptSpan(TRACE_ID, "b", "a", "agent", "open", 0, 1, "", {})]
    other = KeptSpan("f" * 32, "c", "", "gateway", "answer", 0, 1, "", {"kvquilt.request_id": "r2"})
    assert spans_of([*of_trace, other], "r1") == of_trace
    assert spans_of([*of_trace, other], TRACE_ID) == of_trace
    assert spans_of([*of_trace, other], "r3") == []
    assert traces_table([*of_trace, other], 1).row_count == 1


def test_who_has_asked_waits_until_no_more_spans_come() -> None:
    now, found = [0.0], [kept("answer", "a")]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] < 1.0:
            found.append(kept("more", f"{now[0]}"))

    assert gathered(lambda: list(found), lambda: now[0], sleep) == found
    assert 1.0 <= now[0] < 2.0
    now[0] = 10.0
    assert gathered(list, lambda: now[0], sleep) == []
    assert now[0] < 16.0


class TestSettings:
    def test_an_endpoint_is_that_of_the_settings_or_of_the_environment(self) -> None:
        assert not has_endpoint(TracingConfig(), {})
        assert has_endpoint(TracingConfig("http://collector:4317"), {})
        assert has_endpoint(TracingConfig(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"})
        assert has_endpoint(TracingConfig(), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4317"})

    @pytest.mark.parametrize("endpoint", ["http://collector:4318", "http://collector:4318/v1/traces"])
    def test_over_http_spans_go_to_their_path(self, endpoint: str) -> None:
        exporter = otlp_exporter(TracingConfig(endpoint, "http/protobuf"), {})
        assert exporter._endpoint == "http://collector:4318/v1/traces"  # type: ignore[attr-defined]

    def test_without_an_endpoint_and_a_directory_nothing_is_recorded(self, tmp_path: Path) -> None:
        before = record_by(None)
        try:
            start_tracing("gateway", TracingConfig(directory="", sample=1.0), {})
            assert record_by(None) is None
            start_tracing("gateway", TracingConfig(directory=str(tmp_path)), {"OTEL_SDK_DISABLED": "true"})
            assert record_by(None) is None
            (tmp_path / "file").write_text("")
            start_tracing("gateway", TracingConfig(directory=str(tmp_path / "file" / "traces")), {})
            assert record_by(None) is None
        finally:
            record_by(before)

    def test_kept_on_this_machine_are_those_that_callers_ask_for(self, tmp_path: Path) -> None:
        before = record_by(None)
        try:
            start_tracing("gateway", TracingConfig(directory=str(tmp_path), content=True), {})
            recording = record_by(None)
            assert recording is not None
            assert (recording.share, recording.content) == (0.0, True)
        finally:
            record_by(before)

    @pytest.mark.parametrize(
        ("values", "says"),
        [
            ({"sample": 1.5}, "tracing.sample: must be 0 to 1, got 1.5"),
            ({"sample": float("nan")}, "tracing.sample: must be 0 to 1, got nan"),
            ({"endpoint": "collector:4317"}, "tracing.endpoint: must be http://HOST:PORT"),
            ({"keep_bytes": -1}, "tracing.keep_bytes: must not be negative, got -1"),
            ({"protocol": "carrier pigeon"}, "tracing.protocol: 'carrier pigeon' is not one of"),
        ],
    )
    def test_a_wrong_setting_is_named(self, values: dict[str, object], says: str) -> None:
        with pytest.raises(ConfigError) as refusal:
            load(TracingConfig, values, "tracing.")
        assert refusal.value.detail.startswith(says)
