"""The exactness laws with the Triton kernels in the place of torch's: a few of
``tests/unit/engine/test_laws.py``, in small."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from shared.engine import Engine
from shared.generation.modes import ReuseMode
from tests.engine_runs import Prompts, assert_alike, assert_equals_oracle, engine_of, run
from tests.oracles import ORACLES, as_dtype, tiny_model


def engine(family: str = "qwen2", dtype: torch.dtype = torch.float32, **changes: Any) -> Engine:
    return engine_of(hf_model=as_dtype(tiny_model(family), dtype), backend="triton", **changes)


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        *(("llama_yarn", mode) for mode in ReuseMode if mode.value in ORACLES),
        ("phi3_partial", ReuseMode.REORDERED),
    ],
    ids=str,
)
def test_every_mode_equals_its_oracle(family: str, mode: ReuseMode) -> None:
    triton = engine(family)
    request = Prompts(triton, seed=1).request(
        prefix=7, chunks=(20, 1, 33), questions=(9,), reuse=mode, max_tokens=2
    )
    assert_equals_oracle(run(triton, request)[0], tiny_model(family))


def test_a_forest_decodes_as_each_of_its_paths_alone() -> None:
    triton = engine()
    together = Prompts(triton, seed=9).request(
        chunks=(20, 33), questions=(9, 4), temperature=0.9, seed=7, n=2, max_tokens=3
    )
    (forest,) = run(triton, together)
    assert_equals_oracle(forest, tiny_model("qwen2"))
    question = together.questions[1]
    (alone,) = run(triton, replace(together, request_id="alone", questions=(question,)))
    for sample in range(2):
        assert_alike(forest.branch(1, sample), alone.branch(0, sample))


def test_batch_invariance_is_bitwise() -> None:
    """Company and preemption; with torch's kernel ``tests/unit/engine/test_fuzz.py`` says much more."""
    settings = {"dtype": torch.bfloat16, "batch_invariant": True}
    alone = engine(**settings)
    prompts = Prompts(alone, seed=12)
    shared, other = prompts.ids(30), prompts.ids(12)
    requests = [
        prompts.request((), (shared,), (9,), max_tokens=3),
        prompts.request((), (other, shared), (5,), temperature=0.8, seed=1, n=2, max_tokens=2),
    ]
    truth = [run(alone, request)[0].branches() for request in requests]
    num_paused = []
    tight = engine(private_bytes=20 * alone.model.spec.kv_bytes_per_token, **settings)
    together = run(tight, *requests, on_event=lambda one, event: num_paused.append(tight.stats().paused))
    assert [one.branches() for one in together] == truth
    assert max(num_paused) > 0, "nothing was preempted"
