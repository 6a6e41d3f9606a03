"""Measures how fast a chunk's file is opened, and loaded with every byte verified, against the bare system
calls."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from load_tests.benchmark import in_turn
from load_tests.kv_store.nodes import disk_node
from load_tests.kv_store.stored_chunks import ChunkShape, preallocated, write_random_chunk
from shared.kv_format import ChunkFile
from shared.measuring.report import Measurement, measured
from shared.request import RequestContext

MS = 1000.0
OPEN_CHUNKS, OPEN_RUNS, LOAD_RUNS = 8, 25, 25


def measure_open(directory: Path, shape: ChunkShape, runs: int = OPEN_RUNS) -> list[Measurement]:
    """Milliseconds per chunk of the agent's ``open``, the call between processes not counted: one chunk, and
    many in one call."""
    return asyncio.run(_measure_open(directory, shape, runs))


async def _measure_open(directory: Path, shape: ChunkShape, runs: int) -> list[Measurement]:
    async with disk_node(directory / "open") as node:
        chunk_ids = []
        for seed in range(OPEN_CHUNKS):
            chunk_id, path = write_random_chunk(Path(await node.stage(_ctx())), shape, seed)
            await node.adopt(_ctx(), chunk_id, "", str(path))
            chunk_ids.append(chunk_id)

        async def open_ms(ids: Sequence[str]) -> float:
            started = time.perf_counter()
            opened = await node.open(_ctx(), ids)
            elapsed = time.perf_counter() - started
            assert all(chunk.exists for chunk in opened)
            return elapsed * MS / len(ids)

        many = [await open_ms(chunk_ids) for _ in range(runs + 1)][1:]
        single = [await open_ms(chunk_ids[:1]) for _ in range(runs + 1)][1:]
    return [
        measured("open_29mb", many, "ms"),
        measured("open_29mb_single", single, "ms"),
    ]


def measure_memory_loads(directory: Path, shape: ChunkShape, runs: int = LOAD_RUNS) -> list[Measurement]:
    """Verified loads of a file that lies in the page cache into tensors, against plain ``preadv`` of the same
    bytes into the same tensors with as many threads; with all processors, and with one thread."""
    _, path = write_random_chunk(directory, shape, seed=100)
    num_cpus = len(os.sched_getaffinity(0))
    measurements = [_memory_load("load_29mb_memory", path, shape, num_cpus, runs)]
    if num_cpus > 1:
        measurements.append(_memory_load("load_29mb_memory_1_thread", path, shape, 1, runs))
    return measurements


def _memory_load(name: str, path: Path, shape: ChunkShape, num_threads: int, runs: int) -> Measurement:
    buffers = preallocated(shape)
    fd = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(num_threads) as threads, ChunkFile.open(path) as file:
            offsets = [offset + length - 2 * buffers[0][0].nbytes for offset, length in file.summary.layers]

            def verified(layer: int) -> None:
                file.read_layer(layer, *buffers[layer])

            def plain(layer: int) -> None:
                assert (
                    os.preadv(fd, [buffer.data for buffer in buffers[layer]], offsets[layer])
                    == 2 * buffers[layer][0].nbytes
                )

            rate = partial(_rate, shape, threads, num_threads)
            ours, baseline = in_turn((runs + 1, partial(rate, verified)), (runs + 1, partial(rate, plain)))
    finally:
        os.close(fd)
    return measured(name, ours[1:], "byte/s", better="higher", baseline=baseline[1:])


def _rate(
    shape: ChunkShape, threads: ThreadPoolExecutor, num_threads: int, read: Callable[[int], None]
) -> float:
    """Bytes per second of reading all layers, every ``num_threads``-th by the same thread."""

    def every_nth(first: int) -> None:
        for layer in range(first, shape.layers, num_threads):
            read(layer)

    started = time.perf_counter()
    list(threads.map(every_nth, range(num_threads)))
    return shape.num_bytes / (time.perf_counter() - started)


def _ctx() -> RequestContext:
    return RequestContext.create()
