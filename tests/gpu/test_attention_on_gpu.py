"""The attention backends of a GPU against their slow twin, and the exactness laws, on the GPU itself."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine import Engine, EngineConfig
from shared.engine.backends import backend_for
from shared.engine.backends.piecewise import PiecewiseBackend
from shared.engine.backends.tables import FIXED, Tiling
from shared.generation.asked import GenerateRequest
from shared.generation.modes import ReuseMode
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
from tests.engine_runs import Prompts, assert_alike, assert_equals_oracle, engine_of, run
from tests.oracles import FAMILIES, ORACLES, VARIANTS, as_dtype, tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
CUDA = torch.device("cuda")
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MODES = [mode for mode in ReuseMode if mode.value in ORACLES]  # the others are decided by somebody else
QWEN2_7B = Shape(torch.bfloat16, num_kv_heads=4, group=7, head_dim=128)


def reference(case: Case) -> Any:
    return Step(case, CUDA).run(backend_for(EngineConfig(backend="reference"), spec_of(case.shape, CUDA)))


def check(case: Case, tiling: Tiling | None = None) -> None:
    from shared.engine.backends.triton import TritonBackend

    ours = Step(case, CUDA).run(TritonBackend(spec_of(case.shape, CUDA), tiling))
    assert_same_step(ours, reference(case), case.shape.dtype)


class TestTriton:
    @PROPERTY
    @given(
        case=cases(max_tokens=300, max_branches=6),
        tiling=st.sampled_from((Tiling(16, 64), FIXED, Tiling(128, 256), None)),
    )
    def test_any_forest_of_branches_over_any_placements(self, case: Case, tiling: Tiling | None) -> None:
        check(case, tiling)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("num_rows", [1, 8, 128, 1000])
    def test_sixteen_chunks_of_512_tokens(self, dtype: torch.dtype, num_rows: int) -> None:
        placed = tuple(PlacementCase(i, 512 * i, 0.2 if i % 3 == 0 else None) for i in range(16))
        branches = (BranchCase(8192, 0, num_rows, placed), BranchCase(8192 + 700, 20, 1, placed[::-1]))
        check(Case(replace(QWEN2_7B, dtype=dtype), (512,) * 16, branches))

    def test_a_row_far_away(self) -> None:
        check(Case(QWEN2_7B, (700,), (BranchCase(1_000_000, 0, 3, (PlacementCase(0, 0),)),)))

    @PROPERTY
    @given(case=cases(max_tokens=700, max_branches=5))
    def test_with_fixed_tiles_company_does_not_change_a_bit(self, case: Case) -> None:
        from shared.engine.backends.triton import TritonBackend

        backend = TritonBackend(spec_of(case.shape, CUDA), FIXED)
        together = Step(case, CUDA).run(backend)
        for i, lane in enumerate(Step(case, CUDA).lanes):
            alone = Step(case, CUDA).run(backend, only=[i])
            assert torch.equal(together.out_HRD[:, lane.rows], alone.out_HRD)
            assert torch.equal(together.keys[i], alone.keys[0])


class TestOtherBackends:
    def test_auto_is_triton(self) -> None:
        from shared.engine.backends.triton import TritonBackend

        assert isinstance(backend_for(EngineConfig(device="cuda"), spec_of(QWEN2_7B, CUDA)), TritonBackend)

    def test_auto_without_triton_is_torch_which_a_warning_says(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setitem(sys.modules, "triton", None)
        assert isinstance(backend_for(EngineConfig(device="cuda"), spec_of(QWEN2_7B, CUDA)), PiecewiseBackend)
        assert "'triton' is not installed here" in caplog.text

    @pytest.mark.parametrize("name", ["torch", "flash_attn"])
    @settings(PROPERTY, max_examples=30)
    @given(case=cases(dtypes=(torch.bfloat16, torch.float16), max_tokens=300))
    def test_piecewise_backends(self, name: Any, case: Case) -> None:
        if name == "flash_attn":
            pytest.importorskip("flash_attn")
        ours = Step(case, CUDA).run(
            backend_for(EngineConfig(backend=name, device="cuda"), spec_of(case.shape, CUDA))
        )
        assert_same_step(ours, reference(case), case.shape.dtype)


class TestLaws:
    """The laws of ``tests/unit/engine/test_laws.py``; the oracles stay on the CPU."""

    def engine(self, family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Engine:
        torch.backends.cuda.matmul.allow_tf32 = False
        return engine_of(
            hf_model=as_dtype(tiny_model(family), dtype).to(CUDA), device="cuda", backend="triton", **changes
        )

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("family", FAMILIES + VARIANTS)
    def test_every_family_in_every_mode(self, family: str, mode: ReuseMode) -> None:
        engine = self.engine(family)
        request = Prompts(engine, seed=1).request(
            prefix=7, chunks=(20, 1, 64, 33), questions=(9, 30), reuse=mode
        )
        assert_equals_oracle(run(engine, request)[0], tiny_model(family))

    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_positions_far_beyond_float32_angles(self, mode: ReuseMode) -> None:
        engine = self.engine("llama_yarn")
        request = Prompts(engine, seed=3).request(
            prefix=6, chunks=(700, 512, 640, 600), questions=(20,), reuse=mode, max_tokens=3
        )
        assert_equals_oracle(run(engine, request)[0], tiny_model("llama_yarn"))

    def test_a_forest_decodes_as_each_of_its_paths_alone(self) -> None:
        engine = self.engine("qwen2")
        together = Prompts(engine, seed=9).request(
            questions=(9, 4), temperature=0.9, seed=7, n=3, max_tokens=8
        )
        (forest,) = run(engine, together)
        for index, question in enumerate(together.questions):
            (alone,) = run(engine, replace(together, request_id=f"alone-{index}", questions=(question,)))
            for sample in range(3):
                assert_alike(forest.branch(index, sample), alone.branch(0, sample))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_batch_invariance_is_bitwise(self, dtype: torch.dtype) -> None:
        requests = self._requests(Prompts(self.engine("qwen2", dtype), seed=12))
        truth = [
            run(self.engine("qwen2", dtype, batch_invariant=True), request)[0].branches()
            for request in requests
        ]
        together = self.engine("qwen2", dtype, batch_invariant=True)
        assert [one.branches() for one in run(together, *requests)] == truth
        per_token = together.model.spec.kv_bytes_per_token
        tight = self.engine(
            "qwen2",
            dtype,
            batch_invariant=True,
            resident_bytes=140 * per_token,
            private_bytes=160 * per_token,
        )
        assert [one.branches() for one in reversed(run(tight, *reversed(requests)))] == truth

    def _requests(self, prompts: Prompts) -> list[GenerateRequest]:
        prefix, shared, other = prompts.ids(7), prompts.ids(40), prompts.ids(25)
        return [
            prompts.request(prefix, (shared, other), (9,), max_tokens=10),
            prompts.request(prefix, (other, shared, other), (5, 30), temperature=0.8, seed=1, n=2),
            prompts.request(prefix, (shared,), (12,), ReuseMode.COMPOSITE, max_tokens=8),
            prompts.request(prefix, (shared, 60), (3,), ReuseMode.FULL, max_tokens=5),
        ]
