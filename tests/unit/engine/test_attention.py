"""The attention backends of a CPU against their slow twin, and what the plan of a step says."""

from __future__ import annotations

import ast
import platform
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine import EngineConfig
from shared.engine.attention import Backend, pieces_of
from shared.engine.backends import backend_for
from shared.engine.backends.check import BackendBroken, check_backend
from shared.engine.backends.flash import kernel_of
from shared.engine.backends.kernels import fused_cpu_kernel, matmul_kernel
from shared.engine.backends.native import LEVELS, NativeBackend, best_level, fits
from shared.engine.backends.piecewise import PiecewiseBackend
from shared.engine.backends.tables import FIXED, Tiling, build_tables, choose_tiling
from shared.engine.kv.exclusion import Excluded
from shared.errors import ConfigError
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

ROOT = Path(__file__).resolve().parents[3]
PROPERTY = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def reference(shape: Shape) -> Backend:
    return backend_for(EngineConfig(backend="reference"), spec_of(shape))


def piecewise(shape: Shape, kernel: Any) -> Backend:
    return PiecewiseBackend(spec_of(shape), kernel)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_attn_probs: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, None]:
    """What the library's documentation says, in plain torch: q [B, S, H, D], k and v [B, T, K, D], the causal
    mask aligned to the bottom right corner; log-sum-exp [B, H, S]."""
    assert return_attn_probs
    assert softmax_scale is not None
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    group = q.shape[2] // k.shape[2]
    q, k, v = (
        x.float().transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
    )
    scores = q @ k.transpose(2, 3) * softmax_scale
    if causal:
        rows, tokens = scores.shape[2:]
        scores = scores.masked_fill(
            torch.ones(rows, tokens, dtype=torch.bool).triu(tokens - rows + 1), float("-inf")
        )
    return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1), None


@pytest.mark.parametrize(
    "kernel", [fused_cpu_kernel, matmul_kernel, kernel_of(flash_attn_func)], ids=["fused", "matmul", "flash"]
)
class TestPiecewiseEqualsTheReference:
    @PROPERTY
    @given(case=cases())
    def test_any_forest_of_branches_over_any_placements(self, kernel: Any, case: Case) -> None:
        ours = Step(case).run(piecewise(case.shape, kernel))
        assert_same_step(ours, Step(case).run(reference(case.shape)), case.shape.dtype)

    def test_a_row_that_sees_nothing_of_many_pieces_takes_nothing_from_them(self, kernel: Any) -> None:
        """The fused kernel answers 0 for the log-sum-exp of such a row: the weight of a token."""
        placements = tuple(PlacementCase(i % 2, 30 * i, 1.0) for i in range(6))
        case = Case(Shape(), (30, 30), (BranchCase(180, 0, 5, placements), BranchCase(180, 3, 1, placements)))
        alone = Case(Shape(), (30, 30), (BranchCase(180, 0, 5), BranchCase(180, 3, 1)))
        step, bare = Step(case), Step(alone)
        for there, here in zip(bare.branches, step.branches, strict=True):
            there.segment = here.segment
        bare.q_HRD, bare.k_KRD, bare.v_KRD = step.q_HRD, step.k_KRD, step.v_KRD
        assert_same_step(
            step.run(piecewise(case.shape, kernel)), bare.run(reference(case.shape)), torch.float32
        )

    @pytest.mark.parametrize("num_tokens", [31, 512, 1300])
    def test_a_long_run_of_excluded_tokens_in_front_of_seen_ones(self, kernel: Any, num_tokens: int) -> None:
        case = Case(
            Shape(), (num_tokens + 40,), (BranchCase(num_tokens + 40, 0, 9, (PlacementCase(0, 0, 0.0),)),)
        )
        ours, theirs = Step(case), Step(case)
        for step in (ours, theirs):
            (placement,) = step.branches[0].context
            hidden_LT = torch.zeros(2, num_tokens + 40, dtype=torch.bool)
            hidden_LT[:, :num_tokens] = True
            placement.excluded.words_LW.copy_(Excluded.of(hidden_LT).words_LW)  # type: ignore[union-attr]
        assert_same_step(
            ours.run(piecewise(case.shape, kernel)), theirs.run(reference(case.shape)), torch.float32
        )

    def test_what_forks_share_of_a_branch_is_read_once(self, kernel: Any) -> None:
        """Two forks in different places, and a branch that hangs behind both of them, while the branch itself
        grows."""
        branches = (
            BranchCase(0, 60, 1),
            BranchCase(0, 5, 1, parent=0, forked=40),
            BranchCase(0, 7, 1, parent=0, forked=60),
            BranchCase(0, 9, 1, parent=1),
        )
        read = []

        def counting(q: Any, k_KTD: Any, *args: Any) -> Any:
            read.append(k_KTD.shape[1])
            return kernel(q, k_KTD, *args)

        case = Case(Shape(), (), branches)
        assert_same_step(
            Step(case).run(piecewise(case.shape, counting)),
            Step(case).run(reference(case.shape)),
            torch.float32,
        )
        own = 61 + 6 + 8 + 10
        assert sum(read) == 60 + 5 + own


COMPILED = pytest.mark.skipif(
    not best_level() and not (shutil.which("gcc") and platform.machine() == "x86_64"),
    reason="there is no compiler, or no x86 processor",
)
LEVEL = pytest.mark.parametrize("level", [1, 2, 3], ids=["avx2", "avx512", "amx"])


def native(shape: Shape, tiling: Tiling | None, level: int) -> Backend:
    if best_level() < level:
        pytest.skip(f"this processor has no {LEVELS[level]}")
    return NativeBackend(spec_of(shape), tiling, level)


@LEVEL
class TestNativeEqualsTheReference:
    @PROPERTY
    @given(case=cases(), tiling=st.sampled_from((None, FIXED, Tiling(16, 64))))
    def test_any_forest_of_branches_over_any_placements(
        self, level: int, case: Case, tiling: Tiling | None
    ) -> None:
        ours = Step(case).run(native(case.shape, tiling, level))
        assert_same_step(ours, Step(case).run(reference(case.shape)), case.shape.dtype)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(
        ("head_dim", "rotated"),
        [(512, 1.0), (256, 1.0), (128, 1.0), (96, 0.5), (80, 0.4), (66, 1.0), (6, 1.0)],
    )
    def test_every_head_size(self, level: int, dtype: torch.dtype, head_dim: int, rotated: float) -> None:
        placed = (PlacementCase(0, 5), PlacementCase(1, 95, 0.3), PlacementCase(0, 165))
        branches = (
            BranchCase(255, 0, 11, placed),
            BranchCase(400, 33, 1, placed[1:]),
            BranchCase(0, 3, 2, parent=1, forked=20),
        )
        case = Case(Shape(dtype, 2, 3, head_dim, rotated), (90, 70), branches)
        assert_same_step(
            Step(case).run(native(case.shape, None, level)), Step(case).run(reference(case.shape)), dtype
        )

    def test_a_row_that_excludes_everything_but_itself_and_one_far_away(self, level: int) -> None:
        placed = (PlacementCase(0, 0, 1.0), PlacementCase(1, 130, 1.0))
        for branches in (
            (BranchCase(194, 0, 5, placed), BranchCase(194, 0, 1)),
            (BranchCase(250_000, 0, 3, (PlacementCase(0, 0),)),),
        ):
            case = Case(Shape(), (130, 64), branches)
            assert_same_step(
                Step(case).run(native(case.shape, None, level)),
                Step(case).run(reference(case.shape)),
                torch.float32,
            )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("num_tokens", [64, 190, 520])
    def test_keys_that_all_rows_exclude_are_passed_over(
        self, level: int, dtype: torch.dtype, num_tokens: int
    ) -> None:
        """Alone on their pieces, and on one beside rows that exclude others of its tokens, or none."""
        placed = (
            PlacementCase(0, 0, 0.4),
            PlacementCase(1, num_tokens, 0.9),
            PlacementCase(2, 2 * num_tokens, 1.0),
        )
        alone = (BranchCase(0, 20, 30, placed, gap=20), BranchCase(3 * num_tokens, 0, 9, placed[:1]))
        beside = (
            BranchCase(5000, 0, 9, (PlacementCase(1, 9, 0.5),)),
            BranchCase(5000, 0, 1, (PlacementCase(0, 9),)),
        )
        case = Case(Shape(dtype, 2, 3), (num_tokens, num_tokens, 70), (*alone, *beside))
        assert_same_step(
            Step(case).run(native(case.shape, None, level)), Step(case).run(reference(case.shape)), dtype
        )

    @PROPERTY
    @given(case=cases())
    def test_with_fixed_tiles_neither_company_nor_threads_change_a_bit(self, level: int, case: Case) -> None:
        backend = native(case.shape, FIXED, level)
        torch.set_num_threads(2)
        together = Step(case).run(backend)
        torch.set_num_threads(1)
        step = Step(case)
        for i, lane in enumerate(step.lanes):
            alone = Step(case).run(backend, only=[i])
            assert torch.equal(together.out_HRD[:, lane.rows], alone.out_HRD)
            assert torch.equal(together.keys[i], alone.keys[0])

    def test_what_lies_behind_a_segments_tokens_is_never_taken_in(self, level: int) -> None:
        """Room that was never written may hold anything."""
        case = Case(Shape(torch.bfloat16), (70,), (BranchCase(100, 7, 3, (PlacementCase(0, 0),)),))
        ours, theirs = Step(case), Step(case)
        for segment in (ours.branches[0].segment, ours.branches[0].context[0].segment):
            for kv in (segment.k_LKTD, segment.v_LKTD):
                for layer in kv:
                    layer[:, segment.length :] = float("nan")
        assert_same_step(
            ours.run(native(case.shape, None, level)), theirs.run(reference(case.shape)), torch.bfloat16
        )


class TestPlan:
    @PROPERTY
    @given(case=cases())
    def test_pieces_say_who_sees_what_and_read_every_segment_once(self, case: Case) -> None:
        step = Step(case)
        pieces = pieces_of(step.lanes)
        seen: set[tuple[int, int, int, int]] = set()  # row, segment, offset, token
        for piece in pieces:
            rows = [v.start + i for v in piece.visits for i in range(v.num_rows)]
            assert rows
            assert len(rows) == len(set(rows)), "a piece holds a row twice"
            for visit in piece.visits:
                for i in range(visit.num_rows):
                    step_i = i if visit.steps is None else int(visit.steps[i])
                    limit = min(visit.num_tokens, piece.sight(visit) + (i if piece.own else step_i))
                    assert piece.sight(visit) >= 1, "a row that sees nothing reached a kernel"
                    lane = next(
                        one for one in step.lanes if one.start <= visit.start < one.start + one.num_rows
                    )
                    position = lane.branch.offset + int(lane.places()[visit.start + i - lane.start])
                    offset = position - visit.distance - step_i
                    tokens = {(visit.start + i, id(piece.segment), offset, j) for j in range(limit)}
                    assert piece.own or not tokens & seen or _placed_twice(lane.branch.seen())
                    seen |= tokens
        assert seen == _by_the_rule(step)
        most = {id(p.segment): 0 for p in pieces}
        for lane in step.lanes:
            counts = [id(p.segment) for p in lane.branch.seen()]
            most |= {key: max(most[key], counts.count(key)) for key in counts if key in most}
        for piece in pieces:
            if not piece.own:
                assert (
                    sum(p.segment is piece.segment and not p.own for p in pieces) <= most[id(piece.segment)]
                )

    @PROPERTY
    @given(case=cases(), tiling=st.sampled_from((Tiling(16, 64), Tiling(64, 128), FIXED)))
    def test_tables_cover_every_row_and_key_with_one_slot(self, case: Case, tiling: Tiling) -> None:
        step, group = Step(case), case.shape.group
        pieces = pieces_of(step.lanes)
        tables = build_tables(pieces, step.lanes, group, tiling)
        first_look, num_looks = tables.pieces_P3[:, 0], tables.pieces_P3[:, 1]
        filled: dict[int, tuple[int, int, int]] = {}  # slot → row, keys
        covered: dict[tuple[int, int], set[int]] = {}  # look, head of the group → keys
        for piece, flat, begin, end in tables.items_I4.tolist():
            assert begin % tiling.split_len == 0
            assert begin < end <= begin + tiling.split_len
            for one in range(flat, min(flat + tiling.block_rows, num_looks[piece] * group)):
                look = first_look[piece] + one // group
                row, _, num_seen, slot, _ = tables.looks_N5[look].tolist()
                keys = range(begin, min(end, num_seen))
                if keys:
                    mine = covered.setdefault((int(look), one % group), set())
                    assert not mine & set(keys), "a key is counted twice"
                    mine |= set(keys)
                    place = (row, int(piece), begin)
                    assert filled.setdefault(slot + begin // tiling.split_len, place) == place, (
                        "two share a slot"
                    )
        assert {k: len(v) for k, v in covered.items()} == {
            (look, g): n for look, n in enumerate(tables.looks_N5[:, 2].tolist()) for g in range(group)
        }
        assert sorted(filled) == list(range(tables.num_slots))
        for slot, (row, _, _) in filled.items():
            assert tables.first_slot_R[row] <= slot < tables.first_slot_R[row + 1]

    @settings(PROPERTY, max_examples=25)
    @given(case=cases())
    def test_the_order_of_a_rows_slots_does_not_depend_on_company(self, case: Case) -> None:
        step = Step(case)

        def paths(lanes: Any) -> dict[int, list[tuple[int, int]]]:
            pieces = pieces_of(lanes)
            tables = build_tables(pieces, lanes, 1, Tiling(16, 64))
            piece_of = np.repeat(np.arange(len(pieces)), tables.pieces_P3[:, 1])
            order = np.argsort(tables.looks_N5[:, 3])
            found: dict[int, list[tuple[int, int]]] = {}
            for look in order:
                row, distance = tables.looks_N5[look, :2].tolist()
                found.setdefault(row, []).append((id(pieces[piece_of[look]].segment), distance))
            return found

        together = paths(step.lanes)
        for lane in step.lanes:
            alone = paths([type(lane)(lane.branch, 0, lane.num_rows)])
            assert [together[lane.start + i] for i in range(lane.num_rows)] == [
                alone[i] for i in range(lane.num_rows)
            ]

    def test_more_processors_split_keys_more_and_many_rows_make_higher_tiles(
        self,
    ) -> None:
        def tiling(num_rows: int, num_processors: int, high: int = 64) -> Tiling:
            case = Case(Shape(), (4096,), (BranchCase(4096, 0, num_rows, (PlacementCase(0, 0),)),))
            return choose_tiling(
                pieces_of(Step(case).lanes), 7, num_kv_heads=4, num_processors=num_processors, high=high
            )

        assert tiling(1, 1).split_len == 8192
        assert tiling(1, 132).split_len == 256
        assert [tiling(rows, 132).block_rows for rows in (1, 8, 512)] == [16, 64, 64]
        assert [tiling(rows, 132, high=128).block_rows for rows in (1, 8, 256, 512)] == [16, 64, 64, 128]
        assert tiling(512, 132).split_len > tiling(8, 132).split_len


class TestExclusionBitmaps:
    @PROPERTY
    @given(st.lists(st.lists(st.booleans(), min_size=1, max_size=100), min_size=1, max_size=4))
    def test_those_of_several_placements_are_those_of_each(self, hidden: list[list[bool]]) -> None:
        together = Excluded.in_all_layers([np.array(one, np.bool_) for one in hidden], 3, torch.device("cpu"))
        for one, excluded in zip(hidden, together, strict=True):
            if excluded is None:
                assert not any(one)
            else:
                alone = Excluded.of(torch.tensor(one).expand(3, -1))
                assert torch.equal(excluded.words_LW, alone.words_LW)
                assert excluded.words_LW.is_contiguous()

    @PROPERTY
    @given(
        hidden=st.lists(st.booleans(), min_size=1, max_size=200),
        begin=st.integers(0, 150),
        num=st.integers(0, 150),
    )
    def test_any_part_comes_back_as_it_went_in(self, hidden: list[bool], begin: int, num: int) -> None:
        hidden_LT = torch.stack((torch.tensor(hidden), ~torch.tensor(hidden)))
        excluded = Excluded.of(hidden_LT)
        assert excluded.words_LW.shape == (2, -(-len(hidden) // 32))
        begin = min(begin, len(hidden))
        end = min(begin + num, len(hidden))
        for layer in range(2):
            assert torch.equal(excluded.hidden(layer, begin, end), hidden_LT[layer, begin:end])


class TestChoice:
    @COMPILED
    def test_auto_on_a_cpu_is_the_c_kernels(self) -> None:
        assert isinstance(backend_for(EngineConfig(), spec_of(Shape())), NativeBackend)

    def test_auto_without_them_is_the_fused_kernel_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("shared.engine.backends.native.library", lambda: None)
        backend = backend_for(EngineConfig(), spec_of(Shape()))
        assert isinstance(backend, PiecewiseBackend)
        assert backend.kernel is fused_cpu_kernel
        assert "'native' was not compiled with this installation" in caplog.text

    def test_kernels_compiled_from_other_sources_are_not_used(self) -> None:
        assert not fits(SimpleNamespace())  # type: ignore[arg-type]
        assert not fits(SimpleNamespace(kvquilt_step_bytes=lambda: 8))  # type: ignore[arg-type]

    @COMPILED
    def test_c_kernels_refuse_what_they_do_not_know(self) -> None:
        with pytest.raises(ConfigError, match="even head_dim up to 512, not 514; set it to 'torch'"):
            backend_for(EngineConfig(backend="native"), spec_of(Shape(head_dim=514)))
        with pytest.raises(ConfigError, match="'native' needs a CPU with AVX2; set the backend to 'auto'"):
            backend_for(EngineConfig(backend="native"), spec_of(Shape(), torch.device("cuda")))

    @pytest.mark.parametrize("name", ["triton", "flash_attn"])
    def test_a_gpu_backend_without_a_gpu_says_so(self, name: Any) -> None:
        with pytest.raises(
            ConfigError,
            match=rf"engine.backend: '{name}' needs a GPU, engine.device is cpu; set the backend to 'auto'",
        ):
            backend_for(EngineConfig(backend=name), spec_of(Shape(torch.bfloat16)))

    @pytest.mark.parametrize(
        ("shape", "words"),
        [
            (Shape(torch.float32), "computes in bfloat16 or float16, not float32"),
            (Shape(torch.bfloat16, head_dim=512), "heads of up to 256, the model's have 512"),
            (Shape(torch.bfloat16), "pip install 'kvquilt\\[gpu\\]'"),
        ],
    )
    def test_flash_attn_says_what_it_lacks(self, shape: Shape, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            backend_for(EngineConfig(backend="flash_attn"), spec_of(shape, torch.device("cuda")))

    def test_a_backend_that_computes_something_else_does_not_start(self) -> None:
        spec = spec_of(Shape())

        def wrong(q: Any, k: Any, v: Any, scale: float, causal: bool, hidden: Any) -> Any:
            return matmul_kernel(q, k, v, scale * 1.01, causal, hidden)

        check_backend(piecewise(Shape(), fused_cpu_kernel), spec)
        with pytest.raises(BackendBroken, match="differs from the reference by"):
            check_backend(piecewise(Shape(), wrong), spec)

    def test_a_backend_that_fails_does_not_start(self) -> None:
        def failing(*args: Any) -> Any:
            raise RuntimeError("out of\nregisters")

        with pytest.raises(BackendBroken, match="RuntimeError: registers"):
            check_backend(piecewise(Shape(), failing), spec_of(Shape()))

    def test_without_triton_its_backend_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "triton", None)
        with pytest.raises(
            ConfigError, match=r"engine.backend: 'triton' is not installed here \(pip install triton\)"
        ):
            backend_for(EngineConfig(backend="triton"), spec_of(Shape(), torch.device("cuda")))

    def test_only_triton_kernels_import_triton_and_nobody_imports_them_before_they_are_asked_for(
        self,
    ) -> None:
        for path in (ROOT / "shared" / "engine").rglob("*.py"):
            statements = ast.parse(path.read_text(encoding="utf-8")).body
            imports = [ast.unparse(s) for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
            if path.name not in ("triton.py", "triton_kernels.py", "fused.py", "fused_kernels.py"):
                asks = [
                    one for one in imports if any(n in one for n in ("triton", "model.fused", "flash_attn"))
                ]
                assert not asks, path


def _placed_twice(seen: Any) -> bool:
    places = [(id(p.segment), p.offset) for p in seen]
    return len(places) != len(set(places))


def _by_the_rule(step: Step) -> set[tuple[int, int, int, int]]:
    seen = set()
    for lane in step.lanes:
        branch = lane.branch
        for i in range(lane.num_rows):
            position = branch.offset + branch.segment.place(branch.segment.length + i)
            for p in branch.seen():
                seen |= {
                    (lane.start + i, id(p.segment), p.offset, j)
                    for j in range(p.num_tokens)
                    if p.offset + p.segment.place(j) < position
                }
            own = branch.segment
            seen |= {(lane.start + i, id(own), branch.offset, j) for j in range(own.length + i + 1)}
    return seen
