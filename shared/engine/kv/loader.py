"""Threads that move KV between the engine and its segment source, so that the step loop never waits for
storage."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from shared.engine.kv.chunk_reads import ChunkRead, Loaded, ReadList, Tell, is_broken
from shared.engine.kv.copy_stream import CopyStream
from shared.engine.kv.estimates import LoadProgress
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import ComputedChunk, SegmentSource, StoredSegment
from shared.engine.model.out_of_memory import told_alike
from shared.engine.model.spec import ModelSpec
from shared.errors import InternalError, KvquiltError
from shared.generation.asked import Chunk
from shared.identity import TokenIds

log = logging.getLogger(__name__)

_REQUESTS_AT_A_TIME = 4
_COPY_BYTES = 16 << 20  # to a GPU: of less the interpreter takes longer to order it than the device to copy
_LEAST_COPIES = 2  # of a chunk: a pass begins with the first


@dataclass(frozen=True, slots=True)
class Checked:
    """``intact``: the chunk is stored and every layer of it reads right."""

    key: str
    intact: bool
    broken: bool


@dataclass(frozen=True, slots=True)
class Saved:
    key: str
    error: KvquiltError | None


@dataclass(frozen=True, slots=True)
class FoundChain:
    """The chunks in front of the one that goes by ``key``; None: nobody knows them."""

    key: str
    chain: tuple[Chunk, ...] | None


class ChunkLoad:
    """Chunks of one request on their way. Made and asked by the engine's thread, filled by the loader's.

    ``found_s``: when the source said which of them are stored; before that None. ``tiers``: of those that
    are; ``absent``: the others, and those that cannot be read, for want of memory or otherwise."""

    def __init__(self, chunk_lens: Mapping[str, int], now_s: float | None = None) -> None:
        self.chunk_lens = chunk_lens
        self.asked_s = time.monotonic() if now_s is None else now_s
        self.counted = False  # how long finding took
        self.found_s: float | None = None
        self.tiers: Mapping[str, str] = {}
        self.absent: frozenset[str] = frozenset()
        self._reads: dict[str, ChunkRead] = {}
        self._dropped: set[str] = set()
        self._num_begun = 0
        self._lock = threading.Lock()

    def found(self, stored: Mapping[str, StoredSegment], read: Callable[[str], ChunkRead]) -> list[ChunkRead]:
        """Begins to read those that are stored and still wanted (``read`` does), and closes the others."""
        absent = set(self.chunk_lens) - stored.keys()
        with self._lock:
            for key, segment in stored.items():
                if key in self._dropped:
                    segment.close()
                    continue
                try:
                    with told_alike():
                        self._reads[key] = read(key)
                    continue
                except torch.OutOfMemoryError:
                    pass  # whoever computes it instead makes room, or fails
                except Exception:
                    log.exception("the stored KV of chunk %s cannot be read; it is computed", key)
                segment.close()
                absent.add(key)
            self.absent = frozenset(absent)
            self.tiers = {key: segment.tier for key, segment in stored.items()}
            self.found_s = time.monotonic()
            return list(self._reads.values())

    def drop(self, key: str) -> bool:
        """A chunk is not wanted any more; if it is stored, nothing more is told of it. False: whether it is
        will be told, by ``Loaded`` if it is not."""
        with self._lock:
            self._dropped.add(key)
            read = self._reads.pop(key, None)
        if read is not None:
            read.drop()
        return read is not None

    def give_up(self, num_layers: int, tell: Tell) -> None:
        """Instead of reading, before anybody reads: all that is wanted is told to be absent."""
        with self._lock:
            reads = dict(self._reads)
        for key in self.chunk_lens:
            if key in reads:
                reads[key].give_up(range(num_layers))
            else:
                tell(Loaded(key, None, broken=False))

    def begun(self) -> bool:
        """The first layer of one more is there. False: of others, that are stored and wanted, it is not."""
        with self._lock:
            self._num_begun += 1
            return self._num_begun >= len(self.tiers.keys() - self._dropped)

    def ended(self, key: str) -> None:
        """It was told."""
        with self._lock:
            self._reads.pop(key, None)

    def progress(self, key: str, bytes_per_token: int) -> LoadProgress:
        """Chunks that come from one tier come together, layer by layer."""
        tier = self.tiers.get(key, "")
        together = (k for k in self.chunk_lens if self.found_s is None or self.tiers.get(k) == tier)
        num_tokens = sum(self.chunk_lens[k] for k in together)
        return LoadProgress(self.asked_s, num_tokens * bytes_per_token, self.found_s, tier)


class Loader:
    """Results arrive through callbacks on the loader's threads."""

    def __init__(self, source: SegmentSource, spec: ModelSpec, num_threads: int) -> None:
        """``num_threads``: for the chunks of one request; a few requests are served at a time, so that one
        whose KV comes slowly does not hold up the others."""
        self._source = source
        self._spec = spec
        self._num_threads = num_threads
        self._closing = threading.Event()
        self._copies = CopyStream(spec.device) if spec.device.type == "cuda" else None
        self._readers = ThreadPoolExecutor(
            _REQUESTS_AT_A_TIME * num_threads,
            thread_name_prefix="kv-load",
            initializer=self._copies.enter if self._copies else None,
        )
        self._verifiers = ThreadPoolExecutor(num_threads, thread_name_prefix="kv-verify")
        self._scout = ThreadPoolExecutor(1, thread_name_prefix="kv-prefetch")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-save")

    def load(
        self, load: ChunkLoad, tell: Tell, encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> None:
        """Reads the chunks of one request, layer by layer. Calls ``tell`` with ``Loaded`` once per chunk that
        is not dropped, before that perhaps with ``FirstLayer``. The others: see ``SegmentSource.open``."""
        self._readers.submit(self._load, load, tell, encoding, traceparent, tenant)

    def find_chain(
        self, chunk: Chunk, tenant: str, prefix_ids: TokenIds, tell: Callable[[FoundChain], None]
    ) -> None:
        """Asks the source for what stands in front of a chunk of the tenant, behind ``prefix_ids``."""
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._scout.submit(self._find_chain, chunk, tenant, prefix_ids, tell)

    def verify(
        self,
        chunk_lens: Mapping[str, int],
        done: Callable[[Checked], None],
        encoding: str = "",
        tenant: str = "",
    ) -> None:
        """Calls ``done`` once per chunk; reads everything and keeps nothing. ``encoding``, ``tenant``: see
        ``SegmentSource.open``."""
        self._verifiers.submit(self._verify_all, chunk_lens, done, encoding, tenant)

    @property
    def encoding(self) -> str:
        """That computed KV is stored in."""
        return self._source.encoding

    def as_stored(self, segment: Segment, saved: bool) -> None:
        """Gives a complete segment, in place, the values that it is loaded with. ``saved``: it will be."""
        self._source.as_stored(segment.k_LKTD, segment.v_LKTD, saved)
        segment.encoding = self._source.encoding

    def prefetch(self, chunk_ids: Sequence[str], tenant: str = "") -> None:
        """Tells the source what will be loaded later. Failures do not matter."""
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._scout.submit(self._prefetch, chunk_ids, tenant)

    def save(self, chunk: ComputedChunk, done: Callable[[Saved], None] | None = None) -> None:
        """Makes it durable. Without ``done`` a failure is only logged: the answer does not depend on it."""
        self._writer.submit(self._save, chunk, done)

    def close(self) -> None:
        """Waits for what is being stored; what is being read is given up."""
        self._closing.set()
        for pool in (self._scout, self._verifiers, self._readers):
            pool.shutdown(wait=True, cancel_futures=True)
        self._writer.shutdown(wait=True)

    def _find_chain(
        self, chunk: Chunk, tenant: str, prefix_ids: TokenIds, tell: Callable[[FoundChain], None]
    ) -> None:
        chain = None
        try:
            chain = self._source.chain(chunk, tenant, prefix_ids)
        except Exception:
            log.exception("nobody can say what stands in front of chunk %s", chunk.chunk_id)
        tell(FoundChain(chunk.chunk_id, None if chain is None else tuple(chain)))

    def _load(self, load: ChunkLoad, tell: Tell, encoding: str, traceparent: str, tenant: str) -> None:
        try:
            read_list = self._read_list(load, tell, encoding, traceparent, tenant)
        except Exception:  # somebody waits for each of them
            log.exception("%d chunks cannot be loaded; they are computed", len(load.chunk_lens))
            load.give_up(self._spec.num_layers, tell)
            return
        for key in load.absent:
            tell(Loaded(key, None, broken=False))
        with contextlib.suppress(RuntimeError):  # closing: this thread clears the list alone
            for _ in range(self._num_threads - 1):
                self._readers.submit(read_list.work, self._closing)
        read_list.work(self._closing)

    def _read_list(
        self, load: ChunkLoad, tell: Tell, encoding: str, traceparent: str, tenant: str
    ) -> ReadList:
        chunk_lens = load.chunk_lens
        stored = self._open(chunk_lens, encoding, traceparent, tenant)

        def read(key: str) -> ChunkRead:
            return ChunkRead(
                key, stored[key], Segment.arriving(self._spec, chunk_lens[key]), tell, self._copies
            )

        reads = load.found({key: stored[key] for key in chunk_lens if key in stored}, read)
        return ReadList(reads, self._spec.num_layers, self._layers_at_once(chunk_lens))

    def _layers_at_once(self, chunk_lens: Mapping[str, int]) -> int:
        """One, which a pass can go on with; to a GPU as many as are worth a copy."""
        if self._copies is None:
            return 1
        num_layers = self._spec.num_layers
        layer_bytes = max(chunk_lens.values()) * self._spec.kv_bytes_per_token // num_layers
        return min(-(-_COPY_BYTES // layer_bytes), -(-num_layers // _LEAST_COPIES))

    def _open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        try:
            return self._source.open(chunk_lens, encoding, traceparent, tenant)
        except Exception:
            log.exception("the segment source failed to open %d chunks; they are recomputed", len(chunk_lens))
            return {}

    def _verify_all(
        self, chunk_lens: Mapping[str, int], done: Callable[[Checked], None], encoding: str, tenant: str
    ) -> None:
        stored = self._open(chunk_lens, encoding, tenant=tenant)
        for key, num_tokens in chunk_lens.items():
            if key not in stored:
                done(Checked(key, intact=False, broken=False))
                continue
            try:
                self._verifiers.submit(self._verify, key, stored[key], num_tokens, done)
            except RuntimeError:  # closing
                stored[key].close()

    def _verify(
        self, key: str, stored: StoredSegment, num_tokens: int, done: Callable[[Checked], None]
    ) -> None:
        intact = broken = False
        try:
            spec = self._spec
            k_KTD, v_KTD = (
                torch.empty(spec.num_kv_heads, num_tokens, spec.head_dim, dtype=spec.dtype) for _ in "kv"
            )
            for layer in range(spec.num_layers):
                stored.read_layers(range(layer, layer + 1), [k_KTD], [v_KTD])
            intact = True
        except Exception as error:
            broken = is_broken(key, error)
        finally:
            stored.close()
        done(Checked(key, intact, broken))

    def _prefetch(self, chunk_ids: Sequence[str], tenant: str) -> None:
        try:
            self._source.prefetch(chunk_ids, tenant)
        except Exception:
            log.exception("%d chunks could not be asked for in advance", len(chunk_ids))

    def _save(self, chunk: ComputedChunk, done: Callable[[Saved], None] | None) -> None:
        key, error = chunk.key, None
        try:
            self._source.save(chunk)
        except KvquiltError as failure:
            log.warning("KV of chunk %s could not be stored: %s", key, failure.detail)
            error = failure
        except Exception:
            log.exception("KV of chunk %s could not be stored", key)
            error = InternalError("the chunk's KV could not be stored; the generator's log has the reason")
        if done is not None:
            done(Saved(key, error))
