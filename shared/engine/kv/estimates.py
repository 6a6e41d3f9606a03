"""Estimates how long loading KV and computing it will take, by how long both took lately. Pure: no clocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.engine.scheduler import TILE

_KEPT = 0.8
"""What a load counts once there was another one."""
_MEMORY_ROWS = 4096
"""Rows after which what was seen before counts half."""


@dataclass(slots=True)
class RunningMean:
    """Seconds per unit, over what was seen lately, each by its size."""

    seconds: float = 0.0
    units: float = 0.0

    def add(self, seconds: float, units: float, kept: float) -> None:
        """``kept``: what all that was seen before counts from now on."""
        self.seconds = kept * self.seconds + seconds
        self.units = kept * self.units + units

    @property
    def mean(self) -> float | None:
        """None: nothing was seen yet."""
        return self.seconds / self.units if self.units else None


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """State of the load of a chunk: asked for at an instant and, once it was found, being read from
    ``tier`` since ``found_s``. ``num_bytes``: of all that comes with it, since they come together."""

    asked_s: float
    num_bytes: int
    found_s: float | None = None
    tier: str = ""


@dataclass(slots=True)
class Estimates:
    """Running means: of finding chunks, of reading a byte from each tier, of computing a token's KV."""

    finding: RunningMean = field(default_factory=RunningMean)
    reading: dict[str, RunningMean] = field(default_factory=dict)
    computing: RunningMean = field(default_factory=RunningMean)
    _seen_many_rows: bool = False

    def found(self, seconds: float) -> None:
        self.finding.add(seconds, 1.0, _KEPT)

    def read(self, tier: str, seconds: float, num_bytes: int) -> None:
        self.reading.setdefault(tier, RunningMean()).add(seconds, num_bytes, _KEPT)

    def computed(self, seconds: float, num_rows: int) -> None:
        """A pass. One of few rows takes as long as reading the weights does, and says little about others: it
        counts until there was one of many."""
        if num_rows >= TILE and not self._seen_many_rows:
            self._seen_many_rows, self.computing = True, RunningMean()
        if num_rows >= TILE or not self._seen_many_rows:
            self.computing.add(seconds, num_rows, _MEMORY_ROWS / (_MEMORY_ROWS + num_rows))

    def given_up(self, load: LoadProgress, now_s: float) -> None:
        """A load was not waited for. It tells something only if it was late already: it takes that long at
        least."""
        elapsed_s, expected_s = self._times(load, now_s)
        if elapsed_s <= expected_s:
            return
        if load.found_s is None:
            self.found(elapsed_s)
        else:
            self.read(load.tier, elapsed_s, load.num_bytes)

    def remaining_s(self, load: LoadProgress, now_s: float) -> float:
        """Seconds until it is there. What is late, or was never seen, takes as long again as it has taken."""
        elapsed_s, expected_s = self._times(load, now_s)
        return expected_s - elapsed_s if elapsed_s < expected_s else elapsed_s

    def compute_s(self, num_rows: int) -> float | None:
        """None: nobody knows."""
        row_s = self.computing.mean
        return None if row_s is None else row_s * num_rows

    def _times(self, load: LoadProgress, now_s: float) -> tuple[float, float]:
        """Seconds that it has taken, and that it should take. Until it is found, with luck it is where
        reading is quickest."""
        if load.found_s is not None:
            read = self.reading.get(load.tier)
            byte_s = None if read is None else read.mean
            return now_s - load.found_s, (byte_s or 0.0) * load.num_bytes
        byte_s = min((read.mean or 0.0 for read in self.reading.values()), default=0.0)
        return now_s - load.asked_s, (self.finding.mean or 0.0) + byte_s * load.num_bytes
