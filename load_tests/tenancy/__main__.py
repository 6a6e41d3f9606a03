"""Measures whether a tenant can tell by the time to the first token that another tenant has a text:
``python -m load_tests.tenancy --help``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from cluster.paths import DEMO_MODEL
from load_tests.benchmark import exit_code, json_option, new_parser, option
from load_tests.tenancy.timing import Attack, KnownTo, attack, measure
from services.generator.config import GeneratorConfig
from services.generator.loading import load_generator
from shared.engine_config import EngineConfig
from shared.measuring.report import Measurement, write_report

ABOUT = """Whether times tell who has a text (CVE-2025-46570, OWASP AISVS 5.5.5).

One generator in this process is asked about texts of random tokens, by one tenant, in random order: texts
that nobody asked about before, that he did himself, and that another tenant did. Told is how well a guess by
the time to the first token alone does (AUC: 0.5 a coin, 1 sure), with its 95 % interval, and what a known
text saves. His own texts must show, or the measurement is too coarse to see anything; the other's must not.

  python -m load_tests.tenancy
  python -m load_tests.tenancy --texts 100 --tokens 400"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 the other tenant's texts do not show and one's own do, 1 otherwise, 2 wrong input."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    apart = True

    def run() -> None:
        nonlocal apart
        args = _parser().parse_args(argv)
        found = asyncio.run(_measure(args))
        _show(console, found)
        apart = found[KnownTo.SELF].tells and not found[KnownTo.OTHER].tells
        if args.json is not None:
            write_report(args.json, list(_measurements(found)), {"texts": args.texts}, threads=1)

    code = exit_code("tenancy", Console(stderr=True), run)
    return code or (0 if apart else 1)


async def _measure(args: argparse.Namespace) -> dict[KnownTo, Attack]:
    config = GeneratorConfig(args.model, engine=EngineConfig(num_threads=1), kv_store="")
    generator = load_generator(config, None, "here", asyncio.get_running_loop())
    try:
        await measure(generator, 3, args.tokens, seed=args.seed + 1)  # what is done once is done then
        times = await measure(generator, args.texts, args.tokens, args.seed)
    finally:
        generator.close()
    return {known: attack(times[KnownTo.NOBODY], times[known]) for known in (KnownTo.SELF, KnownTo.OTHER)}


def _show(console: Console, found: dict[KnownTo, Attack]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("text known to", "guess by time (AUC)", "saved, ms", "p", "tells"):
        table.add_column(heading)
    for known, one in found.items():
        table.add_row(
            known.value,
            f"{one.auc.value:.3f} ({one.auc.low:.3f} to {one.auc.high:.3f})",
            f"{one.saved_ms.value:.2f} ({one.saved_ms.low:.2f} to {one.saved_ms.high:.2f})",
            f"{one.p:.4f}",
            "yes" if one.tells else "no",
        )
    console.print(table)


def _measurements(found: dict[KnownTo, Attack]) -> list[Measurement]:
    return [Measurement(f"auc_{known.value}", one.auc.value, "share") for known, one in found.items()]


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("load_tests.tenancy", ABOUT)
    option(parser, "--model", str(DEMO_MODEL), "a directory of a model")
    option(parser, "--texts", 60, "of each kind")
    option(parser, "--tokens", 300, "of a text")
    option(parser, "--seed", 0, "of texts and their order")
    json_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
