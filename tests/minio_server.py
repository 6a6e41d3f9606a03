"""The S3 server of the test session, started with the first test that asks for it
(``load_tests.servers.s3``)."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from load_tests.servers.s3 import S3Program, S3Server, find_program
from services.kv_store.s3.bucket import ObjectBlobs
from services.kv_store.s3.retries import Clock
from services.kv_store.s3.settings import ObjectSettings

_bucket_numbers = itertools.count()


class S3ServerPlugin:
    """Finds, builds or downloads the server before the first test starts, so that no test's time limit covers
    that."""

    def __init__(self) -> None:
        self.program: S3Program | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        wanted = any("s3_server" in getattr(item, "fixturenames", ()) for item in session.items)
        if wanted and not session.config.option.collectonly:
            self.program = find_program()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.program:
            terminalreporter.write_line(f"S3 server of these tests: {self.program.origin}")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One for all tests, which take a bucket each (``settings_for``). Whoever stops it starts it again."""
    directory = Path(tempfile.mkdtemp(prefix="kvquilt-s3-"))
    server = S3Server(directory / "data")
    before = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)
    yield server
    server.close()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def own_server(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """One to stop and start again, while others use the session's."""
    server = S3Server(tmp_path / "own-server" / "data", s3_server.program)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def new_bucket() -> str:
    return f"bucket-{next(_bucket_numbers)}"


def settings_for(endpoint: str, **settings: Any) -> ObjectSettings:
    """A bucket of one's own, and little patience."""
    chosen: dict[str, Any] = {"bucket": new_bucket(), "secure": False, "retry_s": 5.0} | settings
    return ObjectSettings(endpoint, **chosen)


def impatient(endpoint: str, slept: list[float] | None = None, **settings: Any) -> ObjectBlobs:
    """Blobs that are repeated as often as ever, without waiting in between: time passes with the pauses only
    (``slept``)."""
    pauses: list[float] = [] if slept is None else slept
    passed = [0.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        passed[0] += seconds

    return ObjectBlobs(settings_for(endpoint, **settings), Clock(now=lambda: passed[0], sleep=sleep))
