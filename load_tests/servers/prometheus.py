"""Runs a real Prometheus of one's own, for tests, and its ``promtool``.

Which one: both on PATH; else out of Debian's package, of which two programs are kept
(``load_tests.servers.programs``) and nothing is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.local.launcher import free_port
from load_tests.servers.guarded import GuardedServer
from load_tests.servers.programs import cached, locked, run_once

_PACKAGE = "prometheus"


@dataclass(frozen=True, slots=True)
class PrometheusPrograms:
    server: Path
    tool: Path

    def check(self, *arguments: str, stdin: str = "") -> str:
        """Returns what ``promtool`` says.

        Raises:
            AssertionError: it found something wrong; with what it said.
        """
        result = subprocess.run(
            [self.tool, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


def find_prometheus() -> PrometheusPrograms:
    """The first call of a machine downloads 19 MB, and others wait for it.

    Raises:
        RuntimeError: it cannot be had; says why.
    """
    server, tool = shutil.which("prometheus"), shutil.which("promtool")
    if server and tool:
        return PrometheusPrograms(Path(server), Path(tool))
    if not shutil.which("apt-get"):
        raise RuntimeError("metrics are tested with Prometheus: put `prometheus` and `promtool` on PATH")
    folder = cached("prometheus")
    programs = PrometheusPrograms(folder / "prometheus", folder / "promtool")
    with locked(folder):
        if not programs.tool.exists():
            _download(folder)
    return programs


def _download(folder: Path) -> None:
    """Two programs of the package, the tool last: with it all is there."""
    fetch = ["sh", "-c", f"cd {folder} && apt-get download -q {_PACKAGE}"]
    try:
        run_once(fetch, dict(os.environ))
    except RuntimeError:  # its lists are old, or not there
        run_once(["apt-get", "update", "-q"], dict(os.environ))
        run_once(fetch, dict(os.environ))
    package = next(folder.glob("*.deb"))
    for name in ("prometheus", "promtool"):
        unpack = f"dpkg-deb --fsys-tarfile {package} | tar -x -O ./usr/bin/{name} > {folder}/unpacked"
        run_once(["sh", "-c", unpack], dict(os.environ))
        (folder / "unpacked").chmod(0o755)
        os.replace(folder / "unpacked", folder / name)
    package.unlink()


class PrometheusServer(GuardedServer):
    """Runs from construction to ``close``, and reads ``target`` (``host:port``) every second."""

    def __init__(
        self, directory: Path, target: str, rules: Path, programs: PrometheusPrograms | None = None
    ) -> None:
        """
        Raises:
            RuntimeError: it did not start.
        """
        programs = programs or find_prometheus()
        self._address = f"127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "kvquilt", "static_configs": [{"targets": [target]}]}],
        }
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__("Prometheus", directory / "prometheus.log")
        self._program, self._directory = programs.server, directory
        self._config.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.start()

    @property
    def _config(self) -> Path:
        return self._directory / "prometheus.yml"

    def _command(self) -> list[str]:
        return [
            str(self._program),
            f"--config.file={self._config}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address={self._address}",
        ]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query; of a number or a string none.

        Raises:
            ValueError: Prometheus refuses it; with its reason.
        """
        data = urllib.parse.urlencode({"query": expression}).encode()
        try:
            with urllib.request.urlopen(self._url("api/v1/query"), data, timeout=30) as answer:
                found = json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{expression}: {json.loads(error.read())['error']}") from None
        return list(found["result"]) if found["resultType"] == "vector" else []

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self._url("-/ready"), timeout=2):
                return True
        except OSError:
            return False

    def _url(self, path: str) -> str:
        return f"http://{self._address}/{path}"
