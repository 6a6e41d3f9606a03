"""Time to first token with KV on disk, warm (in the page cache) or cold, against KV that is resident in the
engine.

The model has the shape of Qwen2-0.5B and random weights, the context 8 chunks of 512 tokens. Several contexts
take turns in a pool that holds one of them: asking a context for the first time reads it from the disk,
asking it again at once finds it resident. Both times run from the request's arrival at the engine, so that
they hold opening and loading.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from load_tests.kv_store.nodes import disk_node
from load_tests.kv_store.stored_chunks import drop_from_page_cache
from shared.engine import Engine, EngineConfig
from shared.engine.model.model import LoadedModel
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.identity import chunk_identity
from shared.measuring.asking import random_ids, timings_of
from shared.measuring.report import Measurement, measured
from shared.measuring.shapes import Shape, build_model
from shared.principals.config import AuthConfig
from shared.request import DEFAULT_TENANT
from shared.seals import seal_keys_of
from shared.stored_segments.files import KvShape
from shared.stored_segments.source import StoreSegmentSource

MS = 1000.0


@dataclass(frozen=True, slots=True)
class Contexts:
    """``count`` contexts of chunks of these lengths, all different."""

    chunk_lens: tuple[int, ...] = (512,) * 8
    prefix_len: int = 16
    question_len: int = 128  # as in load_tests.engine
    count: int = 3

    def requests(self, vocab: int, model: str = "") -> list[GenerateRequest]:
        """``model``: its fingerprint, by which chunks that are stored are named."""
        prefix = random_ids("prefix", self.prefix_len, vocab)
        question = random_ids("question", self.question_len, vocab)

        def chunks(context: int) -> Iterator[Chunk]:
            for i, length in enumerate(self.chunk_lens):
                ids = random_ids(f"{context}/{i}", length, vocab)
                yield Chunk(chunk_identity(DEFAULT_TENANT, model, prefix, ids), ids)

        sampling = SamplingParams(max_tokens=1, ignore_eos=True)
        return [
            GenerateRequest(f"context-{i}", prefix, tuple(chunks(i)), (question,), sampling=sampling)
            for i in range(self.count)
        ]


def measure_stored_ttft(
    directory: Path,
    shape: Shape,
    contexts: Contexts,
    runs: int = 12,
    device: str = "cpu",
) -> list[Measurement]:
    """``ttft_disk_over_resident`` (page cache warm) and ``ttft_cold_over_resident``, each with its twin that
    does not pipeline."""
    model = build_model(shape, device)
    requests = contexts.requests(shape.vocab, model.fingerprint)
    tokens = contexts.prefix_len + sum(contexts.chunk_lens)
    pool_bytes = int(1.3 * tokens * model.spec.kv_bytes_per_token)
    with stored_source(directory / "ttft", model) as (source, paths):
        engines = {
            pipelined: Engine(
                model,
                EngineConfig(dtype="bfloat16", device=device, resident_bytes=pool_bytes, pipelined=pipelined),
                source,
            )
            for pipelined in (True, False)
        }
        for request in requests:
            timings_of(engines[True], request)  # computes the chunks and stores them
        _wait_until(lambda: len(paths()) == contexts.count * len(contexts.chunk_lens))
        stored = defaultdict[tuple[bool, bool], list[float]](list)  # milliseconds, by (pipelined, cold)
        resident = defaultdict[tuple[bool, bool], list[float]](list)  # asked again right afterwards
        for run in range(2 * runs + 2):
            request, cold = requests[run % len(requests)], bool(run % 2)
            # whatever else the machine does meets both alike
            in_turn = list(engines.items())[:: -1 if run % 4 > 1 else 1]
            for pipelined, engine in in_turn:
                for path in paths():
                    drop_from_page_cache(path) if cold else path.read_bytes()
                for found in (stored, resident):
                    found[pipelined, cold].append(timings_of(engine, request).first_token_s * MS)
        for engine in engines.values():
            engine.shut_down()
    measurements = []
    for name, cold in (("ttft_disk", False), ("ttft_cold", True)):
        for ending, pipelined in (("", True), ("_unpipelined", False)):
            pairs = zip(stored[pipelined, cold], resident[pipelined, cold], strict=True)
            ratios = [from_disk / again for from_disk, again in pairs][1:]  # the first ones warm up
            measurements.append(measured(f"{name}_over_resident{ending}", ratios, "× resident", baseline=1.0))
        ours, baseline = stored[True, cold][1:], resident[True, cold][1:]
        measurements.append(measured(name, ours, "ms", baseline=baseline))
    return measurements


@contextmanager
def stored_engine(
    directory: Path, model: LoadedModel, contexts: Contexts, auth: AuthConfig | None = None
) -> Iterator[tuple[Engine, Callable[[], list[Path]]]]:
    """An engine with room for one of ``contexts``, which are all stored; and the files of their chunks.
    ``auth``: see ``stored_source``."""
    tokens = contexts.prefix_len + sum(contexts.chunk_lens)
    resident_bytes = int(1.3 * tokens * model.spec.kv_bytes_per_token)
    with stored_source(directory, model, auth) as (source, paths):
        engine = Engine(model, EngineConfig(dtype="bfloat16", resident_bytes=resident_bytes), source)
        try:
            for request in contexts.requests(model.spec.vocab_size, model.fingerprint):
                timings_of(engine, request)  # computes the chunks and stores them
            _wait_until(lambda: len(paths()) == contexts.count * len(contexts.chunk_lens))
            yield engine, paths
        finally:
            engine.shut_down()


@contextmanager
def stored_source(
    directory: Path, model: LoadedModel, auth: AuthConfig | None = None
) -> Iterator[tuple[StoreSegmentSource, Callable[[], list[Path]]]]:
    """A source over a node's store, which lives on an event loop of its own thread; and the files of its
    chunks. ``auth``: whose secret seals them; None: nothing is sealed."""
    keys = seal_keys_of(auth) if auth is not None else None
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()
    try:
        node = asyncio.run_coroutine_threadsafe(
            stack.enter_async_context(disk_node(directory, auth=auth)), loop
        ).result()
        yield (
            StoreSegmentSource(node, "", loop, KvShape.of_model(model), keys=keys),
            lambda: sorted(directory.glob("c*/**/*.arrow")),
        )
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _wait_until(condition: Callable[[], bool]) -> None:
    """KV is written back.

    Raises:
        TimeoutError: not within two minutes.
    """
    pause, give_up = threading.Event(), time.monotonic() + 120
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError("the KV of the contexts was not stored; the log has the reason")
        pause.wait(0.05)
