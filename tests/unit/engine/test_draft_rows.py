"""Which branches of a step draft, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pytest

from shared.engine import wrap_model
from shared.engine.decoding.drafting import Drafter, text_of
from shared.engine.decoding.draws import Draw, Wanted
from shared.engine.jobs.job import BranchWork
from shared.engine.kv.branch import Branch
from shared.engine.model.spec import ModelSpec
from shared.engine.scheduler import Slice
from shared.engine.speculation import Speculation
from shared.generation.asked import SamplingParams
from tests.oracles import tiny_model


@lru_cache
def spec() -> ModelSpec:
    return wrap_model(tiny_model("qwen2")).spec


def work_of(pending: Sequence[int], drafts: bool = True) -> Slice[BranchWork]:
    """Of a branch whose last tokens stand in its context, where much follows."""
    context = text_of([range(50, 100)])
    drafter = Drafter(context, (*range(60, 64),), room=100, longest=100) if drafts else None
    branch = Branch(spec(), tuple(pending), 0)
    wanted = Wanted((Draw(SamplingParams(), 0, 0),))
    work = BranchWork(branch, lambda _: None, needs_logits=True, wanted=wanted, drafter=drafter)
    return Slice(work, len(pending))


class TestRows:
    """``FIRST_LEN`` is 4."""

    @pytest.mark.parametrize(
        ("most_rows", "drafting", "lengths"),
        [
            (8, [True], [4]),
            (3, [True], [2]),
            (8, [True, True, True], [2, 2, 1]),
            (8, [False, False, True], [0, 0, 4]),
            (8, [True, False, False], [4, 0, 0]),
            (4, [True, True, True], [1, 0, 0]),
            (8, [True] * 8, [0] * 8),
            (0, [True], [0]),
        ],
    )
    def test_what_is_left_of_a_step_is_shared(
        self, most_rows: int, drafting: list[bool], lengths: list[int]
    ) -> None:
        filled = Speculation(most_rows).fill([work_of([63], drafts) for drafts in drafting])
        assert [len(piece.draft) for piece in filled] == lengths
        assert all(piece.num_rows == 1 for piece in filled)
        assert all(piece.draft == tuple(range(64, 64 + len(piece.draft))) for piece in filled)

    def test_beside_a_prefill_there_are_none(self) -> None:
        filled = Speculation(8).fill([work_of([63]), work_of(range(3, 10), drafts=False)])
        assert [piece.draft for piece in filled] == [(), ()]

    def test_a_branch_with_more_than_its_last_token_to_compute_has_none(self) -> None:
        assert Speculation(8).fill([work_of([62, 63])])[0].draft == ()
