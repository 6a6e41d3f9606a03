"""What a running stack tells Prometheus, and which alerts that would fire."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster.compose import APPLICATIONS
from load_tests.servers.prometheus import PrometheusPrograms
from shared.metrics import table
from tests.alerts import check_firing
from tests.e2e.conftest import COLLECTION, K
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
QUESTION = "Who founded Tamdal?"
KNOWN = {series for one in table.ALL for series in one.series}


def scraped(stack: Stack) -> str:
    with urllib.request.urlopen(f"{stack.state.http}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def total(text: str, name: str, **labels: str) -> float:
    return sum(v for (n, of), v in values(text).items() if n == name and labels.items() <= set(of))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that neither ends nor answers."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_every_service_tells_its_metrics_and_work_moves_them(stack: Stack, tmp_path: Path) -> None:
    before = scraped(stack)
    (tmp_path / "ford.md").write_text("# Ford\n\nThe ford of Ostrel is crossed on foot.", encoding="utf-8")
    ingested = stack.cli("ingest", str(tmp_path / "ford.md"), "-c", "metrics")
    assert ingested.returncode == 0, ingested.stdout + ingested.stderr
    asked = stack.cli("ask", QUESTION, "-c", COLLECTION, "-k", K, "--reuse", "cacheclip")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    after = scraped(stack)
    told = {dict(labels).get("application") for _, labels in values(after)}
    assert told - {None} == set(APPLICATIONS)
    moved = {
        "kvquilt_answers_total": {"code": "OK"},
        "kvquilt_answer_time_to_first_token_seconds_count": {},
        "kvquilt_time_to_first_token_seconds_count": {},
        "kvquilt_prompt_tokens_total": {},
        "kvquilt_generation_tokens_total": {},
        "kvquilt_rpcs_total": {"application": "retrieval", "method": "Search"},
        "kvquilt_select_seconds_count": {},
        "kvquilt_recomputed_tokens_total": {},
        "kvquilt_ingested_documents_total": {"outcome": "stored"},
    }
    for name, labels in moved.items():
        assert total(after, name, **labels) > total(before, name, **labels), name
    assert total(after, "kvquilt_store_documents") == total(before, "kvquilt_store_documents") + 1
    assert total(after, "kvquilt_verdict") == 1
    assert total(after, "kvquilt_service_ready") == len(APPLICATIONS) - 1
    assert total(after, "kvquilt_metrics_processes", state="silent") == 0
    seen = stack.cli("top", "--once", "--interval", "0.1", "--output", "json")
    assert seen.returncode == 0, seen.stdout + seen.stderr
    figures = json.loads(seen.stdout)
    assert set(figures["services"]) == set(APPLICATIONS)
    assert figures["documents"] == total(after, "kvquilt_store_documents")
    assert "was not recorded" not in Path(stack.state.log_path).read_text(encoding="utf-8", errors="replace")


def test_all_that_is_told_is_in_the_list_and_nothing_is_said_of_texts(stack: Stack) -> None:
    text = scraped(stack)
    names = {name for name, _ in values(text)}
    assert {name for name in names if not name.startswith("process_")} <= KNOWN
    assert "Tamdal" not in text
    assert COLLECTION not in text
    labels = {name for _, of in values(text) for name, _ in of}
    assert "tenant" not in labels


def test_an_alert_fires_when_the_store_stops(
    stack: Stack, prometheus: PrometheusPrograms, tmp_path: Path
) -> None:
    healthy = scraped(stack)
    with stopped(stack.agent_pid()):
        broken = scraped(stack)
    assert total(broken, "kvquilt_service_ready", service="kv_store") == 0
    fire = {"KvquiltStoreUnavailable", "KvquiltMetricsSilent"}
    for text, expected in ((healthy, set[str]()), (broken, fire)):
        check_firing(prometheus, tmp_path, lasting(text), expected, "20m", "|".join(sorted(fire)))


def lasting(text: str) -> dict[str, str]:
    """The samples of one look, as if it had been like that for half an hour."""
    return {
        f"{name}{{{','.join(f'{k}={v!r}' for k, v in sorted(labels))}}}".replace("'", '"'): f"{value}x30"
        for (name, labels), value in values(text).items()
        if name.startswith("kvquilt_")
    }
