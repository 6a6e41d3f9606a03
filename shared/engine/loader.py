"""Threads that move KV between the engine and its segment source, so that the step loop never waits for storage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from shared.engine.model import ModelSpec
from shared.engine.segment import Segment
from shared.engine.source import SegmentSource, StoredSegment
from shared.errors import CorruptData, InternalError, KvquiltError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """``segment`` is None when there is nothing usable; ``broken``: there is something, and it is not what was stored."""

    key: str
    segment: Segment | None
    broken: bool


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


class Loader:
    """Results arrive through callbacks on the loader's threads."""

    def __init__(self, source: SegmentSource, spec: ModelSpec, num_threads: int) -> None:
        self._source = source
        self._spec = spec
        self._readers = ThreadPoolExecutor(num_threads, thread_name_prefix="kv-load")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-save")

    def load(self, chunk_lens: Mapping[str, int], done: Callable[[Loaded], None], encoding: str = "") -> None:
        """Calls ``done`` once per chunk. ``encoding``: see ``SegmentSource.open``."""
        self._readers.submit(self._open, chunk_lens, done, encoding)

    def verify(self, chunk_lens: Mapping[str, int], done: Callable[[Checked], None], encoding: str = "") -> None:
        """Calls ``done`` once per chunk; reads everything and keeps nothing."""
        self.load(chunk_lens, lambda loaded: done(Checked(loaded.key, loaded.segment is not None, loaded.broken)), encoding)

    def as_stored(self, segment: Segment) -> None:
        """Gives a complete segment, in place, the values that it will be loaded with."""
        self._source.as_stored(segment.k_LKTD, segment.v_LKTD)

    def save(
        self,
        key: str,
        prefix_ids: tuple[int, ...],
        token_ids: tuple[int, ...],
        segment: Segment,
        replace: bool,
        behind: bool,
        encoding: str = "",
        done: Callable[[Saved], None] | None = None,
    ) -> None:
        """Makes a complete segment durable. Without ``done`` a failure is only logged: the answer does not depend on it."""
        self._writer.submit(self._save, key, prefix_ids, token_ids, segment, replace, behind, encoding, done)

    def close(self) -> None:
        """Waits for what was begun."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._writer.shutdown(wait=True)

    def _open(self, chunk_lens: Mapping[str, int], done: Callable[[Loaded], None], encoding: str) -> None:
        try:
            stored = self._source.open(chunk_lens, encoding)
        except Exception:
            log.exception("the segment source failed to open %d chunks; they are recomputed", len(chunk_lens))
            stored = {}
        for key, num_tokens in chunk_lens.items():
            if key in stored:
                self._readers.submit(self._read, key, stored[key], num_tokens, done)
            else:
                done(Loaded(key, None, broken=False))

    def _read(self, key: str, stored: StoredSegment, num_tokens: int, done: Callable[[Loaded], None]) -> None:
        segment = Segment(self._spec, num_tokens)
        broken = False
        try:
            for layer in range(self._spec.num_layers):
                stored.read_layer(layer, segment.k_LKTD[layer], segment.v_LKTD[layer])
            segment.length = num_tokens
        except CorruptData as error:
            log.warning("stored KV of chunk %s is corrupt (%s); it is recomputed and replaced", key, error.detail)
            broken = True
        except KvquiltError as error:
            log.warning("stored KV of chunk %s cannot be had (%s); it is recomputed", key, error.detail)
        except Exception:
            log.exception("stored KV of chunk %s cannot be read; it is recomputed", key)
        finally:
            stored.close()
        done(Loaded(key, segment if segment.length else None, broken))

    def _save(
        self,
        key: str,
        prefix_ids: tuple[int, ...],
        token_ids: tuple[int, ...],
        segment: Segment,
        replace: bool,
        behind: bool,
        encoding: str,
        done: Callable[[Saved], None] | None,
    ) -> None:
        error: KvquiltError | None = None
        try:
            self._source.save(key, prefix_ids, token_ids, segment.k_LKTD, segment.v_LKTD, replace, behind, encoding)
        except KvquiltError as failure:
            log.warning("KV of chunk %s could not be stored: %s", key, failure.detail)
            error = failure
        except Exception:
            log.exception("KV of chunk %s could not be stored", key)
            error = InternalError("the chunk's KV could not be stored; the generator's log has the reason")
        if done is not None:
            done(Saved(key, error))
