"""Measures how fast verified chunks come out of an S3 server, against a bare client that has as many requests
open."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import urllib3
from minio import Minio
from minio.credentials.providers import EnvAWSProvider

from load_tests.benchmark import in_turn
from load_tests.kv_store.nodes import disk_node
from load_tests.kv_store.stored_chunks import ChunkShape, write_random_chunk
from load_tests.servers.s3 import S3Server
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.fetching.verification import verify_object
from services.kv_store.s3.bucket import ObjectBlobs
from services.kv_store.s3.settings import ObjectSettings
from services.kv_store.tiers.chunk_names import blob_of
from shared.engine.kv.chunk_reads import FirstLayer, Loaded
from shared.engine.kv.loader import ChunkLoad, Loader
from shared.engine_config import EngineConfig
from shared.measuring.report import Measurement, measured
from shared.stored_segments.source import StoreSegmentSource

NUM_CHUNKS, CONCURRENCY, RUNS = 8, 4, 15
_FEW_TOKENS = 16
_BUCKET = "kvquilt-benchmark"


def measure_object_loads(
    directory: Path, shape: ChunkShape, endpoint: str, runs: int = RUNS
) -> list[Measurement]:
    """``endpoint``: of a server that is there already, keys in the environment; empty: one is started.

    Four ways of getting the same chunks, several at once: what a generator's miss takes, from asking its
    node, which has none of them, to the last verified layer in the engine's memory, by the engine's own
    loader; the same at a later miss, where the node fetches them to its disk meanwhile; what scrubbing takes,
    which verifies them on the way and keeps nothing; and by a bare client, which looks at nothing. Each of
    the first is measured in turn with the last, so that whatever else the machine does meets both, and apart
    from the others, whose files the system may be still writing afterwards. All have got as many chunks of a
    few tokens just before, for a generator starts its threads and connects once, not for every request.

    A server that is started here shares the machine's processors with those who read from it. So the first
    way is measured once more with the server on one of them and its readers on the others, as if it had a
    machine of its own.
    """
    with _server(directory, endpoint) as (address, server):
        objects = ObjectBlobs(ObjectSettings(address, bucket=_BUCKET, secure=False))
        sizes = _stored(objects, directory, shape, 200)
        small_shape = replace(shape, tokens=min(shape.tokens, _FEW_TOKENS))
        small = _stored(objects, directory, small_shape, 300)

        def compare(name: str, load_s: Callable[[], float]) -> Measurement:
            seconds = in_turn((runs + 1, load_s), (runs + 1, lambda: _bare_s(address, small, sizes)))
            ours, bare = ([sum(sizes.values()) / s for s in of_way[1:]] for of_way in seconds)
            return measured(name, ours, "byte/s", better="higher", baseline=bare)

        chunk_lens = [dict.fromkeys(small, small_shape.tokens), dict.fromkeys(sizes, shape.tokens)]

        def served_s(copy_from_miss: int) -> float:
            with TemporaryDirectory(dir=directory) as node:
                fetch = FetchConfig(copy_from_miss=copy_from_miss)
                return asyncio.run(_served_s(Path(node), objects, fetch, shape, chunk_lens))

        verify = partial(verify_object, objects)
        measurements = [
            compare("load_29mb_object_store", partial(served_s, FetchConfig().copy_from_miss)),
            compare("load_29mb_object_store_copied", partial(served_s, 1)),
            compare("scrub_29mb_object_store", lambda: _together_s(verify, small, sizes)),
        ]
        if server is not None and len(os.sched_getaffinity(0)) > 1:
            with _apart(server):
                served = partial(served_s, FetchConfig().copy_from_miss)
                measurements.append(compare("load_29mb_object_store_apart", served))
        for chunk_id in (*small, *sizes):
            objects.delete(blob_of(chunk_id))
    return measurements


def _stored(objects: ObjectBlobs, directory: Path, shape: ChunkShape, seed: int) -> dict[str, int]:
    """New chunks in the object store, and their sizes."""
    sizes = {}
    for i in range(NUM_CHUNKS):
        chunk_id, path = write_random_chunk(directory, shape, seed + i)
        sizes[chunk_id] = path.stat().st_size
        objects.put_file(blob_of(chunk_id), path)
    return sizes


async def _served_s(
    directory: Path,
    objects: ObjectBlobs,
    fetch: FetchConfig,
    shape: ChunkShape,
    requests: Sequence[Mapping[str, int]],
) -> float:
    """Seconds from asking the node for the chunks of the last request to the last verified layer."""
    async with disk_node(directory, objects, fetch) as node:
        loop = asyncio.get_running_loop()
        source = StoreSegmentSource(node, "", loop, shape.kv)
        loader = Loader(source, shape.spec, EngineConfig().loader_threads)
        try:
            return [await _load_s(loader, chunk_lens) for chunk_lens in requests][-1]
        finally:
            await asyncio.to_thread(loader.close)


async def _load_s(loader: Loader, chunk_lens: Mapping[str, int]) -> float:
    loop = asyncio.get_running_loop()
    arriving: asyncio.Queue[Loaded] = asyncio.Queue()

    def tell(event: FirstLayer | Loaded) -> None:
        if isinstance(event, Loaded):
            loop.call_soon_threadsafe(arriving.put_nowait, event)

    started = time.perf_counter()
    loader.load(ChunkLoad(chunk_lens), tell)
    arrived = [await arriving.get() for _ in chunk_lens]
    elapsed = time.perf_counter() - started
    assert all(loaded.segment for loaded in arrived), "the node could not fetch a chunk"
    return elapsed


def _bare_s(endpoint: str, before: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """Seconds for the same bytes."""
    all_sizes = {**before, **sizes}
    connections = urllib3.PoolManager(maxsize=CONCURRENCY)
    client = Minio(
        endpoint, secure=False, credentials=EnvAWSProvider(), http_client=connections, region="us-east-1"
    )

    def fetch(chunk_id: str) -> None:
        response = client.get_object(_BUCKET, blob_of(chunk_id))
        try:
            assert len(response.read()) == all_sizes[chunk_id]
        finally:
            response.close()
            response.release_conn()

    return _together_s(fetch, before, sizes)


def _together_s(get: Callable[[str], object], before: Iterable[str], chunk_ids: Iterable[str]) -> float:
    """Seconds for all of them, several at once."""
    with ThreadPoolExecutor(CONCURRENCY) as threads:
        list(threads.map(get, before))
        started = time.perf_counter()
        list(threads.map(get, chunk_ids))
        return time.perf_counter() - started


@contextmanager
def _server(directory: Path, endpoint: str) -> Iterator[tuple[str, S3Server | None]]:
    """Its address, and the server if it was started here."""
    if endpoint:
        yield endpoint, None
        return
    with (
        closing(S3Server(directory / "s3")) as server,
        mock.patch.dict(os.environ, server.environment),
    ):
        yield server.endpoint, server


@contextmanager
def _apart(server: S3Server) -> Iterator[None]:
    """The server on one processor, whatever this thread begins on the others."""
    own = os.sched_getaffinity(0)
    server.run_on({min(own)})
    os.sched_setaffinity(0, own - {min(own)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
