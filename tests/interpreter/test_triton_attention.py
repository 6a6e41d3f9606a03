"""The Triton kernels against the slow twin, program by program."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shared.engine import EngineConfig
from shared.engine.backends import backend_for
from shared.engine.backends.check import check_backend
from shared.engine.backends.tables import FIXED, Tiling
from shared.engine.backends.triton import TritonBackend
from tests.attention_steps import (
    BranchCase,
    Case,
    PlacementCase,
    Shape,
    Step,
    assert_same_step,
    cases,
    spec_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PROPERTY = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # shrinking takes the interpreter minutes
)
SMALL = Tiling(16, 64)  # so that short segments are split and few rows fill more than one tile


# The interpreter cuts a float32 off where a GPU rounds it to the nearest bfloat16.
CUT_OFF = {torch.bfloat16: 5e-2}


def check(case: Case, tiling: Tiling | None) -> None:
    theirs = Step(case).run(backend_for(EngineConfig(backend="reference"), spec_of(case.shape)))
    assert_same_step(
        Step(case).run(TritonBackend(spec_of(case.shape), tiling)),
        theirs,
        case.shape.dtype,
        CUT_OFF.get(case.shape.dtype),
    )


@PROPERTY
@given(case=cases(max_branches=3), tiling=st.sampled_from((SMALL, Tiling(64, 64), None)))
def test_any_forest_of_branches_over_any_placements(case: Case, tiling: Tiling | None) -> None:
    check(case, tiling)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "rotated"),
    [
        (torch.float32, 128, 1.0),
        (torch.bfloat16, 96, 0.5),
        (torch.float16, 64, 1.0),
        (torch.bfloat16, 128, 1.0),
    ],
)
def test_every_type_at_common_head_sizes(dtype: torch.dtype, head_dim: int, rotated: float) -> None:
    placed = (PlacementCase(0, 5), PlacementCase(1, 95, 0.3), PlacementCase(0, 165))
    branches = (
        BranchCase(255, 0, 11, placed),
        BranchCase(400, 33, 1, placed[1:]),
        BranchCase(0, 3, 2, parent=1, forked=20),
    )
    check(Case(Shape(dtype, 2, 3, head_dim, rotated), (90, 70), branches), SMALL)


def test_rows_that_exclude_everything_they_would_see_but_themselves() -> None:
    placed = (PlacementCase(0, 0, 1.0), PlacementCase(1, 130, 1.0))
    check(Case(Shape(), (130, 64), (BranchCase(194, 0, 5, placed), BranchCase(194, 0, 1))), SMALL)


def test_a_quarter_of_a_million_positions_away() -> None:
    check(Case(Shape(), (70,), (BranchCase(250_000, 0, 3, (PlacementCase(0, 0),)),)), SMALL)


@settings(PROPERTY, max_examples=4)
@given(case=cases(max_branches=3))
def test_with_fixed_tiles_company_does_not_change_a_bit(case: Case) -> None:
    backend = TritonBackend(spec_of(case.shape), Tiling(16, 64))
    together = Step(case).run(backend)
    step = Step(case)
    for i, lane in enumerate(step.lanes):
        alone = Step(case).run(backend, only=[i])
        assert torch.equal(together.out_HRD[:, lane.rows], alone.out_HRD)
        assert torch.equal(together.keys[i], alone.keys[0])


def test_the_check_at_start_passes() -> None:
    for tiling in (None, FIXED):
        check_backend(
            TritonBackend(spec_of(Shape(torch.bfloat16, 2, 7)), tiling), spec_of(Shape(torch.bfloat16, 2, 7))
        )
