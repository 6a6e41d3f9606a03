"""Drives an ``Engine`` as tests need it: several requests at once, everything that came out of each,
reproducible token ids."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.jobs.context import ContextJob
from shared.engine.kv.source import ComputedChunk, StoredSegment
from shared.errors import CorruptData, KvquiltError
from shared.generation.asked import Chunk, GenerateRequest, PrefillRequest, SamplingParams, chain_of
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.told import BranchDoneEvent, DoneEvent, Event, FailedEvent, TokenEvent
from shared.identity import chunk_identity
from tests.oracles import ORACLES, VOCAB, Chained, Generated, assert_same_generation, tiny_model

PATIENCE_S = 60.0


def any_lengths(most_chunks: int = 8, longest_question: int = 40) -> dict[str, st.SearchStrategy[Any]]:
    """Of a request's prefix, chunks and questions in tokens, and the seed of its ids, for ``given``."""
    return {
        "prefix": st.integers(0, 9),
        "chunks": st.lists(st.integers(1, 90), max_size=most_chunks),
        "questions": st.lists(st.integers(1, longest_question), min_size=1, max_size=3),
        "seed": st.integers(0, 3),
    }


@dataclass
class Run:
    """One request and its events, in the order in which they came."""

    request: GenerateRequest | PrefillRequest
    events: list[Event] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], (DoneEvent, FailedEvent))

    @property
    def done(self) -> DoneEvent:
        assert isinstance(self.events[-1], DoneEvent), self.events[-1]
        return self.events[-1]

    @property
    def error(self) -> Exception:
        assert isinstance(self.events[-1], FailedEvent), self.events[-1]
        return self.events[-1].error

    def tokens(self, question: int = 0, sample: int = 0) -> list[TokenEvent]:
        return [
            e
            for e in self.events
            if isinstance(e, TokenEvent) and (e.question, e.sample) == (question, sample)
        ]

    def branch(self, question: int = 0, sample: int = 0) -> Generated:
        events = self.tokens(question, sample)
        tops = tuple(e.top_logprobs for e in events)
        return Generated(
            tuple(e.token_id for e in events), tuple(e.logprob for e in events), tops if any(tops) else ()
        )

    def branches(self) -> dict[tuple[int, int], Generated]:
        """Everything that must not depend on company."""
        assert isinstance(self.request, GenerateRequest)
        return {
            (q, s): self.branch(q, s)
            for q in range(len(self.request.questions))
            for s in range(self.request.sampling.n)
        }

    def finish(self, question: int = 0, sample: int = 0) -> BranchDoneEvent:
        (event,) = (
            e
            for e in self.events
            if isinstance(e, BranchDoneEvent) and (e.question, e.sample) == (question, sample)
        )
        return event

    def text(self, question: int = 0, sample: int = 0) -> str:
        return "".join(e.text for e in self.tokens(question, sample)) + self.finish(question, sample).text


def engine_of(family: str = "qwen2", *, hf_model: Any = None, **settings: Any) -> Engine:
    """An engine over its own copy of the tiny model of ``family`` (the engine changes the model it is
    given). Unless told, what is stored is loaded however busy this machine is."""
    source, decode = settings.pop("source", None), settings.pop("decode", None)
    extra: dict[str, Any] = {"decode": decode} | ({} if source is None else {"source": source})
    weights = settings.get("weights", "exact")
    return Engine(
        wrap_model(hf_model if hf_model is not None else tiny_model(family), weights=weights),
        EngineConfig(**{"late_rows": 0} | settings),
        **extra,
    )


def run(
    engine: Engine,
    *requests: GenerateRequest | PrefillRequest,
    on_event: Callable[[Run, Event], None] | None = None,
) -> list[Run]:
    """Submits all requests in order, steps until each has ended, and checks the engine's books on the way."""
    runs = [Run(request) for request in requests]
    for one in runs:
        engine.submit(one.request, _sink(one, on_event))
    give_up = time.monotonic() + PATIENCE_S
    while not all(one.ended for one in runs):
        if not engine.step() and not all(one.ended for one in runs):
            assert time.monotonic() < give_up, f"the engine is stuck: {engine.stats()}"
            engine.wait()  # loader threads are at work
        engine.check_invariants()
    return runs


def _sink(one: Run, on_event: Callable[[Run, Event], None] | None) -> Callable[[Event], None]:
    def sink(event: Event) -> None:
        assert not one.ended, f"{event} after the end"
        one.events.append(event)
        if on_event is not None:
            on_event(one, event)

    return sink


def jobs_of(engine: Engine) -> list[ContextJob]:
    """What the engine keeps of the requests that run."""
    return list(engine._requests.running)


@contextmanager
def collector_off() -> Iterator[None]:
    """Inside, memory returns by reference counts alone: KV that only the collector of cycles would free
    counts as held."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Prompts:
    """Reproducible random requests for one engine."""

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        self._fingerprint = engine.model.fingerprint
        self._random = random.Random(seed)
        self._count = 0

    def ids(self, num_tokens: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(3, VOCAB) for _ in range(num_tokens))

    def chunk(self, prefix: tuple[int, ...], token_ids: tuple[int, ...], parent_id: str = "") -> Chunk:
        of = ("test", self._fingerprint, prefix, token_ids)
        return Chunk(
            chunk_identity(*of, parent_id), token_ids, parent_id, chunk_identity(*of) if parent_id else ""
        )

    def document(self, prefix: tuple[int, ...], lens: Sequence[int]) -> list[Chunk]:
        """Chunks of random ids, each behind all in front of it."""
        chunks: list[Chunk] = []
        for length in lens:
            ids, parent_id = self.ids(length), chunks[-1].chunk_id if chunks else ""
            of = ("test", self._fingerprint, prefix, ids)
            chunks.append(Chunk(chunk_identity(*of, parent_id), ids, parent_id, chunk_identity(*of)))
        return chunks

    def request(
        self,
        prefix: int | tuple[int, ...] = 7,
        chunks: Sequence[int | tuple[int, ...]] = (20, 1, 33),
        questions: Sequence[int | tuple[int, ...]] = (9,),
        reuse: ReuseMode = ReuseMode.REORDERED,
        recompute: Recompute | None = None,
        ape: Ape | None = None,
        **sampling: Any,
    ) -> GenerateRequest:
        """Pieces are given as ids, or as a length to be filled with random ids. Greedy, 6 tokens, EOS ignored
        unless told."""
        self._count += 1
        prefix_ids = self._piece(prefix)
        return GenerateRequest(
            request_id=f"request-{self._count}",
            prefix_ids=prefix_ids,
            chunks=tuple(self.chunk(prefix_ids, self._piece(c)) for c in chunks),
            questions=tuple(self._piece(q) for q in questions),
            reuse=reuse,
            recompute=recompute or Recompute(),
            ape=ape or Ape(),
            sampling=SamplingParams(**{"max_tokens": 6, "ignore_eos": True, "top_logprobs": 5} | sampling),
        )

    def _piece(self, piece: int | tuple[int, ...]) -> tuple[int, ...]:
        return self.ids(piece) if isinstance(piece, int) else piece


def assert_equals_oracle(one: Run, oracle_model: Any, tolerance: float = 1e-4) -> None:
    """Every branch of the run against the oracle of the run's mode."""
    request = one.request
    assert isinstance(request, GenerateRequest)
    known = (*request.links, *request.chunks)
    chains = [chain_of(chunk, known) or () for chunk in request.chunks]
    chunks = [
        Chained.of(chunk.token_ids, (link.token_ids for link in chain))
        for chunk, chain in zip(request.chunks, chains, strict=True)
    ]
    for (question, _), ours in one.branches().items():
        assert len(ours.token_ids) == request.sampling.max_tokens
        oracle_GV = ORACLES[request.reuse.value](
            oracle_model, request.prefix_ids, chunks, request.questions[question], ours.token_ids
        )
        assert_same_generation(ours, oracle_GV, tolerance, greedy=request.sampling.temperature == 0)


def assert_alike(ours: Generated, other: Generated, tolerance: float = 1e-4) -> None:
    """Equal tokens and, within ``tolerance``, equal log-probabilities."""
    assert ours.token_ids == other.token_ids
    torch.testing.assert_close(
        torch.tensor(ours.logprobs), torch.tensor(other.logprobs), atol=tolerance, rtol=0
    )


class Shelf:
    """A ``SegmentSource`` in memory whose contents can be spoilt. ``before_open`` is called before chunks are
    looked for, ``before_layer`` in front of every layer that is read, on the reading thread: they may wait,
    and raise. ``encodings``: of chunks that are to count as stored in another one than others."""

    def __init__(self) -> None:
        self.kv: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self.saves: list[tuple[str, bool]] = []
        self.prefetched: list[tuple[str, ...]] = []
        self.corrupt: set[str] = set()
        self.chains: dict[str, Sequence[Chunk]] = {}
        self.failure: KvquiltError | None = None
        self.before_open: Callable[[], None] = lambda: None
        self.before_layer: Callable[[str, int], None] = lambda chunk_id, layer: None
        self.num_unclosed = 0
        self.encoding = "exact"
        self.encodings: dict[str, str] = {}

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        self.before_open()
        found = {i: _Book(self, i, *self.kv[i]) for i in chunk_lens if i in self.kv}
        self.num_unclosed += len(found)
        return found

    def chain(self, chunk: Chunk, tenant: str, prefix_ids: tuple[int, ...]) -> Sequence[Chunk] | None:
        return self.chains.get(chunk.chunk_id)

    def prefetch(self, chunk_ids: Sequence[str], tenant: str = "") -> None:
        self.prefetched.append(tuple(chunk_ids))

    def as_stored(
        self, k_LHTD: Sequence[torch.Tensor], v_LHTD: Sequence[torch.Tensor], saved: bool = True
    ) -> None:
        pass

    def save(self, chunk: ComputedChunk) -> None:
        if self.failure is not None:
            raise self.failure
        self.saves.append((chunk.key, chunk.replace))
        if chunk.key not in self.kv or chunk.replace:
            k_LHTD, v_LHTD = chunk.segment.k_LKTD, chunk.segment.v_LKTD
            self.kv[chunk.key] = ([k.clone() for k in k_LHTD], [v.clone() for v in v_LHTD])
            self.corrupt.discard(chunk.key)


class _Book:
    in_order = False
    tier = "shelf"

    @property
    def encoding(self) -> str:
        return self._shelf.encodings.get(self._chunk_id, self._shelf.encoding)

    def __init__(
        self, shelf: Shelf, chunk_id: str, k_LHTD: list[torch.Tensor], v_LHTD: list[torch.Tensor]
    ) -> None:
        self._shelf, self._chunk_id = shelf, chunk_id
        self._k_LHTD, self._v_LHTD, self._corrupt = k_LHTD, v_LHTD, chunk_id in shelf.corrupt

    def read_layers(
        self, layers: range, k_out_LHTD: Sequence[torch.Tensor], v_out_LHTD: Sequence[torch.Tensor]
    ) -> None:
        for layer, k_out_HTD, v_out_HTD in zip(layers, k_out_LHTD, v_out_LHTD, strict=True):
            self._shelf.before_layer(self._chunk_id, layer)
            if self._corrupt and layer == 1:  # the first layer is good: the engine must take everything back
                k_out_HTD.fill_(float("nan"))
                raise CorruptData("layer 1 fails its checksum")
            k_out_HTD.copy_(self._k_LHTD[layer])
            v_out_HTD.copy_(self._v_LHTD[layer])

    def close(self) -> None:
        self._shelf.num_unclosed -= 1
