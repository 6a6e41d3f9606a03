"""The branches of a request: where its context stands, which questions grow on it, which answers grow on
those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from shared.engine.decoding.sampling import Draw
from shared.engine.decoding.text import Decode, TextStream
from shared.engine.jobs import Answer, Beam, Blending, BranchWork, GenerateJob, Node, Question, Scoring
from shared.engine.kv.exclusion import Excluded
from shared.engine.kv.residency import Entry
from shared.engine.kv.segment import Branch, Placement, Tempering
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec
from shared.engine.modes.attention_probe import AttentionProbe
from shared.generation.modes import ReuseMode


@dataclass(frozen=True, slots=True)
class PlacedContext:
    """What the questions of a request stand on: placements, and tokens that are computed for it alone, at any
    positions. Questions begin at the last of ``own_positions``, which are one more."""

    placements: tuple[Placement, ...]
    own_ids: tuple[int, ...]
    own_positions: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.own_positions[-1]


def placed_context(job: GenerateJob, selected: Sequence[int]) -> PlacedContext:
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
    request = job.request
    start = end = len(request.prefix_ids)
    placements = []
    if job.prefix is not None and job.prefix.segment is not None:
        placements.append(Placement(job.prefix.segment, 0))
    ids = [t for chunk in request.chunks for t in chunk.token_ids]
    own = tuple(range(len(ids)) if request.reuse is ReuseMode.FULL else selected)
    hidden_T = torch.zeros(len(ids), dtype=torch.bool)
    hidden_T[torch.tensor(own, dtype=torch.long)] = True
    for chunk in request.chunks:
        hidden = hidden_T[end - start : end - start + len(chunk.token_ids)]
        if not hidden.all():
            segment = job.entries[chunk.chunk_id].segment
            assert segment is not None
            excluded = (
                Excluded.of(hidden.expand(len(segment.k_LKTD), -1).to(segment.k_LKTD[0].device))
                if hidden.any()
                else None
            )
            offset = start if request.reuse in (ReuseMode.COMPOSITE, ReuseMode.APE) else end
            placements.append(Placement(segment, offset, excluded=excluded))
        end += len(chunk.token_ids)
    if request.reuse is ReuseMode.APE:
        end = start + max((len(chunk.token_ids) for chunk in request.chunks), default=0)
    return PlacedContext(tuple(placements), tuple(ids[t] for t in own), (*(start + t for t in own), end))


def plant(job: GenerateJob, spec: ModelSpec, may_join: bool) -> None:
    """Makes a branch per question, behind the tokens that are computed for this request alone. ``may_join``:
    a single question may go into one branch with them, and so into one pass; beside others it would not, and
    might round elsewhere."""
    request, base = job.request, placed_context(job, job.selected or ())
    job.num_open = len(request.questions) * request.sampling.n
    parent = None
    if base.own_ids:
        if may_join and len(request.questions) == 1:
            job.questions.append(Question(0, _together(base, request.questions[0], spec)))
            return
        parent = Branch.at(spec, base.own_ids, base.own_positions, base.placements)
        job.questions.append(Question(None, parent))
    for index, question in enumerate(request.questions):
        branch = Branch(spec, question, base.end, base.placements, parent)
        branch.tempering = tempering(job)
        job.questions.append(Question(index, branch))


def tempering(job: GenerateJob) -> Tempering | None:
    """How what hangs on the context weighs its chunks, if not by ordinary attention."""
    request = job.request
    if request.reuse is not ReuseMode.APE or not request.chunks:
        return None
    return Tempering(
        int(bool(request.prefix_ids)), len(request.chunks), request.ape.temperature, request.ape.scale
    )


def plant_scoring(job: GenerateJob, spec: ModelSpec, rotation: Rotation) -> None:
    """Makes a branch per question that only looks; ``plant_scored`` makes the one that is answered."""
    base = placed_context(job, ())
    job.num_open = len(job.request.questions) * job.request.sampling.n
    for index, question in enumerate(job.request.questions):
        branch = Branch(spec, question, base.end, base.placements)
        branch.probe = AttentionProbe(rotation)
        job.questions.append(Scoring(index, branch, branch.probe))


def blending(job: GenerateJob, spec: ModelSpec) -> Blending:
    """The whole context as a branch of its own, behind what is stored of it."""
    base, start = placed_context(job, ()), len(job.request.prefix_ids)
    ids = tuple(t for chunk in job.request.chunks for t in chunk.token_ids)
    num_chunks = len(job.request.chunks)
    placed = tuple(
        replace(p, excluded=Excluded.none(spec.num_layers, p.num_tokens, spec.device))
        for p in base.placements[len(base.placements) - num_chunks :]
    )
    branch = Branch(spec, ids, start, (*base.placements[: len(base.placements) - num_chunks], *placed))
    branch.excluded = Excluded.none(spec.num_layers, len(ids), spec.device)
    return Blending(branch, placed, job.request.recompute.ratio)


def plant_blending(job: GenerateJob, spec: ModelSpec) -> None:
    """Makes a branch per question behind the context that is blended."""
    request, parent = job.request, blending(job, spec)
    job.num_open = len(request.questions) * request.sampling.n
    job.questions.append(parent)
    for index, question in enumerate(request.questions):
        job.questions.append(Question(index, Branch(spec, question, parent.branch.end, parent=parent.branch)))


def plant_scored(job: GenerateJob, index: int, selected: Sequence[int], spec: ModelSpec) -> None:
    branch = _together(placed_context(job, selected), job.request.questions[index], spec)
    job.questions.append(Question(index, branch))


def _together(base: PlacedContext, question: tuple[int, ...], spec: ModelSpec) -> Branch:
    """The question in one branch with the tokens that are computed for it."""
    positions = (*base.own_positions, *range(base.end + 1, base.end + len(question) + 1))
    return Branch.at(spec, base.own_ids + question, positions, base.placements)


def uproot(job: GenerateJob) -> None:
    """Takes ``plant`` back. Nothing of it was computed."""
    job.questions.clear()
    job.num_open = 0
    job.started = False


def fork(job: GenerateJob, question: Question, spec: ModelSpec, decode: Decode | None) -> list[Answer]:
    """The samples of a question whose last token was just computed: branches on that token."""
    assert question.index is not None
    params, parent = job.request.sampling, question.branch
    capacity = min(params.limit, 64)
    answers = [
        Answer(
            question.index,
            index,
            Branch(spec, (), parent.end, parent=parent, capacity=capacity),
            TextStream(decode, params.stop),
        )
        for index in range(params.n)
    ]
    job.answers += answers
    return answers


def chunk_branch(spec: ModelSpec, prefix: Entry | None, token_ids: tuple[int, ...]) -> Branch:
    """A chunk is computed directly behind the prefix; its keys are kept at local positions from 0 on."""
    if prefix is None or prefix.segment is None:
        return Branch(spec, token_ids, 0)
    return Branch(spec, token_ids, prefix.segment.length, (Placement(prefix.segment, 0),))


def runnable(branch: Branch) -> bool:
    """It has tokens to compute, and what it sees of its ancestors is computed."""
    child, parent = branch, branch.parent
    while parent is not None and parent.computed >= child.first:
        child, parent = parent, parent.parent
    return bool(branch.pending) and parent is None


def draw_of(work: BranchWork) -> Draw | None:
    """What continues it once its logits are known, if that is one draw."""
    owner = work.owner
    if isinstance(owner, Answer):
        assert isinstance(work.job, GenerateJob)
        return Draw(work.job.request.sampling, owner.sample, owner.num_generated)
    return owner.draw() if isinstance(owner, Node) else None


def needs_logits(work: BranchWork) -> bool:
    """Answers and questions continue with a token; contexts, prefixes and chunks do not."""
    return isinstance(work.owner, (Answer, Beam, Node)) or (
        isinstance(work.owner, Question) and work.owner.index is not None
    )
