"""Says what a run is to do: the command line's options as values."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from load_tests.service.slo import Slo
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.generation.orders import ASKED_MODES, AskedMode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """
    rates: requests per second, one measurement each; empty: the highest that meets the SLO is searched.
    trace: instants instead, in seconds.
    duration_s: arrivals of one rate last at least this long; a search prolongs it (``span_s``).
    min_requests: a search measures at least so many per rate.
    warmup: the first share of every rate's arrivals is sent and not counted.
    num_unloaded: requests one at a time, before any load, per mode.
    num_quality: requests that are repeated with ``full``.
    http_rounds: how often what is asked without load is asked over HTTP and over gRPC.
    num_streams: at once, for the overhead per token; 0 leaves it out.
    precision: a search ends when the next higher rate known to fail is at most so many times the result.
    """

    slo: Slo
    reuse: tuple[AskedMode, ...] = (ReuseMode.REORDERED,)
    rates: tuple[float, ...] = ()
    trace: tuple[float, ...] = ()
    duration_s: float = 30.0
    min_requests: int = 20
    warmup: float = 0.1
    num_unloaded: int = 5
    num_quality: int = 4
    http_rounds: int = 4
    num_streams: int = 8
    stream_rounds: int = 3
    max_in_flight: int = 512
    precision: float = 1.15
    seed: int = 0

    @property
    def unloaded_modes(self) -> tuple[AskedMode, ...]:
        """``full`` first where the SLO is relative to it."""
        first: tuple[AskedMode, ...] = (ReuseMode.FULL,) if self.slo.needs_baseline else ()
        return tuple(dict.fromkeys(first + self.reuse))

    def span_s(self, rate: float, limits_ms: dict[str, float]) -> float:
        """The time for which a search measures ``rate``. An overloaded service answers the first requests in
        time, so the time must be long against what the SLO lets requests wait."""
        patience_s = (
            5 * max((limits_ms[name] for name in ("ttft", "total") if name in limits_ms), default=0.0) / 1000
        )
        return max(self.duration_s, self.min_requests / rate / (1 - self.warmup), patience_s)


def parse_rates(text: str) -> tuple[float, ...]:
    """Empty for ``auto``.

    Raises:
        InvalidRequest: not ``auto`` and no list of positive numbers.
    """
    if text.strip() == "auto":
        return ()
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < 1e6 for rate in rates):
        raise InvalidRequest(
            f"--rate: {text!r} is neither auto nor a list of requests per second such as 1,2,4"
        )
    return rates


def parse_reuse(text: str) -> tuple[AskedMode, ...]:
    """
    Raises:
        InvalidRequest: names what is no mode.
    """
    chosen = [part.strip() for part in text.split(",")]
    for name in chosen:
        if name not in ASKED_MODES:
            raise InvalidRequest(f"--reuse: {name!r} is not one of {', '.join(ASKED_MODES)}")
    return tuple(mode for name in dict.fromkeys(chosen) for mode in ASKED_MODES if mode == name)


def read_questions(path: Path) -> tuple[str, ...]:
    """
    Raises:
        InvalidRequest: no such file, or no question in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            questions = [entry["question"] for entry in json.loads(text)]
        else:
            questions = [line.strip() for line in text.splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"--questions {path}: cannot be read: {error}") from None
    found = tuple(question for question in questions if question)
    if not found:
        raise InvalidRequest(f"--questions {path}: holds no question")
    return found


def options_of(plan: type[DataclassInstance], args: argparse.Namespace) -> dict[str, Any]:
    """Options that are called like fields of ``plan``."""
    return {f.name: getattr(args, f.name) for f in fields(plan) if hasattr(args, f.name)}
