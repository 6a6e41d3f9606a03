"""Live forests: whatever is forked, rewound, pruned, continued and merged, every branch goes on as the stock
model would behind its tokens."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from transformers import DynamicCache

from shared.engine import Engine, LiveForest
from shared.engine.jobs.forest import ForestJob
from shared.errors import (
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    InvalidRequest,
    NotFound,
)
from shared.generation.asked import SamplingParams
from shared.generation.forest import (
    Append,
    Close,
    Command,
    ForestRequest,
    Fork,
    Grow,
    Merge,
    Prune,
    Rewind,
    Start,
)
from shared.generation.modes import ReuseMode
from shared.generation.told import AppliedEvent, DoneEvent, Event, FinishReason, GrownEvent, RestedEvent
from tests.engine_runs import Prompts, assert_equals_oracle, collector_off, engine_of, jobs_of, run
from tests.oracles import ORACLES, Generated, assert_same_generation, rotate_keys, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

MODES = [mode for mode in ReuseMode if mode.value in ORACLES]
GREEDY = SamplingParams(max_tokens=4, ignore_eos=True, top_logprobs=3)


@lru_cache
def shared_engine(family: str = "qwen2", **settings: Any) -> Engine:
    return engine_of(family, **settings)


@lru_cache
def oracle_model(family: str = "qwen2") -> Any:
    return tiny_model(family)


def forest_of(
    engine: Engine, seed: int = 0, reuse: ReuseMode = ReuseMode.REORDERED, **changes: Any
) -> tuple[LiveForest, ForestRequest]:
    like = Prompts(engine, seed).request(reuse=reuse, **changes)
    request = ForestRequest(f"forest-{seed}", like.prefix_ids, like.chunks, reuse)
    return LiveForest(engine, request), request


def grown(events: Sequence[Event], branch: int) -> Generated:
    mine = [e for e in events if isinstance(e, GrownEvent) and e.branch == branch]
    return Generated(
        tuple(e.token_id for e in mine), tuple(e.logprob for e in mine), tuple(e.top_logprobs for e in mine)
    )


def assert_oracle(
    request: ForestRequest, tokens: Sequence[int], ours: Generated, model: Any, greedy: bool = True
) -> None:
    """``ours`` grew behind ``tokens``."""
    chunks = [c.token_ids for c in request.chunks]
    oracle_GV = ORACLES[request.reuse.value](model, request.prefix_ids, chunks, tokens, ours.token_ids)
    assert_same_generation(ours, oracle_GV, greedy=greedy)


class Forests(RuleBasedStateMachine):
    """Against lists of tokens and whole forwards of the stock model."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.branches: dict[int, list[int]] = {}
        self.next_id = 0

    @initialize(
        mode=st.sampled_from(MODES),
        chunks=st.lists(st.integers(1, 20), max_size=2),
        budget=st.sampled_from([5, 2048]),
    )
    def open(self, mode: ReuseMode, chunks: list[int], budget: int) -> None:
        self.engine = shared_engine(max_step_tokens=budget)
        self.forest, self.request = forest_of(self.engine, reuse=mode, chunks=chunks)

    def do(self, *commands: Command) -> list[Any]:
        events = self.forest.do(*commands)
        self.engine.check_invariants()
        return events

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def one(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.branches)))

    @precondition(lambda self: len(self.branches) < 8)
    @rule(tokens=st.lists(st.integers(3, 256), min_size=1, max_size=7))
    def start(self, tokens: list[int]) -> None:
        branch = self.new_id()
        self.do(Start(branch, tuple(tokens)))
        self.branches[branch] = list(tokens)

    @precondition(lambda self: len(self.branches) < 7)
    @rule(data=st.data(), tokens=st.lists(st.integers(3, 256), min_size=1, max_size=7))
    def start_and_fork_at_once(self, data: st.DataObject, tokens: list[int]) -> None:
        """Nothing of the source is computed yet, and under ``full`` perhaps not even the context."""
        source, branch = self.new_id(), self.new_id()
        length = data.draw(st.integers(1, len(tokens)))
        self.do(Start(source, tuple(tokens)), Fork(branch, source, length))
        self.branches |= {source: list(tokens), branch: tokens[:length]}

    @precondition(lambda self: 0 < len(self.branches) < 8)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        source, branch = self.one(data), self.new_id()
        length = data.draw(st.one_of(st.none(), st.integers(1, len(self.branches[source]))))
        self.do(Fork(branch, source, length))
        self.branches[branch] = self.branches[source][:length]

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        branch = self.one(data)
        count = data.draw(st.integers(0, len(self.branches[branch]) - 1))
        self.do(Rewind(branch, count))
        del self.branches[branch][len(self.branches[branch]) - count :]

    @precondition(lambda self: len(self.branches) > 1)
    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        branch = self.one(data)
        self.do(Prune(branch))
        del self.branches[branch]

    @precondition(lambda self: self.branches)
    @rule(data=st.data(), tokens=st.lists(st.integers(3, 256), min_size=1, max_size=7))
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        branch = self.one(data)
        self.do(Append(branch, tuple(tokens)))
        self.branches[branch] += tokens

    @precondition(lambda self: self.branches)
    @rule(data=st.data(), temperature=st.sampled_from([0.0, 0.9]), count=st.integers(1, 5))
    def grow(self, data: st.DataObject, temperature: float, count: int) -> None:
        """One or two branches together."""
        chosen = data.draw(
            st.lists(st.sampled_from(sorted(self.branches)), min_size=1, max_size=2, unique=True)
        )
        params = replace(GREEDY, temperature=temperature, max_tokens=count)
        events = self.do(*(Grow(branch, params) for branch in chosen))
        for branch in chosen:
            ours = grown(events, branch)
            assert len(ours.token_ids) == count
            assert_oracle(self.request, self.branches[branch], ours, oracle_model(), greedy=temperature == 0)
            self.branches[branch] += ours.token_ids

    @precondition(lambda self: 0 < len(self.branches) < 8)
    @rule(data=st.data(), rewind=st.booleans())
    def fork_while_it_grows(self, data: st.DataObject, rewind: bool) -> None:
        """The fork has what had grown by then; the source goes on, or is rewound."""
        source, branch = self.one(data), self.new_id()
        before = list(self.branches[source])
        events = self.do(Grow(source, GREEDY), Fork(branch, source), *([Rewind(source, 1)] if rewind else []))
        applied = [e for e in events if isinstance(e, AppliedEvent)]
        ours = grown(events, source)
        whole = [*before, *ours.token_ids]
        self.branches[branch] = whole[: applied[1].num_tokens]
        self.branches[source] = whole[: applied[2].num_tokens] if rewind else whole
        assert any(isinstance(e, RestedEvent) for e in events) == (not rewind)
        if ours.token_ids:
            assert_oracle(self.request, before, ours, oracle_model())

    @precondition(lambda self: 1 < len(self.branches) < 8)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        sources = data.draw(st.lists(st.sampled_from(sorted(self.branches)), min_size=2, max_size=3))
        lists = [self.branches[s] for s in sources]
        shared = 0
        while (
            all(len(tokens) > shared + 1 for tokens in lists)
            and len({tokens[shared] for tokens in lists}) == 1
        ):
            shared += 1
        branch = self.new_id()
        told = data.draw(st.sampled_from([None, shared, shared // 2]))
        self.do(Merge(branch, tuple(sources), told))
        shared = shared if told is None else told
        self.branches[branch] = [*lists[0], *(t for tokens in lists[1:] for t in tokens[shared:])]

    @invariant()
    def a_forest_of_n_branches_has_fewer_than_2n_segments_and_knows_its_lengths(self) -> None:
        if not self.branches:
            return
        (job,) = jobs_of(self.engine)
        assert isinstance(job, ForestJob)
        bases = 0 if job.nodes.base is None else 1
        assert len(job.branches()) - bases < 2 * len(self.branches)
        assert {i: node.tokens for i, node in job.nodes.by_id.items()} == self.branches

    def teardown(self) -> None:
        if hasattr(self, "forest"):
            self.do(Close())
            self.engine.step()
            assert self.engine.stats().private_bytes == 0


Forests.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestForests = Forests.TestCase


class TestForking:
    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    def test_a_fork_of_what_is_not_computed_waits_for_its_context(self, mode: ReuseMode) -> None:
        """The step has room for a fork of one token, not for the chunks in front of it."""
        forest, request = forest_of(engine_of("qwen2", max_step_tokens=5), 20, mode)
        with forest:
            events = forest.do(
                Start(0, (30, 31, 32)), Fork(1, 0, 1), Fork(2, 0), Grow(1, GREEDY), Grow(2, GREEDY)
            )
        assert_oracle(request, (30,), grown(events, 1), oracle_model())
        assert_oracle(request, (30, 31, 32), grown(events, 2), oracle_model())


class TestMerging:
    def test_placed_kv_is_each_branchs_own_moved_behind_the_others(self) -> None:
        """Against stock KV of each path, keys rotated to where they are placed; the last token is computed
        over all of it."""
        engine, model = shared_engine(), oracle_model()
        forest, request = forest_of(engine, 5, chunks=(12, 5))
        with forest:
            forest.do(Start(0, (30, 31, 32)))
            forest.do(Fork(1, 0), Fork(2, 0), Append(0, (40, 41)), Append(1, (50, 51, 52)), Append(2, (60,)))
            forest.do(Append(2, (61,)))
            forest.do(Merge(3, (0, 1, 2), 3, placed=True), Merge(4, (0, 1, 2), 3))
            ours = grown(forest.do(Grow(3, replace(GREEDY, max_tokens=1))), 3)
            exact = grown(forest.do(Grow(4, GREEDY)), 4)
        merged = [30, 31, 32, 40, 41, 50, 51, 52, 60, 61]
        assert_oracle(request, merged, exact, model)
        assert ours.logprobs != pytest.approx(exact.logprobs[:1], abs=1e-3), "placing is an approximation"
        assert_same_generation(
            ours, _placed_oracle(model, request, [30, 31, 32], [[40, 41], [50, 51, 52], [60, 61]])
        )

    def test_placed_from_the_middle_of_branches_that_were_forked_further_on(self) -> None:
        engine, model = shared_engine(), oracle_model()
        forest, request = forest_of(engine, 6, chunks=())
        with forest:
            forest.do(Start(0, (30, 31, 32, 33)))
            forest.do(Fork(1, 0, 2), Append(1, (50, 51)))
            forest.do(Fork(2, 1, 3), Append(2, (61, 62)))
            forest.do(Merge(3, (0, 2), 1, placed=True))
            ours = grown(forest.do(Grow(3, replace(GREEDY, max_tokens=1))), 3)
        assert_same_generation(ours, _placed_oracle(model, request, [30], [[31, 32, 33], [31, 50, 61, 62]]))

    def test_what_was_placed_is_told_until_it_is_rewound_to_in_front_of_the_place(self) -> None:
        forest, request = forest_of(shared_engine(), 14)
        with forest:
            forest.do(Start(0, (30, 31, 32)), Start(1, (40, 41)))
            told = forest.do(
                Merge(2, (0, 1), 0, placed=True),
                Fork(3, 2),
                Fork(4, 2, 3),
                Rewind(2, 1),
                Rewind(2, 1),
                Append(2, (50,)),
            )
            assert [e.approximate for e in told if isinstance(e, AppliedEvent)] == [
                True,
                True,
                False,
                True,
                False,
                False,
            ]
            events = forest.do(Grow(2, GREEDY), Grow(4, GREEDY))
        assert_oracle(request, (30, 31, 32, 50), grown(events, 2), oracle_model())
        assert_oracle(request, (30, 31, 32), grown(events, 4), oracle_model())


def _placed_oracle(
    model: Any, request: ForestRequest, shared: list[int], tails: list[list[int]]
) -> torch.Tensor:
    """Logits [1, V] behind the last token of the last tail."""
    past = DynamicCache()
    context = [*request.prefix_ids]
    with torch.no_grad():
        kv: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        first = _path_kv(model, request, [*shared, *tails[0]])
        place = len(context) + sum(len(c.token_ids) for c in request.chunks) + len(shared)
        kv.append(first)
        end = place + len(tails[0])
        for tail in tails[1:]:
            own = _path_kv(model, request, [*shared, *tail])
            kv.append([(rotate_keys(model, k[:, :, place:], end - place), v[:, :, place:]) for k, v in own])
            end += len(tail)
        for layer in range(2):
            k = torch.cat([part[layer][0] for part in kv], dim=2)[:, :, :-1]
            v = torch.cat([part[layer][1] for part in kv], dim=2)[:, :, :-1]
            past.update(k, v, layer)
        logits = model(
            input_ids=torch.tensor([[tails[-1][-1]]]),
            position_ids=torch.tensor([[end - 1]]),
            past_key_values=past,
            use_cache=True,
        ).logits[0]
    return logits.float()


def _path_kv(
    model: Any, request: ForestRequest, tokens: list[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of prefix, chunks where ``reordered`` has them, and ``tokens``."""
    prefix, past = list(request.prefix_ids), DynamicCache()
    start = len(prefix)

    def of(ids: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        cache = DynamicCache()
        model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
        return [(layer.keys, layer.values) for layer in cache.layers]

    for layer, (k, v) in enumerate(of(prefix)):
        past.update(k, v, layer)
    for chunk in request.chunks:
        for layer, (k, v) in enumerate(of([*prefix, *chunk.token_ids])):
            past.update(
                rotate_keys(model, k[:, :, len(prefix) :], start - len(prefix)), v[:, :, len(prefix) :], layer
            )
        start += len(chunk.token_ids)
    model(
        input_ids=torch.tensor([tokens]),
        position_ids=torch.arange(start, start + len(tokens))[None],
        past_key_values=past,
        use_cache=True,
    )
    return [(layer.keys, layer.values) for layer in past.layers]


class TestGrowth:
    def test_it_ends_where_the_model_ends_and_may_go_on(self) -> None:
        model = tiny_model("qwen2", seed=1)
        model.generation_config.eos_token_id = list(range(60, 160))
        engine = engine_of(hf_model=model)
        forest, _ = forest_of(engine, 1)
        with forest:
            forest.do(Start(0, (30, 31)))
            events = forest.do(Grow(0, SamplingParams(max_tokens=50)))
            (rested,) = (e for e in events if isinstance(e, RestedEvent))
            tokens = grown(events, 0).token_ids
            assert rested.finish_reason is FinishReason.STOP
            assert tokens[-1] in range(60, 160)
            assert rested.num_tokens == 2 + len(tokens) - 1, "the end mark is no token of the branch"
            again = forest.do(Grow(0, SamplingParams(max_tokens=1, ignore_eos=True)))
            assert grown(again, 0).token_ids == tokens[-1:], "its logits are still known"

    def test_text_and_stop_strings(self) -> None:
        engine = engine_of("qwen2", decode=lambda ids: "".join(chr(97 + i % 26) for i in ids))
        forest, _ = forest_of(engine, 2)
        with forest:
            forest.do(Start(0, (30, 31)), Fork(1, 0))
            events = forest.do(Grow(0, replace(GREEDY, max_tokens=9)))
            text = "".join(e.text for e in events if isinstance(e, GrownEvent))
            assert text == "".join(chr(97 + i % 26) for i in grown(events, 0).token_ids)
            cut = forest.do(Grow(1, replace(GREEDY, max_tokens=9, stop=(text[4:6],))))
            assert (
                "".join(e.text for e in cut if isinstance(e, GrownEvent | RestedEvent))
                == text[: text.index(text[4:6])]
            )

    def test_forks_with_one_seed_sample_differently_and_equal_forests_equally(self) -> None:
        engine = shared_engine()
        hot = SamplingParams(max_tokens=8, temperature=1.0, seed=3, ignore_eos=True)
        told = []
        for _ in range(2):
            forest, _request = forest_of(engine, 3)
            with forest:
                forest.do(Start(0, (30, 31)), Fork(1, 0))
                events = forest.do(Grow(0, hot), Grow(1, hot))
                told.append((grown(events, 0).token_ids, grown(events, 1).token_ids))
        assert told[0] == told[1]
        assert told[0][0] != told[0][1]

    def test_other_requests_beside_a_live_forest_and_both_as_the_oracle_says(self) -> None:
        """Short prompts with long ones, trees of different requests, in the same steps."""
        engine = shared_engine()
        forest, request = forest_of(engine, 4)
        prompts = Prompts(engine, 40)
        with forest:
            forest.do(Start(0, (30, 31)))
            engine.command(request.request_id, Grow(0, replace(GREEDY, max_tokens=30)))
            shared = prompts.ids(40)
            others = [
                prompts.request((5, 6), (shared, 300), (200, 2), max_tokens=12),
                prompts.request((5, 6), (), (1,), max_tokens=20),
                prompts.request((5, 6), (shared,), (3, 90), ReuseMode.COMPOSITE, max_tokens=3),
                prompts.request((5, 6), (700, shared), (4,), ReuseMode.FULL, max_tokens=4),
            ]
            before = engine.stats().num_steps
            runs = run(engine, *others)
            ours = grown(forest.do(), 0)
        for one in runs:
            assert_equals_oracle(one, oracle_model())
        assert_oracle(request, (30, 31), ours, oracle_model())
        assert engine.stats().num_steps - before < 45, "they took turns instead of sharing steps"

    def test_a_paused_forest_goes_on_as_if_nothing_had_happened(self) -> None:
        probe = shared_engine()
        engine = engine_of("qwen2", private_bytes=60 * probe.model.spec.kv_bytes_per_token)
        first = Prompts(engine, 41).request(questions=(30,), max_tokens=60)
        paused: list[int] = []
        engine.submit(first, lambda event: paused.append(engine.stats().paused))
        forest, request = forest_of(engine, 7)
        with forest:
            events = forest.do(Start(0, (30, 31, 32)), Grow(0, replace(GREEDY, max_tokens=40)), Fork(1, 0, 2))
            again = forest.do(Grow(1, GREEDY))
        assert max(paused) > 0, "nothing was paused"
        assert_oracle(request, (30, 31, 32), grown(events, 0), oracle_model())
        assert_oracle(request, (30, 31), grown(again, 1), oracle_model())

    def test_a_forest_at_rest_makes_room_for_others_and_goes_on_afterwards(self) -> None:
        """It would hold up everybody else until its deadline."""
        per_token = shared_engine().model.spec.kv_bytes_per_token
        engine = engine_of("qwen2", private_bytes=60 * per_token)
        forest, request = forest_of(engine, 15)
        with forest:
            forest.do(Start(0, (30, 31, 32)), Grow(0, replace(GREEDY, max_tokens=40)), Fork(1, 0, 2))
            held = engine.stats().private_bytes
            assert held > 40 * per_token
            paused: list[int] = []
            prompts = Prompts(engine, 50)
            runs = run(
                engine,
                *(prompts.request(questions=(30,), max_tokens=20) for _ in range(2)),
                on_event=lambda *_: paused.append(engine.stats().paused),
            )
            assert max(paused) > 0, "it kept its place"
            assert engine.stats().private_bytes >= held, "its KV was lost"
            events = forest.do(Fork(2, 1), Append(2, (50,)), Grow(1, GREEDY), Grow(2, GREEDY))
        for one in runs:
            assert_equals_oracle(one, oracle_model())
        assert_oracle(request, (30, 31), grown(events, 1), oracle_model())
        assert_oracle(request, (30, 31, 50), grown(events, 2), oracle_model())


class TestCompanyChangesNoBit:
    def test_under_batch_invariance_with_neighbours_preemption_and_small_budgets(self) -> None:
        per_token = shared_engine().model.spec.kv_bytes_per_token
        alone, _ = self.explored(engine_of("qwen2", batch_invariant=True), neighbours=0)
        assert [len(alone[branch]) for branch in range(4)] == [20, 29, 9, 9]
        for changes in ({}, {"max_step_tokens": 7}, {"private_bytes": 80 * per_token}):
            told, paused = self.explored(engine_of("qwen2", batch_invariant=True, **changes), neighbours=2)
            assert told == alone
            assert "private_bytes" not in changes or paused > 0, "nothing was preempted"

    def explored(self, engine: Engine, neighbours: int) -> tuple[dict[int, list[tuple[int, float]]], int]:
        """(token, log-probability) of every branch, and how many requests were paused at most."""
        paused = [0]
        prompts = Prompts(engine, 60)
        forest, _ = forest_of(engine, 21)
        hot = replace(GREEDY, temperature=0.8, seed=5, max_tokens=20)
        told: dict[int, list[tuple[int, float]]] = {branch: [] for branch in range(4)}
        with forest:
            for commands in (
                (Start(0, tuple(range(30, 60))), Start(1, (40, 41))),
                (Grow(0, hot), Grow(1, hot)),
                (Fork(2, 0, 34), Rewind(1, 5)),
                (Append(2, tuple(range(60, 140))), Grow(1, replace(hot, max_tokens=9))),
                (Merge(3, (0, 2)),),
                (Grow(2, replace(hot, max_tokens=9)), Grow(3, replace(hot, max_tokens=9))),
            ):
                for _ in range(neighbours):
                    engine.submit(
                        prompts.request(questions=(25,), max_tokens=9),
                        lambda _: paused.append(engine.stats().paused),
                    )
                for event in forest.do(*commands):
                    if isinstance(event, GrownEvent):
                        told[event.branch].append((event.token_id, event.logprob))
        return told, max(paused)


class TestMemory:
    def test_what_a_pruned_branch_held_alone_is_free_before_the_next_step(self) -> None:
        engine = engine_of("qwen2")
        forest, _ = forest_of(engine, 16)
        per_token = engine.model.spec.kv_bytes_per_token
        with forest, collector_off():
            forest.do(Start(0, (30, 31, 32)), Start(1, tuple(range(60, 100))))
            forest.do(Fork(2, 1, 10), Append(2, tuple(range(100, 150))))
            held = engine.stats().private_bytes
            kv = [weakref.ref(branch.segment) for branch in jobs_of(engine)[0].branches()]
            forest.do(Prune(2))
            assert held - engine.stats().private_bytes >= 50 * per_token
            forest.do(Prune(1), Rewind(0, 2))
            assert engine.stats().private_bytes <= 3 * per_token
            assert sum(ref() is not None for ref in kv) <= 1
        assert engine.stats().private_bytes == 0
        assert not any(ref() for ref in kv)

    def test_logits_of_a_branch_at_rest_are_its_own(self) -> None:
        """Not a row of those of a whole step, which it would keep alive."""
        engine = engine_of("qwen2")
        forest, _ = forest_of(engine, 17)
        with forest:
            forest.do(*(Start(i, (30 + i,)) for i in range(4)))
            (job,) = jobs_of(engine)
            for node in job.nodes.by_id.values():  # type: ignore[attr-defined]
                assert node.logits_V.untyped_storage().nbytes() == 4 * engine.model.spec.vocab_size


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("command", "error", "field"),
        [
            (Start(0, (5,)), InvalidRequest, "start.branch: 0 is the id of a live branch"),
            (Start(9, ()), InvalidRequest, "start.token_ids: is empty"),
            (Start(9, (999,)), InvalidRequest, "start.token_ids: token id 999"),
            (Fork(9, 7), NotFound, "fork.source: there is no branch 7"),
            (
                Fork(9, 5),
                NotFound,
                "fork.source: there is no branch 5; it was never started, or it was pruned",
            ),
            (Fork(9, 0, 0), InvalidRequest, "fork.length: 0 is out of range"),
            (Fork(9, 0, 4), InvalidRequest, "fork.length: 4 is out of range; branch 0 has 1 to 3"),
            (Fork(1, 0), InvalidRequest, "fork.branch"),
            (Rewind(0, 3), InvalidRequest, "rewind.num_tokens: 3 is out of range; branch 0 has 3 tokens"),
            (Rewind(0, -1), InvalidRequest, "rewind.num_tokens"),
            (Rewind(7, 1), NotFound, "rewind.branch"),
            (Prune(7), NotFound, "prune.branch"),
            (Append(0, ()), InvalidRequest, "append.token_ids"),
            (Append(7, (5,)), NotFound, "append.branch"),
            (Grow(7, GREEDY), NotFound, "grow.branch"),
            (Grow(0, replace(GREEDY, n=2)), InvalidRequest, "grow.sampling.n"),
            (Grow(0, replace(GREEDY, stop=("x",))), InvalidRequest, "grow.sampling.stop"),
            (Grow(0, replace(GREEDY, max_tokens=20_000)), ContextTooLong, "grow.sampling.max_tokens"),
            (Merge(9, (0,), 1), InvalidRequest, "merge.sources"),
            (Merge(9, (0, 7), 1), NotFound, r"merge.sources[1]"),
            (Merge(9, (0, 1), 3), InvalidRequest, "merge.length"),
            (Merge(9, (0, 1), -1), InvalidRequest, "merge.length"),
        ],
    )
    def test_it_names_the_field_and_leaves_the_forest_as_it_was(
        self, command: Command, error: type[Exception], field: str
    ) -> None:
        engine = shared_engine()
        forest, request = forest_of(engine, 8)
        with forest:
            forest.do(Start(0, (30, 31, 32)), Start(1, (30, 31, 33)), Start(5, (3,)), Prune(5))
            with pytest.raises(error) as refusal:
                forest.do(command)
            assert refusal.value.detail.startswith(field)  # type: ignore[attr-defined]
            assert_oracle(request, (30, 31, 32), grown(forest.do(Grow(0, GREEDY)), 0), oracle_model())

    def test_a_growing_branch_is_neither_continued_nor_merged(self) -> None:
        forest, _ = forest_of(shared_engine(), 9)
        with forest:
            forest.do(Start(0, (30,)), Start(1, (31,)))
            for command in (Append(0, (5,)), Grow(0, GREEDY), Merge(9, (1, 0), 0)):
                with pytest.raises(FailedPrecondition, match="branch 0 is"):
                    forest.do(Grow(0, GREEDY), command)

    def test_more_branches_than_the_engine_runs(self) -> None:
        forest, _ = forest_of(engine_of("qwen2", max_running_branches=2), 10)
        with (
            forest,
            pytest.raises(InvalidRequest, match=r"fork\.branch: 2 branches live; this engine runs at most 2"),
        ):
            forest.do(Start(0, (30,)), Fork(1, 0), Fork(2, 0))


class TestEnds:
    def test_a_forest_that_has_ended_takes_no_commands(self) -> None:
        forest, _ = forest_of(shared_engine(), 18)
        forest.do(Start(0, (5,)), Close())
        with pytest.raises(FailedPrecondition, match="has ended"):
            forest.do(Start(1, (5,)))

    def test_a_command_that_breaks_ends_its_forest_and_nothing_else(self) -> None:
        engine = engine_of("qwen2")
        forest, _ = forest_of(engine, 19)
        forest.do(Start(0, (30,)))
        with pytest.raises(InternalError, match="the generator's log has the reason"):
            forest.do(Append(0, ("x",)))  # type: ignore[arg-type]
        assert_equals_oracle(run(engine, Prompts(engine, 52).request())[0], oracle_model())

    def test_close_tells_the_cost_and_frees_everything(self) -> None:
        engine = shared_engine()
        like = Prompts(engine, 11).request()
        events: list[Event] = []
        engine.submit(ForestRequest("closing", like.prefix_ids, like.chunks), events.append)
        for command in (Start(0, (30, 31)), Grow(0, GREEDY)):
            engine.command("closing", command)
        while not any(isinstance(e, RestedEvent) for e in events):
            engine.step()
        engine.command("closing", Close())
        engine.step()
        done = events[-1]
        assert isinstance(done, DoneEvent)
        assert (done.usage.generated_tokens, done.usage.prompt_tokens) == (4, 7 + 54 + 2)
        assert done.timings.first_token_s > 0
        assert engine.stats().private_bytes == 0

    def test_closing_before_the_chunks_are_there(self) -> None:
        forest, _ = forest_of(shared_engine(), 12)
        events = forest.do(Start(0, (5,)), Grow(0, GREEDY), Close())
        assert [type(e) for e in events] == [AppliedEvent, AppliedEvent, *[GrownEvent] * 4, RestedEvent], (
            "it waits for growth"
        )

    def test_cancellation_and_deadline_end_it_wherever_it_is(self) -> None:
        engine = shared_engine()
        forest, request = forest_of(engine, 13)
        forest.do(Start(0, (30, 31)))
        engine.cancel(request.request_id)
        with pytest.raises(Cancelled):
            forest.do(Grow(0, GREEDY))
        late = LiveForest(engine, replace(request, request_id="late", deadline_s=0.0))
        with pytest.raises(DeadlineExceeded):
            late.do(Start(0, (5,)))
        engine.step()
        assert engine.stats().private_bytes == 0
