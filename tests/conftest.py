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
    if not hasattr(config, "workerinput"):  # xdist's processes report to one that has none
        config.pluginmanager.register(Failures(config.pluginmanager), "kvquilt-failures")


class Failures:
    """Tells the reason of a failure at once, and appends it to the file of TEST_FAILURES, from which `make
    test` repeats it at its end."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        reporter: TerminalReporter = self._plugins.get_plugin("terminalreporter")
        lines = report.longreprtext.splitlines()
        reason = [line for line in lines if line.startswith("E ")] or lines
        told = "\n    ".join([report.nodeid, *reason[:5]])
        reporter.write_line(f"\nFAILED {told}", red=True)
        if path := os.environ.get("TEST_FAILURES"):
            with Path(path).open("a", encoding="utf-8") as file:
                print(told, file=file)


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
