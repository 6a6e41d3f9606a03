"""Says what a metric is: its name, what it counts, its labels."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

PREFIX = "kvquilt_"
VLLM_PREFIX = "vllm:"
PROCESS_LABELS = ("application", "replica", "model_name")
"""Of every series: the service, its process, and the served model."""
TENANT_LABEL = "tenant"


class MetricKind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """
    name: without the prefix, of a counter without ``_total``; ends with the unit if it has one.
    unit: seconds, bytes, tokens and so on; "ratio" of what is 0 to 1.
    applications: who measures it.
    labels: besides those of the process. Few values each: never what a caller says.
    buckets: upper bounds of a histogram.
    vllm: vLLM has a metric of this name that means the same.
    by_tenant: has the label ``tenant`` where ``metrics.tenants`` allows it.
    """

    name: str
    kind: MetricKind
    unit: str
    help: str
    applications: tuple[str, ...]
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    vllm: bool = False
    by_tenant: bool = False

    def __post_init__(self) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", self.name), self.name
        assert not self.name.endswith("_total"), f"{self.name}: the ending comes by itself"
        assert bool(self.buckets) == (self.kind is MetricKind.HISTOGRAM), f"{self.name}: buckets"
        assert list(self.buckets) == sorted(set(self.buckets)), f"{self.name}: buckets ascend"
        assert not {*self.labels} & {*PROCESS_LABELS, TENANT_LABEL, "le"}, f"{self.name}: labels"

    @property
    def series(self) -> tuple[str, ...]:
        """Names of what Prometheus stores of it."""
        whole = PREFIX + self.name
        if self.kind is MetricKind.HISTOGRAM:
            return f"{whole}_bucket", f"{whole}_count", f"{whole}_sum"
        return (f"{whole}_total" if self.kind is MetricKind.COUNTER else whole,)
