"""Sampling and recorded passes on the GPU itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shared.engine import Engine
from shared.engine.decoding.draws import Draw
from shared.engine.decoding.sampling import sample
from shared.engine.device_arrays import DeviceArrays, brought
from shared.generation.asked import SamplingParams
from tests.engine_runs import Prompts, Shelf, assert_alike, engine_of, run
from tests.oracles import as_dtype, tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
CUDA = torch.device("cuda")
ASKED = [
    SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, seed=5, top_logprobs=3, watch_ids=(1, 9)
    )
    for temperature in (0.0, 0.4, 1.0)
    for top_k, top_p in ((0, 1.0), (40, 1.0), (0, 0.9), (500, 0.5))
]


@pytest.mark.parametrize("vocab", [1000, 152_064])
def test_draws_are_those_of_the_host(vocab: int) -> None:
    logits_BV = 3 * torch.randn(40 * len(ASKED), vocab, generator=torch.Generator().manual_seed(0))
    draws = [Draw(params, path, 7) for path in range(40) for params in ASKED]
    ours, theirs = sample(logits_BV.to(CUDA), draws), sample(logits_BV, draws)
    assert [one.token_id for one in ours] == [one.token_id for one in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert mine.watched == pytest.approx(other.watched, abs=1e-4)
        assert [i for i, _ in mine.top_logprobs] == [i for i, _ in other.top_logprobs]


def engine(**changes: Any) -> Engine:
    torch.backends.cuda.matmul.allow_tf32 = False
    return engine_of(hf_model=as_dtype(tiny_model("qwen2"), torch.float32).to(CUDA), device="cuda", **changes)


def test_recorded_passes_answer_as_others_do() -> None:
    """Requests of many sizes come and go; segments grow out of their buffers on the way."""
    recorded, plain = engine(), engine(cuda_graphs=False)
    assert recorded._steps.passes._graphs is not None
    assert plain._steps.passes._graphs is None
    prompts = Prompts(plain, seed=4)
    requests = [
        prompts.request(prefix=7, chunks=(20 + i, 33), questions=(9, 3 + i)[: 1 + i % 2], max_tokens=60 + i)
        for i in range(6)
    ]
    truth = [one.branches() for one in run(plain, *requests)]
    together, alone = run(recorded, *requests), [run(recorded, request)[0] for request in requests]
    for told in (together, alone):
        for ours, theirs in zip(told, truth, strict=True):
            for key, branch in theirs.items():
                assert_alike(ours.branches()[key], branch)
    graphs = recorded._steps.passes._graphs
    assert sum(one._again is not None for one in graphs._passes.values()) > 3
    assert not graphs._broken


def test_copies_of_stored_kv_are_waited_for_and_their_memory_is_nobody_elses() -> None:
    """Chunks come and go in a pool that holds few of them, while others decode over theirs."""
    shelf = Shelf()
    first = engine(source=shelf)
    prompts = Prompts(first, seed=5)
    requests = [prompts.request(prefix=7, chunks=(300, 200), questions=(9,), max_tokens=12) for _ in range(8)]
    truth = [run(first, request)[0].branches() for request in requests]
    first.shut_down()
    for key, (k_LHTD, v_LHTD) in shelf.kv.items():
        shelf.kv[key] = [k.cpu().pin_memory() for k in k_LHTD], [v.cpu().pin_memory() for v in v_LHTD]
    per_token = first.model.spec.kv_bytes_per_token
    for pipelined in (True, False):
        second = engine(source=shelf, resident_bytes=1200 * per_token, pipelined=pipelined)
        for _ in range(3):
            for one, alone in zip(run(second, *requests), truth, strict=True):
                for key, branch in alone.items():
                    assert_alike(one.branches()[key], branch)
        second.shut_down()


def test_numbers_do_not_stand_behind_copies_of_stored_kv() -> None:
    stored = torch.zeros(1 << 31, dtype=torch.uint8).pin_memory()
    there, copies = torch.empty_like(stored, device=CUDA), torch.cuda.Stream()
    arrays = DeviceArrays([np.arange(5)], CUDA)
    torch.cuda.synchronize()
    with torch.cuda.stream(copies):
        there.copy_(stored, non_blocking=True)
    arrays.write([np.arange(5) + 7])
    brought_too = brought(torch.arange(3), CUDA)
    torch.cuda.current_stream().synchronize()
    assert not copies.query()
    assert arrays.tensors[0].tolist() == [7, 8, 9, 10, 11]
    assert brought_too.tolist() == [0, 1, 2]
