"""Has what benchmarks share: their options, measuring in turn, a line per measurement."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from shared.errors import KvquiltError
from shared.measuring.report import Measurement

T = TypeVar("T")


class Violation(AssertionError):
    """What is soaked broke a promise."""


def new_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """``about``: what ``--help`` teaches, printed as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def option(
    group: argparse.ArgumentParser | argparse._ArgumentGroup, name: str, default: Any, help: str, **more: Any
) -> None:
    """An option that is of its default's type unless ``more`` says otherwise; its help names the default."""
    group.add_argument(
        name, **{"type": type(default), "default": default, "help": f"{help} (default: %(default)s)"} | more
    )


def json_option(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="where to write the report")


def numbers(text: str) -> list[int]:
    """``1,2,4`` as an option's type."""
    return [int(part) for part in text.split(",")]


def at_least(least: int | float) -> Callable[[str], int | float]:
    """The type of an option that must not be below it."""

    def read(text: str) -> int | float:
        value = type(least)(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return value

    read.__name__ = type(least).__name__  # by which argparse names it when it is no number at all
    return read


def in_turn(*ways: tuple[int, Callable[[], T]]) -> list[list[T]]:
    """Calls each of ``ways`` so many times, one after the other and again from the first one, so that
    whatever else the machine does meets all alike. What they gave, way by way."""
    found: list[list[T]] = [[] for _ in ways]
    for run in range(max(runs for runs, _ in ways)):
        for of_way, (runs, way) in zip(found, ways, strict=True):
            if run < runs:
                of_way.append(way())
    return found


def say(step: str) -> None:
    """Tells what is measured next."""
    print(f"… {step}", file=sys.stderr)


def printed(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Prints a line of each as it comes."""
    found = []
    for measurement in measurements:
        print(line(measurement), flush=True)
        found.append(measurement)
    return found


def exit_code(name: str, errors: Console, measure: Callable[[], None], keeps_answers: bool = False) -> int:
    """Runs it: 0 measured, 2 wrong input, 130 interrupted. ``keeps_answers``: has the option ``--answers``
    and goes on from there."""
    try:
        measure()
    except KvquiltError as error:
        errors.print(f"{name}: {error.detail}", style="red", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        again = "; with --answers the same command goes on from here" if keeps_answers else ""
        errors.print(f"interrupted{again}")
        return 130
    return 0


def line(m: Measurement) -> str:
    scale, unit = (1e9, "GB/s") if m.unit == "byte/s" else (1.0, m.unit)
    work = "" if m.tflop is None else f"{m.tflop:.4g} TFLOP"
    ratio = "" if m.ratio is None or m.baseline is None else f"{m.ratio:6.2f} x {m.baseline / scale:.4g}"
    fractions = {"limit": m.fraction_of_limit, "kernels' ceiling": m.fraction_of_ceiling}
    reached = ", ".join(f"{part:.0%} of the {name}" for name, part in fractions.items() if part is not None)
    spread = "" if m.min is None or m.max is None else f"{m.min / scale:.4g} to {m.max / scale:.4g}, "
    times = "" if m.n is None else f"({spread}n = {m.n})"
    return f"{m.name:34} {m.value / scale:12.4g} {unit:8} {work:14} {ratio:22} {reached:42} {times}".rstrip()
