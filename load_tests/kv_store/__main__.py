"""What the KV store costs: opening, loading, first tokens over stored KV, and chunks from node to node.

    python -m load_tests.kv_store --json build/kv_store.json

Everything is measured against something else in the same run, in turn with it; ratios above 1 mean that ours
is better. Loads are verified byte by byte. An S3 server is started for the run unless ``--s3`` names one
(keys then come from the environment, as ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load_tests.kv_store.chunk_loads import measure_memory_loads, measure_open
from load_tests.kv_store.object_loads import measure_object_loads
from load_tests.kv_store.stored_chunks import QWEN2_7B, ChunkShape
from load_tests.kv_store.stored_ttft import Contexts, measure_stored_ttft
from load_tests.peer_transfer.__main__ import measure_peer_transfer
from shared.measuring.report import Measurement, write_report
from shared.measuring.shapes import QWEN2_05B, Shape

_RATE = "byte/s"


@dataclass(frozen=True, slots=True)
class StorePlan:
    """What is measured: a chunk of Qwen2-7B, and time to first token with a model of Qwen2-0.5B's shape.
    ``s3``: the endpoint of a server that is there already; ``runs`` 0: as many as each measurement needs."""

    directory: Path
    s3: str = ""
    chunk: ChunkShape = QWEN2_7B
    model: Shape = QWEN2_05B
    contexts: Contexts = field(default_factory=Contexts)
    runs: int = 0

    def steps(self) -> Iterator[tuple[str, Callable[[], list[Measurement]]]]:
        runs: dict[str, Any] = {"runs": self.runs} if self.runs else {}
        yield "opening", lambda: measure_open(self.directory, self.chunk, **runs)
        yield "loading from the page cache", lambda: measure_memory_loads(self.directory, self.chunk, **runs)
        yield (
            "loading from an S3 server",
            lambda: measure_object_loads(self.directory, self.chunk, self.s3, **runs),
        )
        yield "from node to node", lambda: measure_peer_transfer(self.chunk.num_bytes, **runs)
        yield (
            "first tokens over stored KV",
            lambda: measure_stored_ttft(self.directory, self.model, self.contexts, **runs),
        )


def measure(
    plan: StorePlan, on_measured: Callable[[Measurement], None] = lambda measurement: None
) -> list[Measurement]:
    measurements: list[Measurement] = []
    for name, step in plan.steps():
        print(f"… {name}", file=sys.stderr)
        for measurement in step():
            on_measured(measurement)
            measurements.append(measurement)
    return measurements


def line(m: Measurement) -> str:
    scale, unit = (1e9, "GB/s") if m.unit == _RATE else (1.0, m.unit)
    spread = f"{(m.min or 0) / scale:.3f} to {(m.max or 0) / scale:.3f}, n = {m.n}"
    ratio = (
        ""
        if m.ratio is None or m.baseline is None
        else f"baseline {m.baseline / scale:.3f}, ratio {m.ratio:.2f}"
    )
    return f"{m.name:36} {m.value / scale:9.3f} {unit:11} {ratio:32} ({spread})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m load_tests.kv_store",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument(
        "--s3",
        default="",
        metavar="ENDPOINT",
        help="host:port of an S3 server without TLS; default: start one",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="on the disk to measure; default: the system's place for temporary files",
    )
    args = parser.parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="kvquilt-load-", dir=args.directory))
    try:
        measurements = measure(StorePlan(directory, args.s3), lambda m: print(line(m), flush=True))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if args.json:
        write_report(args.json, measurements)
    return 0


if __name__ == "__main__":
    sys.exit(main())
