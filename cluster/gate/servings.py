"""Names the ways of serving a model that a gate judges one after the other, and says which one to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from cluster.gate.served import LeftOut
from shared.generation.orders import NO_ADAPTER
from shared.kv_buffers import ENCODINGS
from shared.kv_types import KvContext
from shared.verdict import Verdict

CHEAPEST_FIRST = (KvContext.NONE, KvContext.HEADER, KvContext.DOCUMENT)


@dataclass(frozen=True, slots=True)
class Serving:
    """``adapter``: the name of the one that requests go with, or that of none."""

    kv_context: KvContext
    encoding: str
    adapter: str = NO_ADAPTER

    def __str__(self) -> str:
        return f"kv_context {self.kv_context}, encoding {self.encoding}, adapter {self.adapter}"

    @property
    def settings(self) -> str:
        """That configure it."""
        return (
            f"ingestion.kv_context {self.kv_context}, generator.kv_encoding {self.encoding}, "
            f"generator.adapter {self.adapter if self.adapter != NO_ADAPTER else repr('')}"
        )

    def report_of(self, report: Path) -> Path:
        """Its own, beside that of all of them."""
        names = (report.stem, self.kv_context, self.encoding, self.adapter)
        return report.with_name(f"{'.'.join(names)}{report.suffix}")


@dataclass(frozen=True, slots=True)
class JudgedServing:
    """``verdict`` None: there is none, ``why`` says why not. ``kept``: its answers, which go once there is a
    verdict."""

    serving: Serving
    verdict: Verdict | None = None
    why: str = ""
    kept: tuple[Path, ...] = ()

    @property
    def cost(self) -> tuple[float, ...]:
        """Least first: groups of questions on which it is not within the margin; the part of the context that
        is computed for every question; room in the store; an adapter; what chunks are computed behind."""
        verdict, serving = self.verdict, self.serving
        assert verdict is not None
        computed = (verdict.ratio or 0.0) if verdict.mode.row.stored else 1.0
        return (
            len(verdict.beyond),
            computed,
            -ENCODINGS.index(serving.encoding),
            serving.adapter != NO_ADAPTER,
            CHEAPEST_FIRST.index(serving.kv_context),
        )


def advised(judged: Sequence[JudgedServing]) -> JudgedServing | None:
    """The cheapest that is good enough on all questions, else on most groups of them; None: there is no
    verdict."""
    return min((one for one in judged if one.verdict), key=lambda one: one.cost, default=None)


def servings_table(judged: Sequence[JudgedServing]) -> Table:
    table = Table("kv_context", "encoding", "adapter", box=None, pad_edge=False, header_style="dim")
    table.add_column("contexts", justify="right")
    table.add_column("worse by at most", justify="right")
    table.add_column("verdict")
    for one in judged:
        of, verdict = one.serving, one.verdict
        losses = verdict.loss_at_most.values() if verdict else ()
        table.add_row(
            of.kv_context,
            of.encoding,
            of.adapter,
            str(verdict.num_contexts) if verdict else "",
            f"{100 * max(losses):.1f}" if losses else "",
            verdict.advice if verdict else "none",
        )
    return table


def servings_details(judged: Sequence[JudgedServing], left: Sequence[LeftOut]) -> dict[str, object]:
    """For the report of all of them."""
    best = advised(judged)
    return {
        "servings": [
            asdict(one.serving) | {"verdict": one.verdict and asdict(one.verdict), "no_verdict": one.why}
            for one in judged
        ],
        "left_out": [asdict(one) for one in left],
        "advised": best and asdict(best.serving),
    }
