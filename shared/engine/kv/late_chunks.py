"""Watches loads of KV: which come so late that computing ends earlier, and what became of that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from shared.engine.kv.chunk_reads import Loaded
from shared.engine.kv.estimates import Estimates, LoadProgress
from shared.engine.kv.load_or_compute import Awaited, Rows, worth_computing
from shared.engine.kv.loader import ChunkLoad
from shared.engine.kv.residency import Entry
from shared.engine.model.spec import ModelSpec

MissingLinks = Callable[[Entry], Mapping[str, int] | None]


@dataclass(slots=True)
class LateCounts:
    """Since the start: chunks that were computed before they were loaded, and their tokens; ``num_in_vain``:
    tokens that were computed when their load ended first."""

    num_chunks: int = 0
    num_tokens: int = 0
    num_in_vain: int = 0


class LateChunks:
    """``saved_s``: see ``EngineConfig.late_from_s``."""

    def __init__(self, spec: ModelSpec, saved_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.estimates = Estimates()
        self.counts = LateCounts()
        self._spec = spec
        self._saved_s = saved_s
        self._clock = clock

    @property
    def now_s(self) -> float:
        return self._clock()

    def worth_computing(
        self, awaited: Iterable[Entry], missing_links: MissingLinks, free: int, ahead: int
    ) -> tuple[str, ...]:
        """Keys of these entries, all of one request. ``missing_links``: what of an entry's chain is not
        there, by name, in tokens; None: its chain is not known. ``free``, ``ahead``: see ``Rows``."""
        now_s = self._clock()
        chunks = [self._awaited(entry, missing_links, now_s) for entry in awaited]
        return worth_computing(chunks, Rows(free, ahead, self.estimates.computing.mean), self._saved_s)

    def _awaited(self, entry: Entry, missing_links: MissingLinks, now_s: float) -> Awaited:
        arrives_in_s = self._arrives_in_s(entry, now_s)
        alone_s = self.estimates.compute_s(len(entry.token_ids))
        if entry.only_loaded or alone_s is None or alone_s + self._saved_s > arrives_in_s:
            return Awaited(entry.key, arrives_in_s, None)  # whatever its chain is
        links = missing_links(entry)
        return Awaited(entry.key, arrives_in_s, None if links is None else len(entry.token_ids), links or {})

    def _arrives_in_s(self, entry: Entry, now_s: float) -> float:
        """By its own layers, once there are some to go by."""
        arrival = entry.segment.arrival if entry.segment is not None else None
        pace_s = arrival.pace_s if arrival is not None else None
        if pace_s is not None:
            return pace_s
        assert entry.load is not None
        return self.estimates.remaining_s(self._progress(entry, entry.load), now_s)

    # --- what became of it ---------------------------------------------------------------------------------

    def on_loaded(self, load: ChunkLoad, loaded: Loaded) -> None:
        load.ended(loaded.key)
        if loaded.segment is None or load.found_s is None:
            return
        if not load.counted:
            load.counted = True
            self.estimates.found(load.found_s - load.asked_s)
        progress = load.progress(loaded.key, self._spec.kv_bytes_per_token)
        self.estimates.read(progress.tier, loaded.ended_s - load.found_s, progress.num_bytes)

    def on_load_first(self, num_computed: int) -> None:
        """So many tokens were computed for nothing."""
        self.counts.num_in_vain += num_computed

    def on_computed_first(self, entry: Entry, load: ChunkLoad) -> bool:
        """Drops the load. True: it is stored; else whether it is will be told (see ``ChunkLoad.drop``)."""
        self.estimates.given_up(self._progress(entry, load), self._clock())
        return load.drop(entry.stored_key)

    def _progress(self, entry: Entry, load: ChunkLoad) -> LoadProgress:
        return load.progress(entry.stored_key, self._spec.kv_bytes_per_token)
