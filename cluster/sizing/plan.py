"""Works out what documents and questions need of a system, from a model's sizes, rates and prices."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from cluster.sizing.decoder import Decoder
from shared.config import check_above_zero, check_least

_GB = 1e9
_MS = 1e3
_HOUR_S, _MONTH_H = 3600.0, 730.0
_MOST = 1e12


@dataclass(frozen=True, slots=True)
class SystemPlan:
    """Plan of what is to be served, by what. ``document_tokens``: of each document, ``question_tokens`` and
    ``answer_tokens`` of each question, of which ``rate`` come per second, over ``chunks`` each.

    ``hit_share``: of the chunks of questions, those that are in an engine's memory; ``recompute``: of their
    tokens, those that are computed anew. ``ttft_ms``: what the first token may take in the mean, waiting
    included; ``branches``: answers that a replica decodes at once.

    ``tflops``, ``memory_gb_s``, ``load_gb_s``: what a replica reaches, not what its data sheet says; the last
    is for chunks into its memory, from wherever most come. ``replica_price``: per hour; ``storage_price``,
    ``cache_price``: per GB and month in the object store, which has all KV, and on nodes' disks, which have
    ``cached_share`` of it.
    """

    documents: int = 10_000
    document_tokens: int = 8_000
    chunk_tokens: int = 512
    rate: float = 1.0
    chunks: int = 8
    question_tokens: int = 64
    answer_tokens: int = 200
    hit_share: float = 0.5
    recompute: float = 0.0
    ttft_ms: float = 1000.0
    branches: int = 16
    tflops: float = 300.0
    memory_gb_s: float = 2000.0
    load_gb_s: float = 5.0
    replica_price: float = 3.0
    storage_price: float = 0.023
    cache_price: float = 0.08
    cached_share: float = 0.1

    def __post_init__(self) -> None:
        counts = ("documents", "document_tokens", "chunk_tokens", "chunks", "question_tokens", "branches")
        check_least(self, 1, *counts, "answer_tokens")
        check_above_zero(self, "rate", "ttft_ms", "tflops", "memory_gb_s", "load_gb_s")
        check_least(self, 0, "replica_price", "storage_price", "cache_price")
        for name in ("hit_share", "recompute", "cached_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must be from 0 to 1, got {getattr(self, name)}")
        for name, value in asdict(self).items():
            if value > _MOST:
                raise ValueError(f"{name}: must be at most {_MOST:g}, got {value}")

    @property
    def num_chunks(self) -> int:
        """Stored ones."""
        return self.documents * -(-self.document_tokens // self.chunk_tokens)

    @property
    def context(self) -> int:
        """Tokens of a question's chunks."""
        return self.chunks * self.chunk_tokens

    def limit_s(self, flops: float, num_bytes: float) -> float:
        return max(flops / (self.tflops * 1e12), num_bytes / (self.memory_gb_s * _GB))


@dataclass(frozen=True, slots=True)
class QuestionCost:
    """Of one question: what loading and prefill take, which go side by side, and how long a replica is busy
    with it. ``replicas`` None: no number is enough, since the first token takes longer without any waiting;
    ``waiting_ms``, ``per_month``: with that many."""

    load_ms: float
    prefill_ms: float
    busy_ms: float
    replicas: int | None
    waiting_ms: float | None
    per_month: float | None

    @property
    def least_ttft_ms(self) -> float:
        return max(self.load_ms, self.prefill_ms)


@dataclass(frozen=True, slots=True)
class Size:
    """``chunk_bytes``: of a chunk's file. ``stored_per_month``: what all KV costs. ``break_even``: how often
    a chunk must be used per month, from where keeping its KV costs less than computing it each time; None:
    computing costs nothing."""

    encoding: str
    chunk_bytes: int
    num_chunks: int
    stored_bytes: int
    cached_bytes: int
    prefill_h: float
    prefill_price: float
    stored_per_month: float
    break_even: float | None
    reusing: QuestionCost
    full: QuestionCost


def size_of(decoder: Decoder, plan: SystemPlan, encoding: str) -> Size:
    chunk_bytes = decoder.chunk_bytes(plan.chunk_tokens, encoding)
    stored_bytes = chunk_bytes * plan.num_chunks
    flops = decoder.flops(plan.chunk_tokens, plan.chunk_tokens / 2)
    prefill_h = plan.limit_s(flops, decoder.bytes_read(1, plan.chunk_tokens)) / _HOUR_S
    gb_month = plan.storage_price + plan.cached_share * plan.cache_price
    prefill_price = prefill_h * plan.replica_price
    rows = plan.question_tokens + round(plan.recompute * plan.context)
    missing_bytes = plan.chunks * (1 - plan.hit_share) * chunk_bytes
    return Size(
        encoding,
        chunk_bytes,
        plan.num_chunks,
        stored_bytes,
        round(stored_bytes * plan.cached_share),
        plan.num_chunks * prefill_h,
        plan.num_chunks * prefill_price,
        stored_bytes / _GB * gb_month,
        chunk_bytes / _GB * gb_month / prefill_price if prefill_price else None,
        reusing=_serving(decoder, plan, rows, plan.context, missing_bytes),
        full=_serving(decoder, plan, plan.context + plan.question_tokens, plan.context / 2, 0),
    )


def _serving(decoder: Decoder, plan: SystemPlan, rows: int, keys: float, load_bytes: float) -> QuestionCost:
    """``rows``: tokens that are computed before the first one of the answer, and see ``keys``."""
    context, branches = plan.context, plan.branches
    load_s = load_bytes / (plan.load_gb_s * _GB)
    prefill_s = plan.limit_s(decoder.flops(rows, keys), decoder.bytes_read(1, context))
    step = branches * decoder.flops(1, context), decoder.bytes_read(branches, context)
    busy_s = prefill_s + plan.answer_tokens * plan.limit_s(*step) / branches
    may_wait_s = plan.ttft_ms / _MS - max(load_s, prefill_s)
    told = load_s * _MS, prefill_s * _MS, busy_s * _MS
    if may_wait_s <= 0:
        return QuestionCost(*told, None, None, None)
    # Of one queue whose questions take equally long (M/D/1): wait = used × busy ÷ (2 (1 - used))
    most_used = 2 * may_wait_s / (busy_s + 2 * may_wait_s)
    replicas = max(1, math.ceil(plan.rate * busy_s / most_used))
    used = plan.rate * busy_s / replicas
    waiting_ms = used * busy_s / (2 * (1 - used)) * _MS
    return QuestionCost(*told, replicas, waiting_ms, replicas * _MONTH_H * plan.replica_price)
