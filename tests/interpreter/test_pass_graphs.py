"""Passes that go by recorded forms: everything but the recording itself, which needs a GPU. What is recorded
here is run again as it was: with the padding, the tables in their places, and nothing else that changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.model.pass_graphs import Body
from shared.engine.model.passes import PassRunner
from shared.generation.modes import ReuseMode
from tests.engine_runs import Prompts, assert_equals_oracle, engine_of, run
from tests.oracles import as_dtype, tiny_model
from tests.quoting_model import quoting_model


class Recorder:
    """Runs a body again. ``num_recorded`` forms, ``num_again`` passes that went by one."""

    def __init__(self) -> None:
        self.num_recorded = self.num_again = 0

    def __call__(self, body: Body) -> Body:
        self.num_recorded += 1

        def again() -> Tensor:
            self.num_again += 1
            return body()

        return again


def graphs_of(engine: Engine, record: Callable[[Body], Body]) -> Engine:
    engine._steps.passes = PassRunner(engine.model, engine.config, record)
    return engine


def engine(record: Callable[[Body], Body], dtype: torch.dtype = torch.float32, **changes: Any) -> Engine:
    return graphs_of(
        engine_of(hf_model=as_dtype(tiny_model("qwen2"), dtype), backend="triton", **changes), record
    )


def test_what_is_run_again_equals_the_oracle() -> None:
    recorder = Recorder()
    graphs = engine(recorder)
    prompts = Prompts(graphs, seed=1)
    requests = [
        prompts.request(prefix=7, chunks=(20, 1, 33), questions=(9, 5), max_tokens=6),
        prompts.request(prefix=7, chunks=(12,), questions=(3,), reuse=ReuseMode.COMPOSITE, max_tokens=4),
    ]
    for one in run(graphs, *requests):
        assert_equals_oracle(one, tiny_model("qwen2"))
    assert recorder.num_again > recorder.num_recorded > 0


def test_a_pass_with_drafts_is_one_like_others() -> None:
    recorder = Recorder()
    graphs = graphs_of(
        engine_of(hf_model=quoting_model(certainty=1.0), backend="triton", speculation=8), recorder
    )
    request = Prompts(graphs).request(5, [tuple(range(50, 90))], [(60, 61, 62)], max_tokens=20)
    (one,) = run(graphs, request)
    assert_equals_oracle(one, quoting_model(certainty=1.0))
    assert one.done.usage.accepted_tokens > 0
    assert recorder.num_again > 0


def test_batch_invariance_is_bitwise_with_and_without() -> None:
    recorder = Recorder()
    plain = engine_of(
        hf_model=as_dtype(tiny_model("qwen2"), torch.bfloat16), backend="triton", batch_invariant=True
    )
    prompts = Prompts(plain, seed=12)
    requests = [
        prompts.request((), (30,), (9,), max_tokens=5),
        prompts.request((), (12, 30), (5,), temperature=0.8, seed=1, n=3, max_tokens=4),
    ]
    truth = [run(plain, request)[0].branches() for request in requests]
    graphs = engine(recorder, torch.bfloat16, batch_invariant=True)
    assert [one.branches() for one in run(graphs, *requests)] == truth
    assert recorder.num_again > 0


def test_where_recording_fails_the_engine_goes_on_without(caplog: pytest.LogCaptureFixture) -> None:
    def fails(body: Body) -> Body:
        raise RuntimeError("no graphs here")

    graphs = engine(fails)
    (one,) = run(graphs, Prompts(graphs, seed=2).request(chunks=(20,), questions=(4,), max_tokens=6))
    assert_equals_oracle(one, tiny_model("qwen2"))
    assert caplog.text.count("cannot be recorded") == 1


def test_where_a_recording_gives_something_else_the_engine_goes_on_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def wrong(body: Body) -> Body:
        return lambda: body().flip(-1)

    graphs = engine(wrong)
    (one,) = run(graphs, Prompts(graphs, seed=2).request(chunks=(20,), questions=(4,), max_tokens=6))
    assert_equals_oracle(one, tiny_model("qwen2"))
    assert caplog.text.count("off the pass it records") == 1


@pytest.mark.parametrize(("family", "recorded"), [("qwen2", True), ("mixtral", False), ("qwen3_moe", False)])
def test_mixtures_of_experts_are_not_recorded(family: str, recorded: bool) -> None:
    model = wrap_model(tiny_model(family))
    runner = PassRunner(model, EngineConfig(backend="triton"), Recorder())
    assert (runner._graphs is not None) == recorded
