"""Fills a step that has few rows with drafts of what comes next, so that a text which quotes its context gets
several tokens out of one step.

A step of few rows takes as long as reading the weights does, so a few more cost next to nothing; a step that
has its rows without drafts gets none. Drafts are verified by the step itself: behind each of its tokens is
drawn what would be drawn there, with the same noise, and a draft counts as far as it is equal. What was
computed of it beyond that is never seen by anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shared.engine.decoding.drafting import DraftCounts
from shared.engine.jobs.job import BranchWork, Computed
from shared.engine.scheduler import Slice


@dataclass(frozen=True, slots=True)
class Speculation:
    """``most_rows``: of a step with its drafts. ``counts``: since the start."""

    most_rows: int
    counts: DraftCounts = field(default_factory=DraftCounts)

    def fill(self, slices: Sequence[Slice[BranchWork]]) -> list[Slice[BranchWork]]:
        """A pass with drafts in it, if there are rows left for them: every branch that may have one has its
        share of these, and of what those in front of it leave of theirs."""
        room = self.most_rows - sum(piece.num_rows for piece in slices)
        num_able = sum(_may_draft(piece.work) for piece in slices)
        filled: list[Slice[BranchWork]] = []
        for piece in slices:
            drafter = piece.work.drafter
            if room > 0 and drafter is not None and _may_draft(piece.work):
                draft = drafter.draft(-(-room // num_able))
                room, num_able = room - len(draft), num_able - 1
                filled.append(replace(piece, draft=draft))
            else:
                filled.append(piece)
        return filled

    def tell(self, piece: Slice[BranchWork], computed: Sequence[Computed]) -> None:
        """Tells the work what was computed; of a draft, as far as it is right, as if every token had had a
        step of its own."""
        work, num_accepted = piece.work, 0
        work.done(computed[0])
        for token_id, behind in zip(piece.draft, computed[1:], strict=True):
            if work.branch.pending != [token_id]:
                break  # another token was chosen, or the branch has ended
            work.branch.advance(1)
            num_accepted += 1
            work.done(behind)
        if piece.draft and work.drafter is not None and work.job is not None:
            work.drafter.judge(len(piece.draft), num_accepted)
            for counts in (self.counts, work.job.drafts):
                counts.add(len(piece.draft), num_accepted)


def _may_draft(work: BranchWork) -> bool:
    """It goes on by one draw behind a single token."""
    return work.drafter is not None and len(work.wanted.draws) == 1 and work.num_pending == 1
