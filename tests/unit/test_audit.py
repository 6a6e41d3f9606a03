"""The audit log: who did what, a line each, and a chain that shows what was changed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from shared.audit import Actor, AuditConfig, AuditLog, files_of, read_lines, verify

KEY = b"k" * 32
ALICE = Actor("key/alice", "acme", "r1")


def log_in(directory: Path, service: str = "ingestion", max_bytes: int = 64 << 10, kept: int = 3) -> AuditLog:
    return AuditLog(service, AuditConfig(str(directory), max_bytes, kept), KEY, clock=lambda: 1_700_000_000.5)


def test_a_line_says_who_did_what_and_is_its_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    log_in(directory).record("delete", ALICE, "NOT_FOUND", collection="handbook", document_ids=["a\nb"])
    (line,) = (directory / "ingestion.jsonl").read_text().splitlines()
    fields = json.loads(line)
    assert len(fields.pop("chain")) == 32
    assert fields == {
        "time": "2023-11-14T22:13:20.500Z",
        "service": "ingestion",
        "action": "delete",
        "principal": "key/alice",
        "tenant": "acme",
        "request_id": "r1",
        "outcome": "NOT_FOUND",
        "collection": "handbook",
        "document_ids": ["a\nb"],
    }
    assert stat.S_IMODE((directory / "ingestion.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_several_writers_of_one_file_and_services_beside_each_other_fit(tmp_path: Path) -> None:
    for n in range(4):
        log_in(tmp_path).record("ingest", Actor(f"p{n}", "t"))
        log_in(tmp_path, "kv_store").record("gc", ALICE)
    assert [line["principal"] for line in read_lines(tmp_path) if line["action"] == "ingest"] == [
        "p0",
        "p1",
        "p2",
        "p3",
    ]
    assert list(verify(tmp_path, [KEY])) == []


def test_files_take_turns_and_the_oldest_goes(tmp_path: Path) -> None:
    audit = log_in(tmp_path)
    for n in range(400):
        audit.record("ingest", ALICE, number=n, filling="x" * 1000)
    names = [path.name for path in files_of(tmp_path)["ingestion"]]
    assert names == ["ingestion.2.jsonl", "ingestion.1.jsonl", "ingestion.jsonl"]
    numbers = [line["number"] for line in read_lines(tmp_path)]
    assert numbers == list(range(numbers[0], 400))
    assert numbers[0] > 0
    assert list(verify(tmp_path, [KEY])) == []


@pytest.mark.parametrize("change", ["edit", "drop", "swap", "forge"])
def test_what_was_changed_shows(tmp_path: Path, change: str) -> None:
    audit = log_in(tmp_path)
    for n in range(4):
        audit.record("delete", ALICE, number=n)
    path = tmp_path / "ingestion.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "edit":
        lines[1] = lines[1].replace(b"alice", b"mallo")
    elif change == "drop":
        del lines[1]
    elif change == "swap":
        lines[1:3] = lines[2:0:-1]
    else:
        forger = AuditLog("ingestion", AuditConfig(str(tmp_path / "forged")), b"another key")
        forger.record("delete", Actor("key/bob", "acme"))
        lines[0] = (tmp_path / "forged" / "ingestion.jsonl").read_bytes()
    path.write_bytes(b"".join(lines))
    assert list(verify(tmp_path, [KEY]))


def test_a_line_that_a_crash_cut_short_is_named_and_the_next_ones_fit(tmp_path: Path) -> None:
    audit = log_in(tmp_path)
    audit.record("ingest", ALICE, number=0)
    path = tmp_path / "ingestion.jsonl"
    with open(path, "ab") as file:
        file.write(b'{"time":"20')
    audit.record("ingest", ALICE, number=1)
    assert [line["number"] for line in read_lines(tmp_path)] == [0, 1]
    assert list(verify(tmp_path, [KEY])) == ["ingestion.jsonl:2: is no line that was recorded"]


def test_a_full_disk_keeps_nobody_from_acting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "audit"
    blocked.write_text("a file where the directory should be")
    log_in(blocked).record("delete", ALICE)
    assert "delete by key/alice is not on record" in caplog.text
