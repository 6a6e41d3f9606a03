"""Mode ``ape`` (law 3) beyond what ``test_engine_laws`` asks of every mode: its two numbers, its neighbours,
its limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from shared.engine import Engine
from shared.engine.backends.native import best_level
from shared.errors import InvalidRequest
from shared.generation.asked import GenerateRequest
from shared.generation.forest import ForestRequest
from shared.generation.modes import Ape, ReuseMode
from tests import oracles
from tests.engine_runs import Prompts, Run, assert_alike, assert_equals_oracle, engine_of, run
from tests.oracles import assert_same_generation, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@lru_cache
def oracle_model(family: str) -> Any:
    return tiny_model(family)


@lru_cache
def shared_engine(family: str) -> Engine:
    return engine_of(family)


def assert_is(one: Run, oracle: Any, model: Any) -> None:
    request = one.request
    assert isinstance(request, GenerateRequest)
    chunks = [c.token_ids for c in request.chunks]
    for (question, _), ours in one.branches().items():
        oracle_GV = oracle(model, request.prefix_ids, chunks, request.questions[question], ours.token_ids)
        assert_same_generation(ours, oracle_GV)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(("llama3", "qwen2", "phi3_partial", "llama_yarn")),
    prefix=st.integers(0, 6),
    chunks=st.lists(st.integers(1, 60), max_size=6),
    questions=st.lists(st.integers(1, 30), min_size=1, max_size=2),
    temperature=st.floats(0.2, 2),
    scale=st.floats(0.2, 2),
    seed=st.integers(0, 99),
)
def test_any_temperature_and_scale_equal_the_formula(
    family: str,
    prefix: int,
    chunks: list[int],
    questions: list[int],
    temperature: float,
    scale: float,
    seed: int,
) -> None:
    request = Prompts(shared_engine(family), seed).request(
        prefix, chunks, questions, ReuseMode.APE, ape=Ape(temperature, scale), max_tokens=4
    )
    oracle = partial(oracles.ape, temperature=temperature, scale=scale)
    assert_is(run(shared_engine(family), request)[0], oracle, oracle_model(family))


def test_temperature_and_scale_of_1_over_one_chunk_are_ordinary_attention() -> None:
    """One chunk stands where it stands in every mode."""
    prompts = Prompts(shared_engine("qwen2"), seed=1)
    request = prompts.request(chunks=(40,), reuse=ReuseMode.APE, ape=Ape(1.0, 1.0))
    assert_is(run(shared_engine("qwen2"), request)[0], oracles.full, oracle_model("qwen2"))


def test_both_numbers_matter() -> None:
    prompts = Prompts(shared_engine("qwen2"), seed=2)
    request = prompts.request(chunks=(40, 30), reuse=ReuseMode.APE, ape=Ape(0.5, 0.8))
    (one,) = run(shared_engine("qwen2"), request)
    for temperature, scale in ((1.0, 0.8), (0.5, 1.0)):
        with pytest.raises(AssertionError):
            assert_is(one, partial(oracles.ape, temperature=temperature, scale=scale), oracle_model("qwen2"))


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
def test_among_requests_of_other_modes_in_small_steps(backend: str) -> None:
    engine = engine_of("llama3", backend=backend, max_step_tokens=24)
    prompts = Prompts(engine, seed=3)
    prefix, a, b = prompts.ids(7), prompts.ids(40), prompts.ids(25)
    requests = [
        prompts.request(prefix, (a, b), (9, 14), mode, n=2, temperature=0.7)
        for mode in (ReuseMode.APE, ReuseMode.REORDERED)
    ]
    together = run(engine, *requests, prompts.request(prefix, (b, a), (5,), ReuseMode.EPIC))
    for one in together:
        assert_equals_oracle(one, oracle_model("llama3"))
    for question in range(2):
        (alone,) = run(
            engine,
            replace(
                requests[0], request_id=f"alone-{question}", questions=requests[0].questions[question:][:1]
            ),
        )
        for sample in range(2):
            assert_alike(together[0].branch(question, sample), alone.branch(0, sample))


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(not best_level(), reason="this processor has no AVX2")
def test_it_takes_the_steps_that_composite_takes() -> None:
    """All it does otherwise, the C kernels do; it has no path of its own."""
    engine = engine_of("llama3", backend="native")
    request = Prompts(engine, seed=5).request(chunks=(40, 25, 33), questions=(9,), max_tokens=6)
    run(engine, request)
    took = {}
    for mode in (ReuseMode.COMPOSITE, ReuseMode.APE):
        with Counting() as counting:
            run(engine, replace(request, request_id=mode.value, reuse=mode))
        took[mode] = counting.names
    assert took[ReuseMode.APE] == took[ReuseMode.COMPOSITE]


@pytest.mark.parametrize("number", [0.0, -1.0, 10.1, float("nan"), float("inf")])
def test_numbers_out_of_range_are_refused(number: float) -> None:
    with pytest.raises(InvalidRequest, match=r"ape\.temperature"):
        Ape(temperature=number)
    with pytest.raises(InvalidRequest, match=r"ape\.scale"):
        Ape(scale=number)


def test_its_numbers_are_refused_under_another_mode() -> None:
    engine = shared_engine("qwen2")
    request = Prompts(engine, seed=4).request(ape=Ape(0.5))
    with pytest.raises(InvalidRequest, match="ape: mode reordered"):
        engine.submit(request, lambda event: None)
    with pytest.raises(InvalidRequest, match="ape: mode reordered"):
        engine.submit(
            ForestRequest("forest", request.prefix_ids, request.chunks, ape=Ape(0.5)), lambda event: None
        )
