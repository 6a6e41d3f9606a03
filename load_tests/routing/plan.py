"""Says what a simulated day is made of: the fleet, the chunks, the questions, and what happens when."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from shared.generation.ranges import check_range
from shared.routing.costs import ReplicaRates, Tier

CHUNK_TOKENS = 512
SUBJECT_CHUNKS = 48
BLOCK_CHUNKS = 8
_TOKEN_BYTES = 57_344  # Qwen2-7B in bf16
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the day, from ``begin`` to ``end`` as shares of it."""

    name: str
    begin: float
    end: float

    def covers(self, share: float) -> bool:
        return self.begin <= share < self.end


WARM_UNTIL = 0.25
STEADY = Phase("steady", 0.25, 0.42)
FLASH = Phase("flash", 0.45, 0.58)
LOSS = Phase("loss", 0.62, 0.74)
ROLL = Phase("roll", 0.78, 0.98)
DAY = Phase("day", WARM_UNTIL, 1.01)
PHASES = (DAY, STEADY, FLASH, LOSS, ROLL)


@dataclass(frozen=True, slots=True)
class DayPlan:
    """
    pool_chunks, disk_chunks: what a replica's engine and a node's disk hold.
    load: questions per second and replica, the day's mean; its peak is half as much again.
    routers: as many views of the fleet, a question by any of them.
    zipf: exponent of how often subjects are asked about. novel_share: of questions, those about a subject
    that is drawn without regard to that. stray_chunks: of a question's chunks, those of other subjects.
    question_tokens: mean of what is prefilled for a question wherever it goes.
    flash_share: of questions, those about one subject that nobody asked about before, while there is a crowd.
    lost_share: of nodes, those that vanish at once.
    report_ms: how often holders tell routers; lag_ms: how long that takes to arrive; report_loss: the share
    that never does. rates_off: by which share replicas measure their speed wrong, up or down, each for good.
    rolls: whether every replica is restarted.

    Raises:
        InvalidRequest: names the field and its range.
    """

    num_replicas: int = 1_000
    replicas_per_node: int = 4
    num_chunks: int = 10_000_000
    num_questions: int = 60_000
    chunks_per_question: int = 16
    stray_chunks: int = 4
    pool_chunks: int = 512
    disk_chunks: int = 4_096
    load: float = 2.0
    routers: int = 2
    zipf: float = 0.9
    novel_share: float = 0.05
    question_tokens: int = 150
    flash_share: float = 0.3
    lost_share: float = 0.1
    report_ms: float = 1_000.0
    lag_ms: float = 200.0
    report_loss: float = 0.005
    rates_off: float = 0.0
    rolls: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        shares = dict.fromkeys(("novel_share", "flash_share", "report_loss"), 1.0)
        shares |= {"zipf": 4, "lost_share": 0.5, "rates_off": 0.9}
        for name, most in shares.items():
            share = getattr(self, name)
            check_range(name, share, 0 <= share <= most, f"0 to {most:g}")
        for name in ("replicas_per_node", "chunks_per_question", "question_tokens", "num_questions"):
            check_range(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        check_range("num_replicas", self.num_replicas, self.num_replicas >= 2, "2 or more")
        check_range("routers", self.routers, 1 <= self.routers <= 1_000, "1 to 1000")
        check_range("load", self.load, math.isfinite(self.load) and self.load > 0, "above 0")
        for name in ("report_ms", "lag_ms"):
            ok = math.isfinite(getattr(self, name)) and getattr(self, name) >= 1
            check_range(name, getattr(self, name), ok, "1 ms or more")
        own = self.chunks_per_question - self.stray_chunks
        rule = f"0 to chunks_per_question, of which at most {SUBJECT_CHUNKS} may be left"
        check_range("stray_chunks", self.stray_chunks, self.stray_chunks >= 0 <= own <= SUBJECT_CHUNKS, rule)
        least = 2 * self.chunks_per_question
        check_range("pool_chunks", self.pool_chunks, self.pool_chunks >= least, f"{least} or more")
        check_range("disk_chunks", self.disk_chunks, self.disk_chunks >= 1, "1 or more")
        enough = self.num_chunks >= 16 * SUBJECT_CHUNKS
        check_range("num_chunks", self.num_chunks, enough, f"{16 * SUBJECT_CHUNKS} or more")

    @property
    def num_nodes(self) -> int:
        return math.ceil(self.num_replicas / self.replicas_per_node)

    @property
    def num_subjects(self) -> int:
        return self.num_chunks // SUBJECT_CHUNKS

    @property
    def day_ms(self) -> float:
        return self.num_questions / (self.num_replicas * self.load) * 1e3

    def but(self, **changes: object) -> DayPlan:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


FULL = DayPlan()
SMALL = DayPlan(num_replicas=32, num_chunks=200_000, num_questions=6_000, disk_chunks=8_000, routers=4)

RATES = ReplicaRates(
    {
        Tier.DISK: _TOKEN_BYTES / (10 * _GB) * 1e3,
        Tier.PEER: _TOKEN_BYTES / (6 * _GB) * 1e3,
        Tier.OBJECTS: _TOKEN_BYTES / (3 * _GB) * 1e3,
    },
    prefill_ms=0.04,
    branch_ms=0.2,
)
"""Of Qwen2-7B on a GPU that prefills 25,000 tokens per second, four to a node: the node's disks read 10 GB/s,
others send it 6, the object store 3."""
DECODE_MS = 4_000.0
"""How long an answer decodes, its mean."""
MOST_ONGOING = 64


def token_bytes(num_tokens: int) -> int:
    return num_tokens * _TOKEN_BYTES
