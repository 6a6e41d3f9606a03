from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from tests.helm import HelmPlugin, helm
from tests.minio_server import S3ServerPlugin, own_server, s3_server
from tests.prometheus_server import PrometheusPlugin, prometheus

__all__ = ["helm", "own_server", "prometheus", "s3_server"]

# Triton decides at its import whether it interprets: those tests run in a process of their own.
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreter"]


def pytest_configure(config: pytest.Config) -> None:
    os.environ["TERM"] = "xterm"  # a dumb terminal shows no progress
    config.pluginmanager.register(S3ServerPlugin(), "kvquilt-s3-server")
    config.pluginmanager.register(HelmPlugin(), "kvquilt-helm")
    config.pluginmanager.register(PrometheusPlugin(), "kvquilt-prometheus")


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Appends what failed to the file of TEST_FAILURES, from which `make test` repeats it at its end."""
    if not (path := os.environ.get("TEST_FAILURES")):
        return
    with Path(path).open("a", encoding="utf-8") as file:
        for outcome in ("failed", "error"):
            for report in terminalreporter.getreports(outcome):
                lines = report.longreprtext.splitlines()
                told = [line for line in lines if line.startswith("E ")] or lines
                print(report.nodeid, *told[:5], sep="\n    ", file=file)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Lets torch compute with one thread: with small models, several mostly wait for each other."""
    import torch  # most modules do without

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Takes back what a service that ran in this process let nobody else do (`shared.private_files`)."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)
