"""How fast chunks come out of an S3 server, verified and in tensors, against a bare client that asks as many times at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import urllib3
from minio import Minio
from minio.credentials.providers import EnvAWSProvider

from load_tests.kv_nodes import disk_node
from load_tests.report import Measurement, measured
from load_tests.s3_server import S3Server
from load_tests.stored_chunks import Array, ChunkShape, preallocated, write_random_chunk
from services.kv_store.chunk_names import blob_of
from services.kv_store.fetch import FetchConfig
from services.kv_store.object_blobs import ObjectBlobs
from services.kv_store.object_settings import ObjectSettings
from shared.kv_format import ChunkFile
from shared.kv_types import OpenedChunk
from shared.request import RequestContext

NUM_CHUNKS, RUNS = 4, 9
_BUCKET = "kvquilt-benchmark"
Buffers = Sequence[tuple[Array, Array]]


def measure_object_loads(directory: Path, shape: ChunkShape, endpoint: str = "", runs: int = RUNS) -> list[Measurement]:
    """``endpoint``: of a server that is there already, keys in the environment; empty: one is started.

    A node that has none of the chunks is asked for all of them: it fetches them to its disk, and they are read and verified layer
    by layer while they come. The bare client fetches the same ranges and looks at nothing.
    """
    with _server(directory, endpoint) as address:
        settings = ObjectSettings(address, bucket=_BUCKET, secure=False)
        objects = ObjectBlobs(settings)
        sizes = {}
        for seed in range(NUM_CHUNKS):
            chunk_id, path = write_random_chunk(directory, shape, 200 + seed)
            sizes[chunk_id] = path.stat().st_size
            objects.put_file(blob_of(chunk_id), path)
        buffers = {chunk_id: preallocated(shape) for chunk_id in sizes}
        ours, baseline = [], []
        for run in range(runs + 1):  # in turn, so that whatever else the machine does meets both alike
            node = directory / f"node-{run}"
            ours.append(sum(sizes.values()) / asyncio.run(_verified_s(node, objects, buffers)))
            baseline.append(sum(sizes.values()) / _bare_s(address, sizes))
            shutil.rmtree(node)
        for chunk_id in sizes:
            objects.delete(blob_of(chunk_id))
    return [
        measured("load_29mb_object_store", ours[1:], "byte/s", better="higher", baseline=statistics.median(baseline[1:])),
    ]


async def _verified_s(directory: Path, objects: ObjectBlobs, buffers: Mapping[str, Buffers]) -> float:
    """Seconds from asking the node to the last verified layer."""
    async with disk_node(directory, objects) as node:
        with ThreadPoolExecutor(len(buffers)) as threads:
            loop = asyncio.get_running_loop()
            started = time.perf_counter()
            opened = await node.open(RequestContext.create(), list(buffers))
            await asyncio.gather(*(loop.run_in_executor(threads, _load, chunk, buffers[chunk.chunk_id]) for chunk in opened))
            return time.perf_counter() - started


def _load(chunk: OpenedChunk, buffers: Buffers) -> None:
    assert chunk.exists, "the node could not fetch a chunk"
    with ChunkFile.open(chunk.path, chunk.layers, chunk.chunk_id, chunk.progress) as file:
        for layer, (k, v) in enumerate(buffers):
            file.read_layer(layer, k, v)


def _bare_s(endpoint: str, sizes: dict[str, int]) -> float:
    """Seconds for the same bytes, in ranges as large and as many at a time."""
    config = FetchConfig()
    connections = urllib3.PoolManager(maxsize=config.concurrency)
    client = Minio(endpoint, secure=False, credentials=EnvAWSProvider(), http_client=connections, region="us-east-1")
    ranges = [
        (blob_of(chunk_id), start, min(config.part_bytes, size - start))
        for chunk_id, size in sizes.items()
        for start in range(0, size, config.part_bytes)
    ]

    def fetch(item: tuple[str, int, int]) -> None:
        name, start, length = item
        response = client.get_object(_BUCKET, name, offset=start, length=length)
        try:
            assert len(response.read()) == length
        finally:
            response.close()
            response.release_conn()

    with ThreadPoolExecutor(config.concurrency) as threads:
        started = time.perf_counter()
        list(threads.map(fetch, ranges))
        return time.perf_counter() - started


@contextmanager
def _server(directory: Path, endpoint: str) -> Iterator[str]:
    if endpoint:
        yield endpoint
        return
    server = S3Server(directory / "s3")
    before = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)
    try:
        yield server.endpoint
    finally:
        server.close()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
