"""A layer in two native calls has the bits of its modules one after the other, and with adapters those that
each row has alone; other layers keep their modules."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GraniteConfig, GraniteForCausalLM

from shared.engine import wrap_model
from shared.engine.attention import Lane, StepPlan
from shared.engine.backends import native
from shared.engine.backends.native import NativeAttention, NativeBackend
from shared.engine.backends.tables import FIXED
from shared.engine.kv.branch import Branch, Placement
from shared.engine.model import int8, linear_kernels
from shared.engine.model.adapting import (
    MOST_ADAPTERS,
    NOTHING_ADAPTED,
    AdaptedGroup,
    AdaptedRows,
    AdapterWeights,
    adapted_rows,
)
from shared.engine.model.int8 import Int8Gate, Int8Linear, Room
from shared.engine.model.linear_kernels import Layers, Stages
from shared.engine.model.model import LoadedModel
from shared.engine.model.packing import ROWWISE, best_products
from shared.engine.model.rounding import TOLERANCE, relative_error
from shared.engine.model.rowwise import RowwiseGate, RowwiseLinear, RowwiseNorm
from shared.engine.model.self_check import rows_are_independent
from shared.engine_config import Weights
from shared.measuring.shapes import random_adapter
from tests.emulated_tiles import TESTED
from tests.oracles import as_dtype, tiny_model

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(best_products() is not ROWWISE, reason="no kernels for this processor"),
]
ANY = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
NO_ADAPTER = AdaptedGroup(AdapterWeights({}, torch.device("cpu")), torch.empty(0, dtype=torch.long), 0)
BY_MODULES = AdaptedRows((NO_ADAPTER,))
EVEN = st.one_of(st.integers(1, 20), st.integers(1, 200)).map(lambda half: 2 * half)


class Mixing:
    """Stands in for a step plan. ``BY_MODULES``: the layer's run one after the other."""

    token_ids = ()

    def __init__(self, adapted: AdaptedRows = NOTHING_ADAPTED) -> None:
        self.adapted = adapted
        self.seen: list[Any] = []

    def run(self, layer: int, q_HRD: Any, k_KRD: Any, v_KRD: Any, scale: float) -> torch.Tensor:
        self.seen.append((layer, scale, q_HRD.clone(), k_KRD.clone(), v_KRD.clone()))
        return q_HRD + (k_KRD - v_KRD).repeat_interleave(len(q_HRD) // len(k_KRD), 0)


def loaded(family: str, weights: Weights = "exact", **changes: Any) -> LoadedModel:
    return wrap_model(as_dtype(tiny_model(family, **changes), torch.bfloat16), weights=weights)


def layers_called(model: LoadedModel, hidden_RE: torch.Tensor, plan: Mixing) -> int:
    """Of ``transformers``, in a pass."""
    calls: list[None] = []
    hooks = [
        module.register_forward_hook(lambda *_: calls.append(None)) for module in model.hf_model.model.layers
    ]
    for layer in range(model.spec.num_layers):
        hidden_RE = model.run_layer(layer, hidden_RE, plan)
    for hook in hooks:
        hook.remove()
    return len(calls)


def some_rows(model: LoadedModel, num_rows: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(num_rows)
    return 3 * torch.randn(num_rows, model.hf_model.config.hidden_size, generator=draw).bfloat16()


def linear(num_in: int, num_out: int, bias: bool) -> torch.nn.Linear:
    return torch.nn.Linear(num_in, num_out, bias=bias).bfloat16().requires_grad_(False)


INT8 = functools.partial(Int8Linear, room=Room()), functools.partial(Int8Gate, room=Room())


@pytest.mark.parametrize(
    ("kinds", "multiple"), [((RowwiseLinear, RowwiseGate), 1), (INT8, 2)], ids=["exact", "int8"]
)
@ANY
@given(
    num_rows=st.one_of(st.integers(1, 30), st.integers(1, 450)),
    mixed=EVEN,
    width=EVEN,
    inner=EVEN,
    joint=st.integers(1, 200),
    bias=st.booleans(),
    threads=st.integers(1, 3),
)
@torch.inference_mode()
def test_stages_are_the_modules_one_after_the_other(
    kinds: tuple[Any, Any],
    multiple: int,
    num_rows: int,
    mixed: int,
    width: int,
    inner: int,
    joint: int,
    bias: bool,
    threads: int,
) -> None:
    torch.manual_seed(num_rows)
    mixed, width, inner = (multiple * size for size in (mixed, width, inner))
    o, gate, up, down, after = (
        linear(*shape, bias)
        for shape in ((mixed, width), (width, inner), (width, inner), (inner, width), (width, joint))
    )
    linear_of, gate_of = kinds
    first, gated, last, qkv = linear_of(o), gate_of(gate, up), linear_of(down), linear_of(after)
    num_rows = min(num_rows, first.most_rows)
    norms = [RowwiseNorm(torch.randn(width).bfloat16(), eps) for eps in (1e-6, 1e-5)]
    mixed_RI, hidden_RE = (4 * torch.randn(num_rows, size).bfloat16() for size in (mixed, width))
    middle_RE = hidden_RE + first(mixed_RI)
    out_RE = middle_RE + last(gated(norms[0](middle_RE)))
    expected = out_RE, qkv(norms[1](out_RE))

    stages = Stages(
        first.stage(0, 2, added_to=1),
        norms[0].stage(2, 3),
        gated.stage(3, 4),
        last.stage(4, 2, added_to=2),
        norms[1].stage(2, 3),
        qkv.stage(3, 5),
    )
    before = mixed_RI.clone(), hidden_RE.clone()
    places = [torch.full((num_rows, size), torch.nan).bfloat16() for size in (width, width, inner, joint)]
    torch.set_num_threads(threads)
    stages.run(mixed_RI, hidden_RE, *places)
    torch.set_num_threads(1)
    assert torch.equal(places[0], expected[0])
    assert torch.equal(places[3], expected[1])
    assert torch.equal(mixed_RI, before[0])
    assert torch.equal(hidden_RE, before[1])


@pytest.mark.parametrize("family", ["llama", "llama3", "llama_linear", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("weights", ["exact", "int8"])
class TestNativeLayers:
    @torch.inference_mode()
    def test_bits_are_those_of_the_modules(self, family: str, weights: Weights) -> None:
        model = loaded(family, weights)
        for num_rows in (1, 2, 12, 13, 200, 600):
            for layer in range(model.spec.num_layers):
                hidden_RE = some_rows(model, num_rows)
                native, modules = Mixing(), Mixing(BY_MODULES)
                ours = model.run_layer(layer, hidden_RE, native)
                assert torch.equal(ours, model.run_layer(layer, hidden_RE, modules))
                (one,), (other,) = native.seen, modules.seen
                assert one[:2] == other[:2]
                assert all(torch.equal(a, b) for a, b in zip(one[2:], other[2:], strict=True))

    @torch.inference_mode()
    def test_the_layers_of_transformers_run_only_for_adapters(self, family: str, weights: Weights) -> None:
        model = loaded(family, weights)
        assert layers_called(model, some_rows(model, 3), Mixing()) == 0
        assert layers_called(model, some_rows(model, 3), Mixing(BY_MODULES)) == model.spec.num_layers


@torch.inference_mode()
def test_more_rows_than_the_kernels_of_int8_are_for_are_left_to_transformers() -> None:
    model = loaded("llama3", "int8")
    most_rows = model.hf_model.model.layers[0].self_attn.o_proj.most_rows
    for num_rows, others in ((most_rows, 0), (most_rows + 1, model.spec.num_layers)):
        assert layers_called(model, some_rows(model, num_rows), Mixing()) == others


@pytest.mark.parametrize("weights", ["exact", "int8"])
@torch.inference_mode()
def test_rows_apart_in_memory_and_no_rows(weights: Weights) -> None:
    model = loaded("qwen2", weights)
    hidden_RE = some_rows(model, 10)
    apart_RE = torch.stack((hidden_RE, -hidden_RE), 2)[..., 0]
    assert not apart_RE.is_contiguous()
    expected = model.run_layer(0, hidden_RE, Mixing())
    assert torch.equal(model.run_layer(0, apart_RE, Mixing()), expected)
    assert model.run_layer(0, hidden_RE[:0], Mixing()).shape == (0, hidden_RE.shape[1])


@pytest.fixture
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of kernels, for everything in a test."""
    number: int = request.param
    for of in (linear_kernels, int8):
        monkeypatch.setattr(of, "best_level", lambda: number)
    return number


def adapters_of(model: LoadedModel) -> list[AdapterWeights | None]:
    """None, and some that change all, some or no linear layers of the last decoder layer."""
    shapes = model.linear_shapes
    queries = {site: shape for site, shape in shapes.items() if site.path.endswith(("q_proj", "up_proj"))}
    first = {site: shape for site, shape in shapes.items() if site.layer == 0}
    given = (shapes, 4), (shapes, 3), (queries, 8), (first, 16)
    placed = [
        model.place(random_adapter(some, rank, seed=seed, strength=0.2))
        for seed, (some, rank) in enumerate(given)
    ]
    return [None, *placed]


def passed(
    model: LoadedModel, hidden_RE: torch.Tensor, users: Sequence[AdapterWeights | None], native: bool = True
) -> torch.Tensor:
    """Behind the model's last layer. Not ``native``: its modules, one after the other."""
    adapted = adapted_rows([(one, slice(row, row + 1)) for row, one in enumerate(users)])
    plan = Mixing(adapted if native else replace(adapted, adapters=()))
    return model.run_layer(model.spec.num_layers - 1, hidden_RE, plan)


@pytest.mark.parametrize("level", TESTED, indirect=True)
@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
@pytest.mark.parametrize("weights", ["exact", "int8"])
class TestAdaptersInNativeLayers:
    @pytest.mark.parametrize("threads", [1, 3])
    @torch.inference_mode()
    def test_a_row_has_the_bits_that_it_has_alone(
        self, family: str, weights: Weights, level: int, threads: int
    ) -> None:
        torch.set_num_threads(threads)
        model = loaded(family, weights)
        adapters = adapters_of(model)
        one_row = Mixing(adapted_rows([(adapters[1], slice(0, 1))]))
        assert layers_called(model, some_rows(model, 1), one_row) == 0
        for num_rows in (1, 7, 50):
            hidden_RE, draw = some_rows(model, num_rows), random.Random(num_rows)
            users = [draw.choice(adapters) for _ in range(num_rows)]
            together_RE = passed(model, hidden_RE, users)
            plain_RE = model.run_layer(model.spec.num_layers - 1, hidden_RE, Mixing())
            for row, one in enumerate(users):
                assert torch.equal(together_RE[row], passed(model, hidden_RE[row : row + 1], [one])[0])
                unchanged = one is None or one is adapters[-1]
                assert torch.equal(together_RE[row], plain_RE[row]) is unchanged
        torch.set_num_threads(1)

    @torch.inference_mode()
    def test_it_is_that_of_the_modules_within_rounding(
        self, family: str, weights: Weights, level: int
    ) -> None:
        model = loaded(family, weights)
        for one in adapters_of(model):
            for num_rows in (1, 13, 60):
                hidden_RE = some_rows(model, num_rows)
                ours_RE, theirs_RE = (
                    passed(model, hidden_RE, num_rows * [one], native) for native in (True, False)
                )
                assert relative_error(ours_RE, theirs_RE) < TOLERANCE[torch.bfloat16]


@torch.inference_mode()
def test_more_adapters_than_native_layers_can_number_go_by_modules() -> None:
    model = loaded("llama3")
    adapter = random_adapter(model.linear_shapes, 2)
    for number, called in ((MOST_ADAPTERS, 0), (MOST_ADAPTERS + 1, model.spec.num_layers)):
        users = [(model.place(adapter), slice(row, row + 1)) for row in range(number)]
        assert layers_called(model, some_rows(model, number), Mixing(adapted_rows(users))) == called


class Step:
    """Two steps of three branches, of which two see the first one's tokens: how many rows, and with which
    adapters."""

    def __init__(self, model: LoadedModel, num_rows: int, adapters: Sequence[AdapterWeights | None]) -> None:
        draw = torch.Generator().manual_seed(num_rows)
        self.model, self.adapters = model, adapters
        self.backend = NativeBackend(model.spec, FIXED)

        def ids(count: int) -> tuple[int, ...]:
            return tuple(torch.randint(model.spec.vocab_size, (count,), generator=draw).tolist())

        first = Branch(model.spec, ids(num_rows), 0)
        others = [
            Branch(model.spec, ids(count), num_rows + 3, (Placement(first.segment, 2),)) for count in (1, 5)
        ]
        self.branches = [first, *others]

    def run(self) -> list[torch.Tensor]:
        """Hidden states of the first branch, then of those that see it."""
        return [self.hidden(self.branches[:1]), self.hidden(self.branches[1:])]

    def hidden(self, branches: Sequence[Branch]) -> torch.Tensor:
        lanes, start = [], 0
        for branch in branches:
            count = len(branch.pending)
            branch.segment.reserve(count)
            lanes.append(Lane(branch, start, count, self.adapters[self.branches.index(branch)]))
            start += count
        hidden_RE = self.model.forward(StepPlan(lanes, self.backend))
        for lane in lanes:
            lane.advance()
        return hidden_RE


@pytest.mark.parametrize("level", TESTED, indirect=True)
@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("weights", ["exact", "int8"])
@torch.inference_mode()
def test_all_layers_in_one_call_have_the_bits_of_one_after_the_other(
    family: str, weights: Weights, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(family, weights)
    none, one, other, *_ = adapters_of(model)
    monkeypatch.setattr(native, "best_level", lambda: level)
    for num_rows, threads in ((1, 1), (12, 3), (60, 1)):
        for adapters in ((none, none, none), (one, none, other)):
            torch.set_num_threads(threads)
            together = Step(model, num_rows, adapters).run()
            with mock.patch.object(StepPlan, "uninterrupted", None):
                apart = Step(model, num_rows, adapters).run()
            torch.set_num_threads(1)
            assert all(torch.equal(*pair) for pair in zip(together, apart, strict=True))


class TestWhatRunsInOneCall:
    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """In order: of all layers, or of one layer's attention."""
        noted: list[str] = []
        for owner, name in ((Layers, "all layers"), (NativeAttention, "a layer")):

            def noting(*args: Any, run: Any = owner.run, name: str = name) -> Any:
                noted.append(name)
                return run(*args)

            monkeypatch.setattr(owner, "run", noting)
        return noted

    @torch.inference_mode()
    def test_a_step_with_nothing_to_do_between_layers(self, calls: list[str]) -> None:
        Step(loaded("llama3"), 3, [None] * 3).run()
        assert calls == 2 * ["all layers"]

    @torch.inference_mode()
    def test_not_one_whose_queries_are_looked_at(self, calls: list[str]) -> None:
        step = Step(loaded("llama3"), 3, [None] * 3)
        step.branches[0].probe = mock.Mock()
        step.run()
        assert calls == [*step.model.spec.num_layers * ["a layer"], "all layers"]
        assert step.branches[0].probe.look.call_count == step.model.spec.num_layers

    @torch.inference_mode()
    def test_not_one_that_waits_for_layers_to_arrive(self, calls: list[str]) -> None:
        step = Step(loaded("llama3"), 3, [None] * 3)
        step.run()
        calls.clear()
        step.branches[0].segment.arrival = arrival = mock.Mock(settled=False)
        step.branches[1].pending.append(1)
        step.hidden(step.branches[1:2])
        assert calls == step.model.spec.num_layers * ["a layer"]
        assert [call.args[0] for call in arrival.wait_for.call_args_list] == [
            *range(step.model.spec.num_layers)
        ]

    @torch.inference_mode()
    def test_more_rows_than_the_kernels_of_int8_are_for_are_left_to_transformers(
        self, calls: list[str]
    ) -> None:
        model = loaded("llama3", "int8")
        Step(model, model.hf_model.model.layers[0].self_attn.o_proj.most_rows + 1, [None] * 3).run()
        assert calls == [*model.spec.num_layers * ["a layer"], "all layers"]

    @torch.inference_mode()
    def test_no_layer_alone_that_is_not_native(self, calls: list[str]) -> None:
        Step(loaded("phi3"), 3, [None] * 3).run()
        assert set(calls) == {"a layer"}


class TestOtherLayers:
    """Their modules run one after the other, as before."""

    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("phi3", {}),  # the gate and what goes through it are one layer
            ("llama_yarn", {}),  # queries and keys are scaled
            ("llama3", {"hidden_act": "gelu"}),
            ("llama3", {"intermediate_size": 95}),
            ("mixtral", {}),
        ],
    )
    @torch.inference_mode()
    def test_they_are_left_to_transformers(self, family: str, changes: dict[str, Any]) -> None:
        model = loaded(family, **changes)
        assert layers_called(model, some_rows(model, 3), Mixing()) == model.spec.num_layers

    @torch.inference_mode()
    def test_one_that_weighs_its_residuals_is_seen_by_what_it_computes(self) -> None:
        for multiplier, others in ((1.0, 0), (0.25, 2)):
            config = GraniteConfig(
                vocab_size=128,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                residual_multiplier=multiplier,
            )
            torch.manual_seed(0)
            model = wrap_model(as_dtype(GraniteForCausalLM(config), torch.bfloat16))
            assert model.rows_independent
            assert layers_called(model, some_rows(model, 3), Mixing()) == others


@torch.inference_mode()
def test_a_native_layer_with_other_bits_than_its_modules_is_found() -> None:
    model = loaded("llama3")
    assert rows_are_independent(model)
    model.hf_model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda *call: 1.01 * call[2])
    assert not rows_are_independent(model)
