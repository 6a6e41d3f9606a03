"""Measures what the KV store costs: opening, loading, first tokens over stored KV, and chunks from node to
node.

    python -m load_tests.kv_store --json build/kv_store.json

Everything is measured against something else in the same run, in turn with it; ratios above 1 mean that ours
is better. Loads are verified byte by byte. An S3 server is started for the run unless ``--s3`` names one
(keys then come from the environment, as ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load_tests.benchmark import json_option, new_parser, printed, say
from load_tests.kv_store.chunk_loads import measure_memory_loads, measure_open
from load_tests.kv_store.object_loads import measure_object_loads
from load_tests.kv_store.stored_chunks import QWEN2_7B, ChunkShape
from load_tests.kv_store.stored_ttft import Contexts, measure_stored_ttft
from load_tests.peer_transfer.__main__ import measure_peer_transfer
from shared.measuring.report import Measurement, write_report
from shared.measuring.shapes import QWEN2_05B, Shape


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Plan of what is measured: a chunk of Qwen2-7B, and time to first token with a model of Qwen2-0.5B's
    shape. ``s3``: the endpoint of a server that is there already; ``runs`` 0: as many as each measurement
    needs."""

    directory: Path
    s3: str = ""
    chunk: ChunkShape = QWEN2_7B
    model: Shape = QWEN2_05B
    contexts: Contexts = field(default_factory=Contexts)
    runs: int = 0


def measure(plan: StorePlan) -> Iterator[Measurement]:
    runs: dict[str, Any] = {"runs": plan.runs} if plan.runs else {}
    say("opening")
    yield from measure_open(plan.directory, plan.chunk, **runs)
    say("loading from the page cache")
    yield from measure_memory_loads(plan.directory, plan.chunk, **runs)
    say("loading from an S3 server")
    yield from measure_object_loads(plan.directory, plan.chunk, plan.s3, **runs)
    say("from node to node")
    yield from measure_peer_transfer(plan.chunk.num_bytes, **runs)
    say("first tokens over stored KV")
    yield from measure_stored_ttft(plan.directory, plan.model, plan.contexts, **runs)


def main() -> None:
    parser = new_parser("load_tests.kv_store", __doc__)
    json_option(parser)
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
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(
        prefix="kvquilt-load-", dir=args.directory, ignore_cleanup_errors=True
    ) as directory:
        measurements = printed(measure(StorePlan(Path(directory), args.s3)))
    if args.json:
        write_report(args.json, measurements)


if __name__ == "__main__":
    main()
