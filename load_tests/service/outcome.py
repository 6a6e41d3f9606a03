"""Holds everything one run found out, and reads and writes it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from load_tests.service.quality import Agreement
from load_tests.service.result import RateResult
from load_tests.service.sample import Sample
from shared.config import load
from shared.errors import ConfigError, InvalidRequest
from shared.measuring.report import Measurement, measured, write_report


@dataclass(frozen=True, slots=True)
class Unloaded:
    """One request at a time, in ms: ``overhead_ms`` is what of the TTFT the engine did not spend."""

    reuse: str
    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    total_ms: tuple[float, ...]
    overhead_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BothWays:
    """First tokens of the same requests over gRPC and over HTTP, in ms, pair by pair."""

    reuse: str
    grpc_ttft_ms: tuple[float, ...]
    http_ttft_ms: tuple[float, ...]

    def measurements(self) -> list[Measurement]:
        pairs = zip(self.http_ttft_ms, self.grpc_ttft_ms, strict=True)
        return [
            measured("ttft_http", self.http_ttft_ms, "ms", baseline=self.grpc_ttft_ms),
            measured("http_overhead_ms", [http - grpc for http, grpc in pairs], "ms"),
        ]


@dataclass(frozen=True, slots=True)
class Gathered:
    """TPOT, in ms, of so many streams at once whose tokens are gathered, and of the same with a message for
    each token."""

    num_streams: int
    tpot_ms: tuple[float, ...]
    single_tpot_ms: tuple[float, ...]

    @classmethod
    def of(cls, num_streams: int, gathered: Sequence[Sample], singly: Sequence[Sample]) -> Gathered:
        return cls(num_streams, _tpots_ms(gathered), _tpots_ms(singly))

    def measurement(self) -> Measurement:
        name = f"tpot_gathered_{self.num_streams}"
        return measured(name, self.tpot_ms, "ms", baseline=self.single_tpot_ms)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``load``: what was asked, in words. ``limits_ms``: the SLO in milliseconds, by metric. ``rate_limits``:
    requests per second that this machine's arithmetic allows at most, by reuse mode, where the model's shape
    is known. ``library_tpot_ms``: a token of the engine by itself, without a service, likewise;
    ``beside_tpot_ms``: the same beside the cluster while that has nothing to do."""

    target: str
    level: str
    load: dict[str, str]
    slo: str
    slo_fraction: float
    limits_ms: dict[str, float]
    unloaded: tuple[Unloaded, ...]
    rates: tuple[RateResult, ...]
    quality: tuple[Agreement, ...] = ()
    token_overhead_ms: tuple[float, ...] = ()
    both_ways: BothWays | None = None
    rate_limits: dict[str, float] | None = None
    library_tpot_ms: tuple[float, ...] = ()
    beside_tpot_ms: tuple[float, ...] = ()
    gathered: tuple[Gathered, ...] = ()

    def of(self, reuse: str) -> list[RateResult]:
        return sorted(
            (result for result in self.rates if result.reuse == reuse), key=lambda result: result.rate
        )

    @property
    def modes(self) -> list[str]:
        """In the order in which they were run."""
        return list(dict.fromkeys(result.reuse for result in self.rates))

    def best(self, reuse: str) -> RateResult | None:
        """The highest rate that met the SLO."""
        return next((result for result in reversed(self.of(reuse)) if result.holds), None)

    def goodput(self, reuse: str) -> float:
        best = self.best(reuse)
        return best.goodput if best else 0.0

    def measurements(self) -> list[Measurement]:
        """In the form of every benchmark; ``full`` is the baseline where it was run."""
        found = [*self._goodputs(), *self._unloaded(), *self._selecting()]
        if self.token_overhead_ms:
            found.append(measured("token_overhead_ms", self.token_overhead_ms, "ms", better="lower"))
        found += [gathered.measurement() for gathered in self.gathered if gathered.tpot_ms]
        return found + (self.both_ways.measurements() if self.both_ways else [])

    def _goodputs(self) -> list[Measurement]:
        full = self.goodput("full") if "full" in self.modes else None
        found = []
        for mode in self.modes:
            value, best = self.goodput(mode), self.best(mode)
            limit = (self.rate_limits or {}).get(mode)
            baseline = None if mode == "full" else full
            found.append(
                Measurement(
                    f"goodput_{mode}",
                    value,
                    "requests/s",
                    baseline=baseline,
                    ratio=value / baseline if baseline else None,
                    limit=limit,
                    fraction_of_limit=value / limit if limit else None,
                    n=best.num_requests if best else 0,
                )
            )
        return found

    def _selecting(self) -> Iterator[Measurement]:
        """Of each mode's highest rate within the SLO, else of its lowest one."""
        for mode in self.modes:
            result = self.best(mode) or next(iter(self.of(mode)), None)
            if result is not None and (of := result.selecting) is not None:
                yield Measurement(f"selections_{mode}", of.per_s, "selections/s", n=len(of.wait_ms))
                yield measured(f"selector_wait_{mode}", of.wait_ms, "ms", better="lower")

    def _unloaded(self) -> list[Measurement]:
        full = next((statistics.median(u.ttft_ms) for u in self.unloaded if u.reuse == "full"), None)
        found = [
            measured(
                f"ttft_unloaded_{u.reuse}",
                u.ttft_ms,
                "ms",
                better="lower",
                baseline=None if u.reuse == "full" else full,
            )
            for u in self.unloaded
        ]
        name = "gateway_overhead_ms" if self.level == "generate" else "answer_overhead_ms"
        # Of the fastest mode: the more the engine does, the more of its own scatter a difference of two times
        # carries.
        if self.unloaded:
            fastest = quickest(self.unloaded)
            found.append(measured(name, fastest.overhead_ms, "ms", better="lower"))
            if self.library_tpot_ms and fastest.tpot_ms:
                library_ms = statistics.median(self.library_tpot_ms)
                found += [
                    measured(name, [ms / library_ms for ms in tpot_ms], "times", better="lower")
                    for name, tpot_ms in (
                        ("service_token_ratio", fastest.tpot_ms),
                        ("idle_cluster_token_ratio", self.beside_tpot_ms),
                    )
                    if tpot_ms
                ]
        return found


def _tpots_ms(samples: Sequence[Sample]) -> tuple[float, ...]:
    return tuple(ms for sample in samples if (ms := sample.metric_ms("tpot")) is not None)


def quickest(unloaded: Sequence[Unloaded]) -> Unloaded:
    return min(unloaded, key=lambda u: statistics.median(u.ttft_ms))


def write_outcome(path: Path, outcome: Outcome, **machine_facts: float) -> None:
    write_report(path, outcome.measurements(), asdict(outcome), **machine_facts)


def read_outcome(path: Path) -> Outcome:
    """
    Raises:
        InvalidRequest: no report of this load test.
    """
    try:
        return load(Outcome, dict(json.loads(path.read_text(encoding="utf-8"))["details"]))
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise InvalidRequest(
            f"{path}: is no report of `python -m load_tests.service --json` ({error})"
        ) from None
