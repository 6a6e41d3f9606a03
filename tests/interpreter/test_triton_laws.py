"""The exactness laws with the Triton kernels in the place of torch's: a few of ``tests/unit/test_engine_laws.py``, in small."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from shared.engine import Engine
from shared.engine.types import ReuseMode
from tests.engine_runs import Prompts, assert_alike, assert_equals_oracle, engine_of, run
from tests.oracles import as_dtype, tiny_model


def engine(family: str = "qwen2", dtype: torch.dtype = torch.float32, **changes: Any) -> Engine:
    return engine_of(hf_model=as_dtype(tiny_model(family), dtype), backend="triton", **changes)


@pytest.mark.parametrize("mode", list(ReuseMode), ids=lambda m: m.value)
@pytest.mark.parametrize("family", ["llama_yarn", "phi3_partial"])
def test_every_mode_equals_its_oracle(family: str, mode: ReuseMode) -> None:
    triton = engine(family)
    request = Prompts(triton, seed=1).request(prefix=7, chunks=(20, 1, 33), questions=(9,), reuse=mode, max_tokens=2)
    assert_equals_oracle(run(triton, request)[0], tiny_model(family))


def test_positions_far_beyond_float32_angles() -> None:
    triton = engine("llama3")
    request = Prompts(triton, seed=3).request(prefix=6, chunks=(700, 512, 640, 600), questions=(5,), max_tokens=2)
    assert_equals_oracle(run(triton, request)[0], tiny_model("llama3"))


def test_a_forest_decodes_as_each_of_its_paths_alone() -> None:
    triton = engine()
    together = Prompts(triton, seed=9).request(chunks=(20, 33), questions=(9, 4), temperature=0.9, seed=7, n=2, max_tokens=3)
    (forest,) = run(triton, together)
    assert_equals_oracle(forest, tiny_model("qwen2"))
    question = together.questions[1]
    (alone,) = run(triton, replace(together, request_id="alone", questions=(question,)))
    for sample in range(2):
        assert_alike(forest.branch(1, sample), alone.branch(0, sample))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_invariance_is_bitwise(dtype: torch.dtype) -> None:
    """Company, eviction and preemption."""
    settings = {"dtype": dtype, "batch_invariant": True}
    prompts = Prompts(engine(**settings), seed=12)
    prefix, shared, other = prompts.ids(7), prompts.ids(30), prompts.ids(12)
    requests = [
        prompts.request(prefix, (shared, other), (9,), max_tokens=3),
        prompts.request(prefix, (other, shared), (5,), temperature=0.8, seed=1, n=2, max_tokens=3),
        prompts.request(prefix, (shared,), (12,), ReuseMode.COMPOSITE, max_tokens=3),
    ]
    truth = [run(engine(**settings), request)[0].branches() for request in requests]
    assert [one.branches() for one in run(engine(**settings), *requests)] == truth
    per_token = engine(**settings).model.spec.kv_bytes_per_token
    tight = engine(resident_bytes=40 * per_token, private_bytes=60 * per_token, **settings)
    assert [one.branches() for one in reversed(run(tight, *reversed(requests)))] == truth
