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
from services.kv_store.blobs import Blobs
from services.kv_store.chunk_names import blob_of
from services.kv_store.fetch import FetchConfig
from services.kv_store.object_blobs import ObjectBlobs
from services.kv_store.object_chunks import ObjectChunk
from services.kv_store.object_settings import ObjectSettings
from shared.errors import NotFound
from shared.kv_format import ChunkFile
from shared.kv_types import OpenedChunk
from shared.request import RequestContext

NUM_CHUNKS, RUNS = 4, 9
_BUCKET = "kvquilt-benchmark"
Buffers = Sequence[tuple[Array, Array]]


def measure_object_loads(directory: Path, shape: ChunkShape, endpoint: str = "", runs: int = RUNS) -> list[Measurement]:
    """``endpoint``: of a server that is there already, keys in the environment; empty: one is started.

    Three ways of getting the same chunks, in turn: from the server straight into tensors, verified on the way; by a node that has
    none of them, fetches them to its disk, and has them read and verified layer by layer while they come; and by a bare client that
    fetches the same bytes with as many requests at a time, and looks at nothing.
    """
    with _server(directory, endpoint) as address:
        objects = ObjectBlobs(ObjectSettings(address, bucket=_BUCKET, secure=False))
        sizes = {}
        for seed in range(NUM_CHUNKS):
            chunk_id, path = write_random_chunk(directory, shape, 200 + seed)
            sizes[chunk_id] = path.stat().st_size
            objects.put_file(blob_of(chunk_id), path)
        buffers = {chunk_id: preallocated(shape) for chunk_id in sizes}
        direct, staged, bare = [], [], []
        for run in range(runs + 1):  # in turn, so that whatever else the machine does meets all alike
            node = directory / f"node-{run}"
            direct.append(sum(sizes.values()) / _direct_s(objects, buffers))
            bare.append(sum(sizes.values()) / _bare_s(address, sizes))
            staged.append(sum(sizes.values()) / asyncio.run(_staged_s(node, objects, buffers)))
            shutil.rmtree(node)
        for chunk_id in sizes:
            objects.delete(blob_of(chunk_id))
    baseline = statistics.median(bare[1:])
    return [
        measured("load_29mb_object_store", direct[1:], "byte/s", better="higher", baseline=baseline),
        measured("load_29mb_object_store_staged", staged[1:], "byte/s", better="higher", baseline=baseline),
    ]


def _direct_s(objects: Blobs, buffers: Mapping[str, Buffers]) -> float:
    """Seconds from knowing the ids to the last verified layer."""
    config = FetchConfig()
    with ThreadPoolExecutor(config.concurrency) as threads:
        started = time.perf_counter()
        chunks = {chunk_id: threads.submit(ObjectChunk, objects, chunk_id) for chunk_id in buffers}
        loads = []
        for chunk_id, opening in chunks.items():
            chunk, layers = opening.result(), buffers[chunk_id]
            at_once = max(1, round(config.part_bytes / chunk.summary.layers[0][1]))
            parts = range(0, len(layers), at_once)
            loads += [threads.submit(chunk.read_layers, first, layers[first : first + at_once]) for first in parts]
        for load in loads:
            load.result()
        return time.perf_counter() - started


async def _staged_s(directory: Path, objects: ObjectBlobs, buffers: Mapping[str, Buffers]) -> float:
    """Seconds from asking the node to the last verified layer."""
    async with disk_node(directory, objects) as node:
        with ThreadPoolExecutor(len(buffers)) as threads:
            loop = asyncio.get_running_loop()
            started = time.perf_counter()
            missing = list(buffers)
            while missing:  # what arrived whole in between has moved to its tier, and is asked for again
                opened = await node.open(RequestContext.create(), missing)
                loads = [loop.run_in_executor(threads, _load, chunk, buffers[chunk.chunk_id]) for chunk in opened]
                missing = [chunk_id for chunk_id, loaded in zip(missing, await asyncio.gather(*loads), strict=True) if not loaded]
            return time.perf_counter() - started


def _load(chunk: OpenedChunk, buffers: Buffers) -> bool:
    """Whether the file was still where it was said to be."""
    assert chunk.exists, "the node could not fetch a chunk"
    try:
        file = ChunkFile.open(chunk.path, chunk.layers, chunk.chunk_id, chunk.progress)
    except NotFound:
        return False
    with file:
        for layer, (k, v) in enumerate(buffers):
            file.read_layer(layer, k, v)
    return True


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
