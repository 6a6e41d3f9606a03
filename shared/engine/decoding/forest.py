"""The branches of a request: where its context stands, which questions grow on it, which answers grow on
those."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from shared.engine.jobs.context import ContextJob, Question
from shared.engine.kv.branch import Branch, Placement
from shared.engine.kv.exclusion import Excluded
from shared.engine.kv.residency import Entry
from shared.engine.model.spec import ModelSpec
from shared.generation.modes import Offsets
from shared.identity import TokenIds


@dataclass(frozen=True, slots=True)
class PlacedContext:
    """The ground of a request's questions: placements, and tokens that are computed for it alone, at any
    positions. Questions begin at the last of ``own_positions``, which are one more."""

    placements: tuple[Placement, ...]
    own_ids: TokenIds
    own_positions: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.own_positions[-1]


def placed_context(job: ContextJob, selected: Sequence[int]) -> PlacedContext:
    """By the request's mode; ``selected`` tokens of the context, in ascending order, are computed anew::

    reordered   [prefix][chunk 0][chunk 1][question      cumulative offsets
    composite   [prefix][chunk 0]        [question       every chunk right after the prefix, the question
                        [chunk 1]                        where it would stand behind all of them
    ape         [prefix][chunk 0][question               the same, the question behind the longest of them
                        [chunk 1]
    full        [prefix][chunk 0 chunk 1][question       all private
    recompute   [prefix][ch nk 0][ch n  1][question      cumulative offsets; the selected tokens are not seen where they are placed,
                          u         u k                  but private
    """  # noqa: E501
    request, row = job.request, job.request.reuse.row
    start = end = len(request.prefix_ids)
    placements = []
    if job.prefix is not None and job.prefix.segment is not None:
        placements.append(Placement(job.prefix.segment, 0))
    ends = np.cumsum([0, *(len(chunk.token_ids) for chunk in request.chunks)])
    own = tuple(selected if row.stored else range(ends[-1]))
    ids = list(chain.from_iterable(chunk.token_ids for chunk in request.chunks)) if own else []
    hidden_T = np.zeros(ends[-1], np.bool_)
    hidden_T[list(own)] = True
    of_chunks = np.split(hidden_T, ends[1:-1])[: len(request.chunks)]
    excluded = Excluded.in_all_layers(of_chunks, job.host.spec.num_layers, job.host.spec.device)
    for chunk, hidden, unseen in zip(request.chunks, of_chunks, excluded, strict=True):
        if not hidden.all():
            segment = job.entries[chunk.chunk_id].segment
            assert segment is not None
            offset = end if row.offsets is Offsets.CUMULATIVE else start
            placements.append(Placement(segment, offset, excluded=unseen))
        end += len(chunk.token_ids)
    if row.offsets is Offsets.SIDE_BY_SIDE_NEAR:
        end = start + max((len(chunk.token_ids) for chunk in request.chunks), default=0)
    positions = (*map(start.__add__, own), end)
    return PlacedContext(tuple(placements), tuple(map(ids.__getitem__, own)), positions)


def plant(job: ContextJob) -> None:
    """Makes a branch per question, behind the tokens that are computed for it: those that the request lists
    for this question, else what is selected for all."""
    request = job.request
    listed = request.recompute.sets if request.recompute.by_question else ()
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index in range(len(request.questions)):
        groups[listed[index] if listed else job.selected or ()].append(index)
    for selected, indices in groups.items():
        _plant_group(job, placed_context(job, selected), indices)


def _plant_group(job: ContextJob, base: PlacedContext, indices: Sequence[int]) -> None:
    """A question that shares the tokens with no other goes into one branch with them, and so into one pass;
    not under batch invariance: beside others it would not, and might round elsewhere."""
    spec, questions, parent = job.host.spec, job.request.questions, None
    if base.own_ids:
        if len(indices) == 1 and not job.host.config.batch_invariant:
            branch = together(base, questions[indices[0]], spec)
            job.resume(branch, num_context=len(base.own_ids))
            job.questions.append(Question(indices[0], branch))
            return
        parent = Branch.at(spec, base.own_ids, base.own_positions, base.placements)
        job.resume(parent, num_context=len(base.own_ids))
        job.questions.append(Question(None, parent))
    for index in indices:
        branch = Branch(spec, questions[index], base.end, base.placements, parent)
        branch.tempering = job.tempering
        job.resume(branch, behind=base.own_ids)
        job.questions.append(Question(index, branch))


def plant_on(job: ContextJob, base: Branch) -> None:
    """Makes a branch per question on one that holds the context."""
    for index, question in enumerate(job.request.questions):
        job.questions.append(Question(index, Branch(job.host.spec, question, base.end, parent=base)))


def together(base: PlacedContext, question: TokenIds, spec: ModelSpec) -> Branch:
    """The question in one branch with the tokens that are computed for it."""
    positions = (*base.own_positions, *range(base.end + 1, base.end + len(question) + 1))
    return Branch.at(spec, base.own_ids + question, positions, base.placements)


def uproot(job: ContextJob) -> None:
    """Takes ``plant`` back. Nothing of it was computed."""
    job.questions.clear()
    job.turn = None
    job.num_open = 0
    job.started = False


def chunk_branch(
    spec: ModelSpec, prefix: Entry | None, token_ids: TokenIds, chain: Sequence[Entry] = ()
) -> Branch:
    """A chunk is computed behind the prefix and the chunks in front of it in its document; its keys are kept
    at local positions from 0 on."""
    placements, end = [], 0
    for entry in (prefix, *chain):
        if entry is not None and entry.segment is not None:
            placements.append(Placement(entry.segment, end))
            end += entry.segment.length
    return Branch(spec, token_ids, end, tuple(placements))
