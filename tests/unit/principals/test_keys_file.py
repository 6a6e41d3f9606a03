from __future__ import annotations

import datetime
import json
import os
import stat
import threading
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_id, new_key
from shared.principals.keys_file import Keys, WatchedKeys, changing, read_keys
from shared.principals.principal import Role

NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def record(name: str = "anna", **more: object) -> KeyRecord:
    key = new_key()
    values: dict[str, object] = {
        "key_id": id_of(key),
        "name": name,
        "kind": KeyKind.KEY,
        "tenant": "acme",
        "roles": frozenset({Role.READER}),
        "hash": hash_of(key),
        "created": NOON,
    }
    return KeyRecord(**values | more)  # type: ignore[arg-type]


def certificate(name: str, of: str) -> KeyRecord:
    return record(name, key_id=new_id(), kind=KeyKind.CERTIFICATE, certificate=of, hash="")


def add(path: Path, *records: KeyRecord) -> None:
    with changing(path) as stored:
        stored.extend(records)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "auth" / "keys.json"
    written = (
        record(groups=frozenset({"a", "b"}), expires=NOON, revoked=NOON),
        certificate("search", "URI=spiffe://x/y"),
        record("proxy", kind=KeyKind.TERMINATOR, roles=frozenset()),
    )
    add(path, written[0])
    add(path, *written[1:])
    assert read_keys(path).records == written


def test_nobody_else_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "auth" / "keys.json"
    before = os.umask(0)
    try:
        add(path, record())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_directory_that_is_there_keeps_its_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    add(tmp_path / "keys.json", record())
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_two_who_change_it_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    threads = [threading.Thread(target=add, args=(path, record(f"n{i}"))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.name for r in read_keys(path).records} == {f"n{i}" for i in range(8)}


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path, record())
    before = path.read_bytes()
    with pytest.raises(AttributeError), changing(path) as records:
        records.append("no record")  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}


def whole() -> dict[str, object]:
    return {
        "id": "a" * 12,
        "name": "anna",
        "kind": "key",
        "tenant": "acme",
        "roles": ["reader"],
        "hash": "0" * 64,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 2, "keys": []}',
        '{"version": 1}',
        '{"version": 1, "keys": 5}',
        '{"version": 1, "keys": [5]}',
        json.dumps({"version": 1, "keys": [whole() | {"roles": "reader"}]}),
        json.dumps({"version": 1, "keys": [whole() | {"roles": ["root"]}]}),
        json.dumps({"version": 1, "keys": [whole() | {"expires": "soon"}]}),
        json.dumps({"version": 1, "keys": [whole() | {"expires": "2026-05-01T12:00:00"}]}),
        json.dumps({"version": 1, "keys": [whole() | {"expire": "2026-05-01T12:00:00+00:00"}]}),
        json.dumps({"version": 1, "keys": [whole() | {"name": 5}]}),
        json.dumps({"version": 1, "keys": [whole(), whole()]}),
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_told_by_the_setting_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^auth\.keys_file: .*keys\.json is damaged"):
        read_keys(path)


def test_of_several_records_for_a_certificate_the_last_that_holds_counts() -> None:
    old, new = certificate("old", "CN=x"), certificate("new", "CN=x")
    assert Keys((old, new)).by_certificate["CN=x"] == new
    revoked = replace(new, revoked=NOON)
    assert Keys((old, revoked)).by_certificate["CN=x"] == old


class Watched:
    """A file and who watches it."""

    def __init__(self, directory: Path) -> None:
        self.clock, self.path = Clock(), directory / "keys.json"
        self.keys = WatchedKeys(self.path, self.clock)

    def names(self, after_s: float = 1.0) -> list[str] | None:
        self.clock.now_s += after_s
        current = self.keys.current
        return None if current is None else [record.name for record in current.records]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_what_changes_counts_within_a_second(watched: Watched) -> None:
    assert watched.names(0.0) is None
    add(watched.path, record("anna"))
    assert watched.names() == ["anna"]
    add(watched.path, record("bert"))
    assert watched.names() == ["anna", "bert"]
    assert watched.keys.trouble == ""


def test_it_is_not_looked_at_by_every_caller(watched: Watched) -> None:
    add(watched.path, record("anna"))
    assert watched.names() == ["anna"]
    add(watched.path, record("bert"))
    assert watched.names(0.1) == ["anna"]
    assert watched.names(0.5) == ["anna", "bert"]


@pytest.mark.parametrize("damage", ["", "{", '{"version": 1, "keys": [{}]}'])
def test_a_damaged_one_changes_nothing_and_is_told_until_it_is_whole(
    watched: Watched, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    add(watched.path, record("anna"))
    watched.names()
    whole = watched.path.read_bytes()
    watched.path.write_text(damage, encoding="utf-8")
    for _ in range(3):
        assert watched.names() == ["anna"]
        assert "damaged" in watched.keys.trouble
        assert "those that were read before hold" in watched.keys.trouble
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    watched.path.write_bytes(whole)
    assert watched.names() == ["anna"]
    assert watched.keys.trouble == ""


def test_one_that_was_damaged_from_the_start_gives_nobody_a_key(watched: Watched) -> None:
    watched.path.write_text("{", encoding="utf-8")
    assert watched.names() is None
    assert "nobody has a key" in watched.keys.trouble


def test_one_that_is_gone_opens_no_door(watched: Watched) -> None:
    add(watched.path, record("anna"))
    watched.names()
    watched.path.unlink()
    assert watched.names() == ["anna"]
    assert "is gone" in watched.keys.trouble


def test_a_secret_of_kubernetes_is_followed_through_its_links(tmp_path: Path) -> None:
    """It is a link to a link to a directory, which is replaced by another."""
    for version, name in (("1", "anna"), ("2", "bert")):
        add(tmp_path / version / "keys.json", record(name))
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "keys.json").symlink_to("data/keys.json")
    watched = Watched(tmp_path)
    assert watched.names() == ["anna"]
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").replace(tmp_path / "data")
    assert watched.names() == ["bert"]
