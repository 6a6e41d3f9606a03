"""Scores every token of a context by how much a question attends to it, with a small auxiliary model.

A chunk is computed once, behind the prefix and the chain of chunks in front of it in its document; its KV is
a segment (``shared.engine.kv.segment``) that can be stored and serves every question, which sees the chunk
and not its chain. Of a question only its own rows are computed. A token's score is the attention that it gets
in the last layer from the question's tokens, averaged over them and over all heads.
The paper leaves open over which context; both readings are here::

    each       [prefix][chunk 0][question     one by one: every chunk has the question to itself, and its
               [prefix][chunk 1][question     scores share 1 with prefix and question alone
    stitched   [prefix][chunk 0][chunk 1][question     all of them compete for the same attention
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from shared.engine.attention import Lane
from shared.engine.backends import backend_for
from shared.engine.kv.branch import Branch, Placement
from shared.engine.kv.segment import Segment
from shared.engine.model.model import LoadedModel
from shared.engine.model.spec import ModelSpec
from shared.engine_config import EngineConfig
from shared.generation.selection import Reading
from shared.selection.limits import Limits
from shared.selection.watcher import Watcher, run_watched


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Per chunk, one score per token. ``reading``: how they were really read; a context that is longer than
    the model's positions or its sliding window is read chunk by chunk, and so is every context by a model
    whose positions cannot be moved."""

    chunks: tuple[NDArray[np.float32], ...]
    reading: Reading


class Scorer(Protocol):
    """One auxiliary model behind one prefix. For one thread."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def fingerprint(self) -> str:
        """By which stored KV knows the model: equal ones compute equal KV of equal ids behind an equal
        prefix."""
        ...

    @property
    def chains(self) -> bool:
        """Whether KV can be computed behind other chunks."""
        ...

    def encode(self, chunks: Sequence[Sequence[int]], chain: Sequence[Segment] = ()) -> list[Segment]:
        """KV of every chunk behind the prefix and ``chain``, the KV of what stands in front of it in its
        document (none without ``chains``).

        Raises:
            InvalidRequest: a token id is outside the vocabulary; names the chunk.
            ContextTooLong: prefix, chain and a chunk exceed the model's positions.
        """
        ...

    def score(
        self, chunks: Sequence[Segment], question_ids: Sequence[int], reading: Reading = Reading.STITCHED
    ) -> Scores:
        """
        Raises:
            InvalidRequest: the question is empty, or a token id of it is outside the vocabulary.
            ContextTooLong: a single chunk with prefix and question exceeds the model's positions.
        """
        ...


class EngineScorer:
    """By the engine: keys of segments stand at local positions, so a chunk's KV serves at any place of a
    stitched context, and of the last layer only queries and keys are computed."""

    chains = True

    def __init__(
        self,
        model: LoadedModel,
        prefix_ids: Sequence[int] = (),
        config: EngineConfig | None = None,
        layer: int | None = None,
    ) -> None:
        """``layer``: whose attention is the score; None: the last one's. Chunks are computed no further.

        Raises:
            ConfigError: the backend that ``config`` names does not work here.
            InvalidRequest, ContextTooLong: the prefix is nothing that the model can read.
        """
        self.model = model
        config, self.spec = config or EngineConfig(), model.spec
        self._layer = self.spec.num_layers - 1 if layer is None else layer
        self._limits = Limits(self.spec.vocab_size, self.spec.sight, len(prefix_ids))
        self._limits.check_prefix(prefix_ids)
        self._backend = backend_for(config, self.spec)
        self._rotation = self.spec.rotation()
        self._max_rows = config.max_step_tokens
        self._prefix: tuple[Placement, ...] = ()
        if prefix_ids:
            self._prefix = (Placement(self._encode([prefix_ids], ())[0], 0),)

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    def encode(self, chunks: Sequence[Sequence[int]], chain: Sequence[Segment] = ()) -> list[Segment]:
        self._limits.check_chunks(chunks, sum(link.length for link in chain))
        return self._encode(chunks, chain)

    def score(
        self, chunks: Sequence[Segment], question_ids: Sequence[int], reading: Reading = Reading.STITCHED
    ) -> Scores:
        lens = [chunk.length for chunk in chunks]
        self._limits.check_question(question_ids, lens)
        if reading is Reading.STITCHED and not self._limits.fit(sum(lens) + len(question_ids)):
            reading = Reading.EACH
        contexts = [list(chunks)] if reading is Reading.STITCHED else [[chunk] for chunk in chunks]
        weights = [w for context in self._ask(contexts, tuple(question_ids)) for w in context]
        return Scores(tuple(w.cpu().numpy() for w in weights), reading)

    @torch.inference_mode()
    def _encode(self, chunks: Sequence[Sequence[int]], chain: Sequence[Segment]) -> list[Segment]:
        context, start = self._behind_prefix(chain)
        branches = [Branch(self.spec, tuple(ids), start, context) for ids in chunks]
        while lanes := self._lanes([branch for branch in branches if branch.pending]):
            self._run(lanes, wanted=False)
        return [branch.segment for branch in branches]

    @torch.inference_mode()
    def _ask(
        self, contexts: Sequence[Sequence[Segment]], question_ids: tuple[int, ...]
    ) -> Iterator[list[torch.Tensor]]:
        """The question behind each context: the weights of that context's segments."""
        per_pass = max(1, self._max_rows // len(question_ids))
        for begin in range(0, len(contexts), per_pass):
            branches = [
                self._question(context, question_ids) for context in contexts[begin : begin + per_pass]
            ]
            lanes = [
                Lane(branch, i * len(question_ids), len(question_ids)) for i, branch in enumerate(branches)
            ]
            yield from (weights[len(self._prefix) :] for weights in self._run(lanes, wanted=True).weights)

    def _question(self, context: Sequence[Segment], question_ids: tuple[int, ...]) -> Branch:
        placements, end = self._behind_prefix(context)
        return Branch(self.spec, question_ids, end, placements)

    def _behind_prefix(self, segments: Sequence[Segment]) -> tuple[tuple[Placement, ...], int]:
        """The prefix and ``segments`` at cumulative positions, and where they end."""
        placements = list(self._prefix)
        end = sum(placement.num_tokens for placement in placements)
        for segment in segments:
            placements.append(Placement(segment, end))
            end += segment.length
        return tuple(placements), end

    def _lanes(self, branches: Sequence[Branch]) -> list[Lane]:
        """As many pending tokens as one pass takes."""
        lanes: list[Lane] = []
        num_rows = 0
        for branch in branches:
            if num_rows < self._max_rows:
                lanes.append(Lane(branch, num_rows, min(len(branch.pending), self._max_rows - num_rows)))
                num_rows += lanes[-1].num_rows
        return lanes

    def _run(self, lanes: Sequence[Lane], wanted: bool) -> Watcher:
        watcher = Watcher(self._backend, self._rotation, self._layer, wanted)
        run_watched(self.model, lanes, watcher)
        return watcher
