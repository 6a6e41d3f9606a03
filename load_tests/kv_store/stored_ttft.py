"""Time to first token with KV on disk, warm (in the page cache) or cold, against KV that is resident in the
engine.

The model has the shape of Qwen2-0.5B and random weights, the context 8 chunks of 512 tokens. Several contexts
take turns in a pool that holds one of them: asking a context for the first time reads it from the disk,
asking it again at once finds it resident. Both times run from the request's arrival at the engine, so that
they hold opening and loading.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from load_tests.kv_store.nodes import disk_node
from load_tests.kv_store.stored_chunks import drop_from_page_cache
from shared.engine import Engine, EngineConfig
from shared.engine.model.model import LoadedModel
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.told import DoneEvent
from shared.identity import ids_hash
from shared.measuring.report import Measurement, measured
from shared.measuring.shapes import QWEN2_05B, Shape, build_model
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

    def requests(self, vocab: int) -> list[GenerateRequest]:
        noise = random.Random(2)

        def ids(length: int) -> tuple[int, ...]:
            return tuple(noise.randrange(vocab) for _ in range(length))

        prefix, question, sampling = (
            ids(self.prefix_len),
            ids(self.question_len),
            SamplingParams(max_tokens=1, ignore_eos=True),
        )
        contexts = [[ids(length) for length in self.chunk_lens] for _ in range(self.count)]
        return [
            GenerateRequest(
                f"context-{i}",
                prefix,
                tuple(Chunk(_chunk_id(c), c) for c in chunks),
                (question,),
                sampling=sampling,
            )
            for i, chunks in enumerate(contexts)
        ]


@dataclass(frozen=True, slots=True)
class Pair:
    """Milliseconds: from the disk, and asked again right afterwards."""

    stored: float
    resident: float


def measure_stored_ttft(
    directory: Path,
    shape: Shape = QWEN2_05B,
    contexts: Contexts | None = None,
    runs: int = 12,
    device: str = "cpu",
) -> list[Measurement]:
    """``ttft_disk_over_resident`` (page cache warm) and ``ttft_cold_over_resident``, each with its twin that
    does not pipeline."""
    contexts = contexts or Contexts()
    model = build_model(shape, device)
    requests = contexts.requests(shape.vocab)
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
            _ttft_ms(engines[True], request)  # computes the chunks and stores them
        _wait_until(lambda: len(paths()) == contexts.count * len(contexts.chunk_lens))
        pairs: dict[tuple[bool, bool], list[Pair]] = {
            (pipelined, cold): [] for pipelined in engines for cold in (False, True)
        }
        for run in range(2 * runs + 2):
            request, cold = requests[run % len(requests)], bool(run % 2)
            # whatever else the machine does meets both alike
            in_turn = list(engines.items())[:: -1 if run % 4 > 1 else 1]
            for pipelined, engine in in_turn:
                for path in paths():
                    drop_from_page_cache(path) if cold else path.read_bytes()
                pair = Pair(_ttft_ms(engine, request), _ttft_ms(engine, request))
                if run > 1:  # the first ones warm up
                    pairs[pipelined, cold].append(pair)
        for engine in engines.values():
            engine.shut_down()
    return _measurements(pairs)


def _measurements(pairs: Mapping[tuple[bool, bool], Sequence[Pair]]) -> list[Measurement]:
    """``pairs``: by (pipelined, cold)."""

    def ratio(name: str, pipelined: bool, cold: bool) -> Measurement:
        ratios = [pair.stored / pair.resident for pair in pairs[pipelined, cold]]
        return measured(name, ratios, "× resident", better="lower", baseline=1.0)

    def times(name: str, cold: bool) -> Measurement:
        resident = statistics.median(pair.resident for pair in pairs[True, cold])
        return measured(
            name, [pair.stored for pair in pairs[True, cold]], "ms", better="lower", baseline=resident
        )

    return [
        ratio("ttft_disk_over_resident", True, cold=False),
        ratio("ttft_disk_over_resident_unpipelined", False, cold=False),
        ratio("ttft_cold_over_resident", True, cold=True),
        ratio("ttft_cold_over_resident_unpipelined", False, cold=True),
        times("ttft_disk", cold=False),
        times("ttft_cold", cold=True),
    ]


def _ttft_ms(engine: Engine, request: GenerateRequest) -> float:
    for event in engine.generate(request):
        if isinstance(event, DoneEvent):
            return event.timings.first_token_s * MS
    raise AssertionError("the engine ended without an event that says so")


@contextmanager
def stored_source(
    directory: Path, model: LoadedModel
) -> Iterator[tuple[StoreSegmentSource, Callable[[], list[Path]]]]:
    """A source over a node's store, which lives on an event loop of its own thread; and the files of its
    chunks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()
    try:
        node = asyncio.run_coroutine_threadsafe(
            stack.enter_async_context(disk_node(directory)), loop
        ).result()
        yield (
            StoreSegmentSource(node, "", loop, KvShape.of_model(model)),
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


def _chunk_id(token_ids: tuple[int, ...]) -> str:
    return ids_hash(token_ids)[:40]
