"""Holds the metrics of one process.

``add``, ``observe`` and ``set`` may be called from any thread, and cost about a microsecond; what is known
anyway (``ask``) is asked for when somebody looks, in the thread of who looks. What cannot be recorded is
logged: nothing that is served fails for it. The values are
``prometheus_client``'s, in a registry of their own: several services may live in one process, as in tests.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.core import Sample

from shared.metrics.config import MetricsConfig
from shared.metrics.metric import PREFIX, PROCESS_LABELS, TENANT_LABEL, VLLM_PREFIX, MetricKind, MetricSpec

log = logging.getLogger(__name__)

OTHER_TENANTS = "other"
_NOT_RECORDED = "%s was not recorded"


@dataclass(frozen=True, slots=True)
class MetricReading:
    """A value that is known anyway; of a counter its sum so far."""

    metric: MetricSpec
    value: float
    labels: dict[str, str] = field(default_factory=dict)


Source = Callable[[], Iterable[MetricReading]]


class Metrics:
    """``application``, ``replica``: of every series. A metric is either recorded or asked for, not both."""

    def __init__(self, application: str = "", replica: str = "", config: MetricsConfig | None = None) -> None:
        self._config = config or MetricsConfig()
        values = (application, replica, self._config.model_name)
        self._constant = dict(zip(PROCESS_LABELS, values, strict=True))
        self._constant = {name: value for name, value in self._constant.items() if value}
        self._process = ProcessCollector(registry=None)
        self._lock = threading.Lock()
        self._families: dict[str, Any] = {}
        self._metrics: dict[str, MetricSpec] = {}
        self._children: dict[tuple[object, ...], Any] = {}
        self._tenants: set[str] = set()
        self._sources: list[Source] = []

    # --- what is recorded ----------------------------------------------------------------------------------

    def add(self, metric: MetricSpec, amount: float = 1.0, **labels: str) -> None:
        """To a counter, or to a gauge."""
        try:
            self._child(metric, labels).inc(amount)
        except Exception:
            log.exception(_NOT_RECORDED, metric.name)

    def set(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """Of a gauge."""
        try:
            self._child(metric, labels).set(value)
        except Exception:
            log.exception(_NOT_RECORDED, metric.name)

    def observe(self, metric: MetricSpec, value: float, **labels: str) -> None:
        """By a histogram."""
        try:
            self._child(metric, labels).observe(value)
        except Exception:
            log.exception(_NOT_RECORDED, metric.name)

    def ask(self, source: Source) -> None:
        """Has ``source`` called whenever somebody looks. It may block for a while; what it raises goes to the
        log."""
        self._sources.append(source)

    def _child(self, metric: MetricSpec, labels: dict[str, str]) -> Any:
        if metric.by_tenant:
            labels = self._with_tenant(labels)
        key = (metric.name, *labels.items())
        child = self._children.get(key)
        if child is None:
            with self._lock:
                family = self._family(metric)
                child = self._children[key] = family.labels(**labels) if labels else family
        return child

    def _with_tenant(self, labels: dict[str, str]) -> dict[str, str]:
        """``tenant`` is always said, and told where the setting allows it."""
        tenant = labels[TENANT_LABEL]
        rest = {name: value for name, value in labels.items() if name != TENANT_LABEL}
        if not self._config.tenants:
            return rest
        if tenant not in self._tenants:
            with self._lock:
                if len(self._tenants) < self._config.tenants:
                    self._tenants.add(tenant)
        return rest | {TENANT_LABEL: tenant if tenant in self._tenants else OTHER_TENANTS}

    def _family(self, metric: MetricSpec) -> Any:
        if metric.name not in self._families:
            tenants = (TENANT_LABEL,) if metric.by_tenant and self._config.tenants else ()
            names, labels = (PREFIX + metric.name, metric.help), (*metric.labels, *tenants)
            match metric.kind:
                case MetricKind.COUNTER:
                    made: Any = Counter(*names, labels, registry=None)
                case MetricKind.GAUGE:
                    made = Gauge(*names, labels, registry=None)
                case MetricKind.HISTOGRAM:
                    made = Histogram(*names, labels, registry=None, buckets=metric.buckets)
            self._metrics[metric.name] = metric
            self._families[metric.name] = made
        return self._families[metric.name]

    # --- what is told --------------------------------------------------------------------------------------

    def text(self) -> str:
        """All of it in Prometheus's text format. May block as long as the sources do."""
        return generate_latest(self).decode()

    def collect(self) -> Iterator[Family]:
        """For ``prometheus_client``: families with the labels of the process, under all their names."""
        with self._lock:
            recorded = [(self._metrics[name], family) for name, family in self._families.items()]
        for metric, family in recorded:
            for collected in family.collect():
                yield from self._named(metric, collected)
        for metric, collected in self._asked().items():
            yield from self._named(metric, collected)
        for collected in self._process.collect():
            yield self._labelled(collected)

    def _asked(self) -> dict[MetricSpec, Family]:
        found: dict[MetricSpec, Family] = {}
        for source in self._sources:
            try:
                readings = list(source())
            except Exception:
                log.warning("some metrics cannot be had now", exc_info=True)
                continue
            for reading in readings:
                metric = reading.metric
                assert set(reading.labels) == set(metric.labels), f"labels of {metric.name}"
                family = found.setdefault(
                    metric, Family(PREFIX + metric.name, metric.help, metric.kind.value)
                )
                ending = "_total" if metric.kind is MetricKind.COUNTER else ""
                family.add_sample(family.name + ending, reading.labels, reading.value)
        return found

    def _named(self, metric: MetricSpec, family: Family) -> Iterator[Family]:
        family = self._labelled(family)
        yield family
        if metric.vllm and self._config.vllm_names:
            twin = Family(VLLM_PREFIX + metric.name, family.documentation, family.type)
            twin.samples = [
                s._replace(name=VLLM_PREFIX + s.name.removeprefix(PREFIX)) for s in family.samples
            ]
            yield twin

    def _labelled(self, family: Family) -> Family:
        """Leaves out when a series began: Prometheus knows restarts by counters that fall."""
        labelled = Family(family.name, family.documentation, family.type)
        labelled.samples = [
            Sample(s.name, self._constant | s.labels, s.value)
            for s in family.samples
            if not s.name.endswith("_created")
        ]
        return labelled
