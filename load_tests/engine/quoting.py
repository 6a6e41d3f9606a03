"""Has a model quote, for measuring what drafts are worth: it says ``t + 1`` behind ``t``, whatever its layers
add.

Its answer counts on from the question. What of that stands in the context is the benchmark's choice::

    mostly    runs of 24 ids in a row; the answer goes on by 8 of its own before it comes to the next one
    nothing   random ids
    misled    pairs of ids in a row, each behind another: every token has a draft, and all are wrong
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterator

import torch

from shared.engine.decoding.drafting import DraftCounts
from shared.engine.model.loader import wrap_model
from shared.engine.model.model import LoadedModel
from shared.generation.asked import Chunk
from shared.generation.told import DoneEvent, TokenEvent
from shared.identity import ids_hash
from shared.measuring.asking import random_ids
from shared.measuring.case import Case, Ids
from shared.measuring.shapes import Shape, random_model

_RUN, _OWN = 24, 8
_FIRST = 1000


class Quoted(enum.StrEnum):
    MOSTLY = "mostly"
    NOTHING = "nothing"
    MISLED = "misled"


class Quoting:
    """An engine with so many rows for drafts (``EngineConfig``), asked one question at a time."""

    def __init__(self, case: Case, speculation: int) -> None:
        self._case = case
        self._engine = case.build_engine(
            model=counting_model(case.shape, case.device), speculation=speculation
        )
        self._names = itertools.count()

    @property
    def drafts(self) -> DraftCounts:
        return self._engine.stats().drafts

    def decode_rate(self, context: Quoted) -> float:
        """Tokens per second after the first one. The first call of a context computes its KV.

        Raises:
            RuntimeError: the model did not count.
        """
        case, vocab, rate = self._case, self._case.shape.vocab, 0.0
        first = _FIRST % vocab
        chunks = [Chunk(ids_hash(ids), ids) for ids in _chunks(case, context, first)]
        question = ((first - 2) % vocab, (first - 1) % vocab)
        request = case.request(
            f"benchmark-{next(self._names)}", chunks, [question], num_tokens=1 + case.decode
        )
        tokens = []
        for event in self._engine.generate(request):
            if isinstance(event, TokenEvent):
                tokens.append(event.token_id)
            if isinstance(event, DoneEvent):
                rate = case.decode / event.timings.decode_s
        if tokens != [(first + i) % vocab for i in range(1 + case.decode)]:
            raise RuntimeError(f"the model does not count from {first}: {tokens}")
        return rate


def counting_model(shape: Shape, device: str) -> LoadedModel:
    """Of random weights, but a hidden state is near the embedding of its own token, and a row of logits says
    how near it is to that of the token in front."""
    model = random_model(shape, device)
    embedding = model.model.embed_tokens.weight
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(embedding.roll(1, 0), requires_grad=False)
        embedding.mul_(1000.0)
    model.config.tie_word_embeddings = False
    return wrap_model(model)


def _chunks(case: Case, context: Quoted, first: int) -> Iterator[Ids]:
    """As many tokens as the case's context has, in chunks of its lengths."""
    match context:
        case Quoted.MOSTLY:
            starts = range(first, first + case.context, _RUN + _OWN)
            ids = [i for start in _shuffled(starts) for i in range(start, start + _RUN)]
        case Quoted.MISLED:
            ids = [i for start in _shuffled(range(first, first + case.context)) for i in (start, start + 1)]
        case Quoted.NOTHING:
            ids = []
    ids += random_ids("filling", case.context, case.shape.vocab)
    for length in case.chunk_lens:
        yield tuple(i % case.shape.vocab for i in ids[:length])
        del ids[:length]


def _shuffled(starts: range) -> list[int]:
    return random.Random(0).sample(starts, len(starts))
