"""``engine.compile``: layers as torch.compile makes them compute what they always did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from shared.config import load
from shared.engine import Engine, EngineConfig, wrap_model
from shared.errors import ConfigError
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from tests.engine_runs import assert_equals_oracle, run
from tests.oracles import FAMILIES, as_dtype, tiny_model


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    torch.compiler.reset()


def request(num_rows: int, reuse: ReuseMode) -> GenerateRequest:
    chunks = tuple(Chunk(f"{num_rows}-{i}", tuple(range(20 + i, 20 + i + num_rows + i))) for i in range(2))
    sampling = SamplingParams(max_tokens=4, ignore_eos=True, top_logprobs=4)
    return GenerateRequest(
        f"{reuse.value}-{num_rows}", (1, 2, 3), chunks, ((7, 8, 9), (4, 5)), reuse, sampling
    )


def check(engine: Engine, family: str) -> None:
    asked = [
        request(num_rows, reuse) for num_rows in (2, 7, 19) for reuse in (ReuseMode.FULL, ReuseMode.REORDERED)
    ]
    for one in run(engine, *asked):
        assert_equals_oracle(one, tiny_model(family))
    engine.shut_down()


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_can_be_captured_for_any_number_of_rows(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured, but not made into other kernels: what it costs to test every family."""
    compiled = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda layer, **options: compiled(layer, backend="eager", **options)
    )
    with torch._dynamo.config.patch(
        error_on_recompile=False, recompile_limit=2, fail_on_recompile_limit_hit=True
    ):
        check(Engine(wrap_model(tiny_model(family)), EngineConfig(compile=True)), family)


def test_a_compiled_model_answers_as_the_oracle_does() -> None:
    check(Engine(wrap_model(tiny_model("qwen2")), EngineConfig(compile=True)), "qwen2")


def test_packed_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine.compile: .* packed .* leave it out"):
        Engine(wrap_model(as_dtype(tiny_model("qwen2"), torch.bfloat16)), EngineConfig(compile=True))


def test_it_is_refused_with_batch_invariance() -> None:
    with pytest.raises(ConfigError, match=r"compile: .* leave it out with batch_invariant"):
        load(EngineConfig, {"compile": True, "batch_invariant": True})
