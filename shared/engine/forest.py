"""The branches of a request: where its context stands, which questions grow on it, which answers grow on those."""

from __future__ import annotations

from shared.engine.jobs import Answer, Beam, BranchWork, GenerateJob, Node, Question
from shared.engine.model import ModelSpec
from shared.engine.residency import Entry
from shared.engine.segment import Branch, Placement
from shared.engine.text import Decode, TextStream
from shared.engine.types import ReuseMode


def place(job: GenerateJob) -> tuple[tuple[Placement, ...], int]:
    """Placements of prefix and chunks by the request's mode, and the position where the private tokens begin::

    reordered   [prefix][chunk 0][chunk 1][question      cumulative offsets
    composite   [prefix][chunk 0]        [question       every chunk right after the prefix, the question
                        [chunk 1]                        where it would stand behind all of them
    full        [prefix][chunk 0 chunk 1 question        all private
    """
    placements = []
    start = len(job.request.prefix_ids)
    if job.prefix is not None and job.prefix.segment is not None:
        placements.append(Placement(job.prefix.segment, 0))
    end = start
    if job.request.reuse is not ReuseMode.FULL:
        for chunk in job.request.chunks:
            segment = job.entries[chunk.chunk_id].segment
            assert segment is not None
            placements.append(Placement(segment, end if job.request.reuse is ReuseMode.REORDERED else start))
            end += len(chunk.token_ids)
    return tuple(placements), end


def plant(job: GenerateJob, spec: ModelSpec) -> None:
    """Makes a branch per question, on the placed context or, under ``full``, on a private one."""
    request = job.request
    placements, end = place(job)
    job.num_open = len(request.questions) * request.sampling.n
    chunk_ids = tuple(t for chunk in request.chunks for t in chunk.token_ids)
    parent = None
    if request.reuse is ReuseMode.FULL and chunk_ids:
        if len(request.questions) == 1:  # nothing to share: one ordinary causal prefill
            job.questions.append(Question(0, Branch(spec, chunk_ids + request.questions[0], end, placements)))
            return
        parent = Branch(spec, chunk_ids, end, placements)
        job.questions.append(Question(None, parent))
        end = parent.end
    for index, question in enumerate(request.questions):
        job.questions.append(Question(index, Branch(spec, question, end, placements, parent)))


def uproot(job: GenerateJob) -> None:
    """Takes ``plant`` back. Nothing of it was computed."""
    job.questions.clear()
    job.num_open = 0
    job.started = False


def fork(job: GenerateJob, question: Question, spec: ModelSpec, decode: Decode | None) -> list[Answer]:
    """The samples of a question whose last token was just computed: branches on that token."""
    assert question.index is not None
    params, parent = job.request.sampling, question.branch
    capacity = min(params.max_tokens, 64)
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


def needs_logits(work: BranchWork) -> bool:
    """Answers and questions continue with a token; contexts, prefixes and chunks do not."""
    return isinstance(work.owner, (Answer, Beam, Node)) or (isinstance(work.owner, Question) and work.owner.index is not None)
