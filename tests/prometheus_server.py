"""The real Prometheus (``load_tests.servers.prometheus``), and every metric of the list, for it to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from threading import Thread

import pytest

from load_tests.servers.prometheus import PrometheusPrograms, find_prometheus
from shared.metrics import table
from shared.metrics.config import MetricsConfig
from shared.metrics.metric import MetricKind
from shared.metrics.node import merged
from shared.metrics.recorder import Metrics

_SEEN = {  # of labels; of others any will do
    "code": ("OK", "INTERNAL", "OVERLOADED"),
    "service": ("kv_store", "retrieval"),
    "state": ("in_force", "suspended", "expired", "answered", "silent"),
    "outcome": ("stored", "failed"),
    "event": ("uploads", "damaged_objects"),
}


class PrometheusPlugin:
    """Finds Prometheus before the first test starts, so that no test's time limit covers that."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        wanted = any("prometheus" in getattr(item, "fixturenames", ()) for item in session.items)
        if wanted and not session.config.option.collectonly:
            find_prometheus()


@pytest.fixture(scope="session")
def prometheus() -> PrometheusPrograms:
    return find_prometheus()


class Everything:
    """Every metric of the list, of the processes that measure it. Each look finds more."""

    def __init__(self) -> None:
        names = sorted({name for one in table.ALL for name in one.applications})
        self._of = {name: Metrics(name, f"{name}-1", MetricsConfig(model_name="demo")) for name in names}
        self._looks = 0

    def text(self) -> str:
        self._looks += 1
        for metric in table.ALL:
            for values in product(*(_SEEN.get(label, ("x",)) for label in metric.labels)):
                labels = dict(zip(metric.labels, values, strict=True))
                if metric.by_tenant:
                    labels["tenant"] = "acme"
                for application in metric.applications:
                    own = self._of[application]
                    match metric.kind:
                        case MetricKind.COUNTER:
                            own.add(metric, self._looks, **labels)
                        case MetricKind.GAUGE:
                            own.set(metric, self._looks, **labels)
                        case MetricKind.HISTOGRAM:
                            own.observe(metric, 0.3, **labels)
        return merged(own.text() for own in self._of.values())


@contextmanager
def serving(everything: Everything) -> Iterator[str]:
    """``host:port`` where it can be read at `/metrics`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = everything.text().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
