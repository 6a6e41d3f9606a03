"""Prefills documents as chains, each chunk behind the header and the chunks in front of it, against the same
chunks alone."""

from __future__ import annotations

import time
from itertools import count

from shared.generation.asked import Chunk, PrefillRequest
from shared.identity import chunk_identity
from shared.measuring.asking import AskedTogether, random_ids
from shared.measuring.case import Case, Ids
from shared.measuring.shapes import Shape

HEADER_LEN = 16


class DocumentPrefill:
    """The engine, as ingestion asks it: several documents at a time, a request each. ``case.context``: tokens
    of a document."""

    def __init__(self, case: Case, num_documents: int) -> None:
        self._case, self._num_documents = case, num_documents
        self._engine = case.build_engine()
        self._runs = count()
        self.prefill_s(chained=True)  # what the first run of all does besides

    def prefill_s(self, chained: bool) -> float:
        """Until the last chunk is there. Nothing is kept of earlier runs, and nothing is written anywhere."""
        run = next(self._runs)
        requests = [self._request(f"{run} {number}", chained) for number in range(self._num_documents)]
        began = time.perf_counter()
        AskedTogether(self._engine, requests).run()
        return time.perf_counter() - began

    def _request(self, name: str, chained: bool) -> PrefillRequest:
        prefix, vocab = self._case.prefix_ids(), self._case.shape.vocab
        ids = [random_ids(f"{name} {i}", length, vocab) for i, length in enumerate(self._case.chunk_lens)]
        if not chained:
            return PrefillRequest(name, prefix, tuple(_chunk(prefix, one, "") for one in ids))
        links = [_chunk(prefix, random_ids(name, HEADER_LEN, vocab), "")]
        for one in ids:
            links.append(_chunk(prefix, one, links[-1].chunk_id))
        return PrefillRequest(name, prefix, tuple(links[1:]), links=tuple(links[:1]))


def flops_of(case: Case, chained: bool) -> float:
    """Of one document's rows, each with the keys that it sees; no row of logits."""
    if not chained:
        return sum(_flops(case.shape, case.prefix, length) for length in case.chunk_lens)
    total, start = 0.0, case.prefix
    for length in (HEADER_LEN, *case.chunk_lens):
        total += _flops(case.shape, start, length)
        start += length
    return total


def _flops(shape: Shape, start: int, rows: int) -> float:
    num_seen = start + (rows + 1) / 2  # on average, the row itself included
    return rows * shape.layers * (2 * shape.layer_weights + 4 * shape.heads * shape.head_dim * num_seen)


def _chunk(prefix: Ids, ids: Ids, parent_id: str) -> Chunk:
    return Chunk(chunk_identity("", "", prefix, ids, parent_id), ids, parent_id)
