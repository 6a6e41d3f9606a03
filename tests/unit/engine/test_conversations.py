"""KV of earlier turns that is kept: an engine that keeps it answers as one that keeps nothing, computes no
more than it must, and keeps no more than it may.

``Book`` is the slow twin: it remembers whole beginnings, word for word, instead of blocks by hashed names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.kv.conversations import BLOCK_TOKENS, FRONT, Conversations
from shared.engine.kv.segment import Segment
from shared.engine.scheduler import TILE
from shared.errors import Cancelled
from shared.generation.asked import Beams, Choice, ChoiceRule, GenerateRequest
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.told import Event, TokenEvent
from shared.identity import TokenIds
from tests.engine_runs import Prompts, Run, Shelf, assert_alike, engine_of, run
from tests.lora_adapters import random_adapter
from tests.oracles import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

LIFETIME_S = 100.0
ADAPTERS = ("", "qa", "other")
Front = tuple[Any, ...]
"""The first of it: identities of chunks."""
MODES = (ReuseMode.REORDERED, ReuseMode.FULL, ReuseMode.APE, ReuseMode.COMPOSITE, ReuseMode.TOKENS)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@lru_cache
def base_model() -> Any:
    return tiny_model("qwen2")


def keeping(clock: Callable[[], float], source: Any = None, **changes: Any) -> Engine:
    """An engine that serves two adapters, and keeps conversations for ``LIFETIME_S``."""
    adapters = [random_adapter(base_model(), name, seed) for seed, name in enumerate(ADAPTERS) if name]
    config = EngineConfig(**{"late_rows": 0, "conversation_s": LIFETIME_S} | changes)
    extra = {} if source is None else {"source": source}
    return Engine(wrap_model(tiny_model("qwen2")), config, adapters=adapters, clock=clock, **extra)


@lru_cache
def keeping_nothing(batch_invariant: bool) -> Engine:
    return keeping(Clock(), batch_invariant=batch_invariant, conversation_bytes=0)


def turn(request: GenerateRequest, **changes: Any) -> GenerateRequest:
    return replace(request, **{"conversation": True} | changes)


def kept_tokens(one: Run) -> int:
    """Of the prompt; what is told of it adds up."""
    usage = one.done.usage
    assert usage.reused_tokens + usage.recomputed_tokens == usage.prompt_tokens
    return usage.conversation_tokens


@dataclass
class Book:
    """Every beginning that was computed, in whole blocks, and when it was used last. Behind which front:
    whatever could change what its tokens see."""

    batch_invariant: bool
    used_s: dict[tuple[Front, TokenIds], float] = field(default_factory=dict)

    @property
    def block(self) -> int:
        return TILE if self.batch_invariant else BLOCK_TOKENS

    def runs(self, request: GenerateRequest) -> Iterable[tuple[Front, TokenIds]]:
        """Fronts, and the tokens computed behind each."""
        context = [t for chunk in request.chunks for t in chunk.token_ids]
        chunk_ids = tuple(chunk.chunk_id for chunk in request.chunks)
        whose, own = (request.tenant, request.asked_by, request.prefix_ids), tuple(context)
        front: Front = (chunk_ids, whose, request.reuse)
        if request.reuse.row.stored:
            own = tuple(context[t] for t in sorted(request.recompute.tokens))
            front = (*front, request.ape, request.recompute.tokens, request.adapter)
        for question in request.questions:
            alone = len(request.questions) == 1 and not self.batch_invariant
            if own and not alone:
                yield front, own
                yield (*front, own), question
            else:
                yield front, own + question

    def expected(self, request: GenerateRequest, now_s: float) -> int:
        """Tokens that need not be computed."""
        total = 0
        for front, ids in dict.fromkeys(self.runs(request)):
            usable = (len(ids) - 1) // self.block
            known = [self._known(front, ids[: (n + 1) * self.block], now_s) for n in range(usable)]
            total += self.block * (known.index(False) if False in known else usable)
        return total

    def note(self, request: GenerateRequest, now_s: float) -> None:
        for front, ids in self.runs(request):
            for end in range(self.block, len(ids) + 1, self.block):
                self.used_s[front, ids[:end]] = now_s

    def forget(self, chunk_id: str) -> None:
        for front, ids in list(self.used_s):
            if chunk_id in front[0]:
                del self.used_s[front, ids]

    def num_live(self, now_s: float) -> int:
        return sum(used_s > now_s - LIFETIME_S for used_s in self.used_s.values())

    def _known(self, front: Front, ids: TokenIds, now_s: float) -> bool:
        return self.used_s.get((front, ids), -LIFETIME_S) > now_s - LIFETIME_S


class World:
    """Conversations of two tenants, and two principals of one, over a few chunks."""

    def __init__(self, seed: int, batch_invariant: bool, **limits: Any) -> None:
        self.clock, self.bitwise = Clock(), batch_invariant
        self.engine = keeping(self.clock, Shelf(), batch_invariant=batch_invariant, **limits)
        self.twin, self.book = keeping_nothing(batch_invariant), Book(batch_invariant)
        self.prompts, self.draw = Prompts(self.engine, seed), random.Random(seed)
        self.prefix = self.prompts.ids(5)
        self.chunks = [self.prompts.ids(n) for n in (20, 33, 7)]
        self.said: list[TokenIds] = [self.prompts.ids(40) for _ in range(3)]
        self.num_kept = 0

    def ask(self, conversation: int, mode: ReuseMode, chunks: Sequence[int], who: int, adapter: str) -> None:
        """The conversation so far, and a question that is not part of what is said later."""
        recompute = Recompute(tokens=(1, 5, 6)) if mode is ReuseMode.TOKENS else None
        question = self.said[conversation] + self.prompts.ids(self.draw.randrange(1, 9))
        context = [self.chunks[i] for i in chunks]
        request = self.prompts.request(self.prefix, context, (question,), mode, recompute, max_tokens=2)
        tenant, principal = (("a", ""), ("a", "ann"), ("b", ""))[who]
        request = replace(request, tenant=tenant, asked_by=principal, adapter=adapter)
        expected = self.book.expected(request, self.clock.now_s)
        ours, theirs = run(self.engine, turn(request))[0], run(self.twin, request)[0]
        if self.bitwise:
            assert ours.branches() == theirs.branches(), "not equal bit by bit"
        else:
            assert_alike(ours.branch(), theirs.branch())
        self.num_kept = kept_tokens(ours)
        self.check(expected)
        self.book.note(request, self.clock.now_s)
        self.said[conversation] += self.prompts.ids(self.draw.randrange(1, 60))

    def check(self, expected: int) -> None:
        assert self.num_kept == expected

    def edit(self, conversation: int, at: int) -> None:
        """What was said is another from there on."""
        said = self.said[conversation]
        self.said[conversation] = said[:at] + self.prompts.ids(max(1, len(said) - at))

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.engine.step()
        self.engine.check_invariants()

    def forget(self, chunk: int) -> None:
        chunk_id = self.prompts.chunk(self.prefix, self.chunks[chunk]).chunk_id
        self.engine.forget([chunk_id])
        self.engine.step()
        self.engine.check_invariants()
        self.book.forget(chunk_id)


class TightWorld(World):
    """Where things go for want of room: what is kept still is right."""

    def check(self, expected: int) -> None:
        assert self.num_kept <= expected


Act = Callable[[World], None]


@dataclass(frozen=True)
class Ask:
    """``times``: so many turns of one conversation; what this is all for is more than one."""

    conversation: int
    mode: ReuseMode
    chunks: tuple[int, ...]
    who: int
    adapter: str
    times: int

    def __call__(self, world: World) -> None:
        for _ in range(self.times):
            world.ask(self.conversation, self.mode, self.chunks, self.who, self.adapter)


@dataclass(frozen=True)
class Edit:
    conversation: int
    at: int

    def __call__(self, world: World) -> None:
        world.edit(self.conversation, self.at)


@dataclass(frozen=True)
class Wait:
    seconds: float

    def __call__(self, world: World) -> None:
        world.wait(self.seconds)


@dataclass(frozen=True)
class Forget:
    chunk: int

    def __call__(self, world: World) -> None:
        world.forget(self.chunk)


ASKS = st.builds(
    Ask,
    st.integers(0, 2),
    st.sampled_from(MODES),
    st.sampled_from(((0, 1), (1, 0), (0,), (2, 0, 0))),
    st.integers(0, 2),
    st.sampled_from(ADAPTERS),
    st.integers(1, 3),
)
EDITS = st.builds(Edit, st.integers(0, 2), st.integers(0, 80))
WAITS = st.builds(Wait, st.sampled_from((1.0, 60.0, 101.0)))
FORGETS = st.builds(Forget, st.integers(0, 2))
ACTS = st.lists(st.one_of(ASKS, ASKS, EDITS, WAITS, FORGETS), min_size=2, max_size=6)
QUIET = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class TestAnyConversations:
    @QUIET
    @given(acts=ACTS, seed=st.integers(0, 3), batch_invariant=st.booleans())
    def test_answer_as_if_nothing_were_kept_and_compute_no_more_than_they_must(
        self, acts: list[Act], seed: int, batch_invariant: bool
    ) -> None:
        world = World(seed, batch_invariant)
        for act in acts:
            act(world)
            world.wait(0)
            live = world.book.num_live(world.clock.now_s)
            per_block = world.book.block * world.engine.model.spec.kv_bytes_per_token
            assert world.engine.stats().conversation_bytes == live * per_block

    @QUIET
    @given(
        acts=ACTS,
        seed=st.integers(0, 3),
        batch_invariant=st.booleans(),
        blocks=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        resident=st.integers(1, 60),
    )
    def test_answer_alike_whatever_goes_for_want_of_room(
        self,
        acts: list[Act],
        seed: int,
        batch_invariant: bool,
        blocks: tuple[int, int],
        resident: int,
    ) -> None:
        """Chunks are evicted and loaded again, too."""
        per_token = keeping_nothing(False).model.spec.kv_bytes_per_token
        per_block = per_token * (TILE if batch_invariant else BLOCK_TOKENS)
        world = TightWorld(
            seed,
            batch_invariant,
            conversation_bytes=blocks[0] * per_block,
            conversation_tenant_bytes=blocks[1] * per_block,
            resident_bytes=resident * per_token,
        )
        for act in acts:
            act(world)
            assert world.engine.stats().conversation_bytes <= blocks[0] * per_block


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Engine:
    return keeping(clock)


class Talk:
    """One conversation: its requests differ in what they are told to."""

    def __init__(
        self, engine: Engine, said: int = 64, chunks: Sequence[int] = (20, 33), seed: int = 1
    ) -> None:
        self.engine, self.prompts = engine, Prompts(engine, seed)
        self.prefix, self.said = self.prompts.ids(5), self.prompts.ids(said)
        self.chunks = [self.prompts.ids(n) for n in chunks]

    def request(self, reuse: ReuseMode = ReuseMode.REORDERED, **changes: Any) -> GenerateRequest:
        question = self.said + self.prompts.ids(9)
        return turn(self.prompts.request(self.prefix, self.chunks, (question,), reuse), **changes)

    def ask(self, reuse: ReuseMode = ReuseMode.REORDERED, **changes: Any) -> int:
        """Tokens that were not computed."""
        return kept_tokens(run(self.engine, self.request(reuse, **changes))[0])


@pytest.fixture
def talk(engine: Engine) -> Talk:
    return Talk(engine)


class TestWhatIsKept:
    def test_a_later_turn_computes_only_the_rest(self, talk: Talk) -> None:
        assert talk.ask() == 0
        (second,) = run(talk.engine, talk.request())
        usage = second.done.usage
        assert usage.conversation_tokens == 64
        assert (usage.reused_tokens, usage.recomputed_tokens) == (5 + 53 + 64, 9)
        counts = talk.engine.stats().conversations
        assert (counts.num_hits, counts.num_misses, counts.num_tokens) == (1, 1, 64)

    def test_requests_without_earlier_turns_keep_nothing_and_use_nothing(self, talk: Talk) -> None:
        assert talk.ask(conversation=False) == 0
        assert talk.engine.stats().conversation_bytes == 0
        talk.ask()
        assert talk.ask(conversation=False) == 0
        assert talk.ask(idle=True) == 0
        assert talk.ask() == 64

    def test_the_last_token_is_always_computed(self, talk: Talk) -> None:
        request = replace(talk.request(), questions=(talk.said,))
        first, again = (run(talk.engine, replace(request, request_id=name))[0] for name in ("first", "again"))
        assert (kept_tokens(first), kept_tokens(again)) == (0, 48)
        assert_alike(again.branch(), first.branch())

    def test_a_turn_that_was_cancelled_leaves_what_it_computed(self, talk: Talk) -> None:
        def cancel(one: Run, event: Event) -> None:
            if isinstance(event, TokenEvent):
                talk.engine.cancel(one.request.request_id)

        (cancelled,) = run(talk.engine, talk.request(), on_event=cancel)
        assert isinstance(cancelled.error, Cancelled)
        assert talk.ask() == 64

    @pytest.mark.parametrize(
        "changes",
        [
            {"tenant": "other"},
            {"asked_by": "somebody"},
            {"adapter": "qa"},
            {"reuse": ReuseMode.COMPOSITE},
            {"reuse": ReuseMode.APE},
            {"reuse": ReuseMode.FULL},
            {"reuse": ReuseMode.TOKENS, "recompute": Recompute(tokens=(3,))},
            {"reuse": ReuseMode.EPIC, "recompute": Recompute(ratio=0.5)},
        ],
        ids=str,
    )
    def test_anything_else_in_front_finds_nothing(self, talk: Talk, changes: dict[str, Any]) -> None:
        talk.ask()
        assert talk.ask(**changes) == 0
        again = talk.ask(**changes)
        assert again >= 64, "it is kept under what is in front of it"
        assert talk.ask() == 64, "and the other beside it"

    def test_what_its_mode_is_told_is_in_front_as_well(self, talk: Talk) -> None:
        talk.ask(ReuseMode.APE, ape=Ape(0.5, 0.9))
        assert talk.ask(ReuseMode.APE, ape=Ape(0.6, 0.9)) == 0
        tokens = [Recompute(tokens=some) for some in ((1, 2), (1, 3))]
        assert [talk.ask(ReuseMode.TOKENS, recompute=one) for one in (*tokens, *tokens)] == [0, 0, 64, 64]

    def test_the_order_of_chunks_is_in_front(self, talk: Talk) -> None:
        talk.ask()
        talk.chunks.reverse()
        assert talk.ask() == 0

    @pytest.mark.parametrize("reuse", [ReuseMode.QUERY_ATTENTION, ReuseMode.CACHEBLEND])
    def test_modes_that_look_before_they_choose_keep_nothing(self, reuse: ReuseMode) -> None:
        talk = Talk(engine_of(hf_model=tiny_model("qwen2", num_hidden_layers=4)))
        changes = {"recompute": Recompute(ratio=0.7)}
        assert [talk.ask(reuse, **changes), talk.ask(reuse, **changes)] == [0, 0]
        assert talk.engine.stats().conversation_bytes == 0

    def test_a_list_for_each_question_keeps_nothing(self, talk: Talk) -> None:
        changes = {"recompute": Recompute(by_question=((1, 2),))}
        assert [talk.ask(ReuseMode.TOKENS, **changes) for _ in range(2)] == [0, 0]

    @pytest.mark.parametrize("reuse", [ReuseMode.REORDERED, ReuseMode.FULL, ReuseMode.EPIC])
    @pytest.mark.parametrize("batch_invariant", [False, True])
    def test_several_questions_samples_beams_and_thoughts(
        self, clock: Clock, reuse: ReuseMode, batch_invariant: bool
    ) -> None:
        talk = Talk(keeping(clock, batch_invariant=batch_invariant), said=130)
        twin = keeping_nothing(batch_invariant)
        sampled = replace(talk.request().sampling, n=2, temperature=0.8)
        ways: list[dict[str, Any]] = [
            {},
            {"sampling": sampled},
            {"beams": Beams(3)},
            {"sampling": sampled, "choose": Choice(ChoiceRule.MEAN_LOGPROB)},
        ]
        for changes in ways:
            request = talk.request(reuse, **changes)
            request = replace(request, questions=(*request.questions, talk.said[:70] + talk.prompts.ids(3)))
            ours = run(talk.engine, request)[0]
            theirs = run(twin, replace(request, conversation=False))[0]
            for path, branch in theirs.branches().items():
                if batch_invariant:
                    assert ours.branch(*path) == branch
                else:
                    assert_alike(ours.branch(*path), branch)
        assert kept_tokens(ours) >= 128 + 64

    def test_chunks_that_were_evicted_and_loaded_again_are_the_same(self, clock: Clock) -> None:
        shelf = Shelf()
        talk = Talk(keeping(clock, shelf, resident_bytes=1))
        assert [talk.ask(), talk.ask()] == [0, 64]
        assert talk.engine.stats().resident_bytes == 0

    def test_chunks_that_were_stored_anew_in_another_encoding_are_others(self, clock: Clock) -> None:
        shelf = Shelf()
        talk = Talk(keeping(clock, shelf, resident_bytes=1))
        talk.ask()
        shelf.encoding = "int8"
        assert [talk.ask(), talk.ask()] == [0, 64]


class TestWhatGoes:
    def test_what_is_not_used_for_its_time_is_over_also_while_nothing_runs(
        self, talk: Talk, clock: Clock
    ) -> None:
        talk.ask()
        clock.now_s += LIFETIME_S - 1
        assert talk.ask() == 64, "used again, it lasts as long again"
        clock.now_s += LIFETIME_S - 1
        assert talk.engine._conversations.remaining_s == pytest.approx(1)
        talk.engine.step()
        assert talk.engine.stats().conversation_bytes > 0
        clock.now_s += 1
        talk.engine.step()
        assert talk.engine.stats().conversation_bytes == 0
        assert talk.engine._conversations.remaining_s is None
        assert talk.ask() == 0

    def test_0_keeps_nothing(self, clock: Clock) -> None:
        for off in ("conversation_bytes", "conversation_tenant_bytes", "conversation_s"):
            talk = Talk(keeping(clock, **{off: 0}))
            assert [talk.ask(), talk.ask()] == [0, 0]
            assert talk.engine.stats().conversation_bytes == 0

    def test_a_tenant_loses_his_own(self, clock: Clock) -> None:
        per_token = keeping_nothing(False).model.spec.kv_bytes_per_token
        engine = keeping(clock, conversation_tenant_bytes=6 * BLOCK_TOKENS * per_token)
        quiet, *loud = (Talk(engine, seed=seed) for seed in range(5))
        quiet.ask(tenant="quiet")
        assert [one.ask(tenant="loud") for one in loud] == [0] * 4
        assert quiet.ask(tenant="quiet") == 64
        assert loud[-1].ask(tenant="loud") == 64
        assert loud[0].ask(tenant="loud") == 0, "least recently used first"

    def test_a_long_conversation_keeps_its_beginning(self, clock: Clock) -> None:
        per_token = keeping_nothing(False).model.spec.kv_bytes_per_token
        talk = Talk(keeping(clock, conversation_bytes=2 * BLOCK_TOKENS * per_token))
        assert [talk.ask(), talk.ask()] == [0, 2 * BLOCK_TOKENS]

    def test_requests_that_need_the_room_have_it(self, clock: Clock) -> None:
        per_token = keeping_nothing(False).model.spec.kv_bytes_per_token
        talk = Talk(keeping(clock, private_bytes=150 * per_token))
        talk.ask()
        assert talk.engine.stats().conversation_bytes == 64 * per_token
        seen: list[int] = []
        long = talk.prompts.request(talk.prefix, talk.chunks, (120,))
        run(talk.engine, long, on_event=lambda *_: seen.append(talk.engine._conversations.num_bytes))
        assert max(seen) <= 30 * per_token
        assert talk.engine.stats().num_pauses == 0
        assert talk.ask() == BLOCK_TOKENS, "its beginning is left"

    def test_what_is_deleted_goes_with_what_stands_on_it(self, talk: Talk) -> None:
        talk.ask()
        talk.ask(ReuseMode.FULL)
        other = Talk(talk.engine, seed=2)
        other.ask()
        chunk_id = talk.request().chunks[1].chunk_id
        assert chunk_id in talk.engine.stats().conversation_chunk_ids
        talk.engine.forget([chunk_id])
        talk.engine.step()
        talk.engine.check_invariants()
        assert chunk_id not in talk.engine.stats().conversation_chunk_ids
        assert [talk.ask(), talk.ask(ReuseMode.FULL), other.ask()] == [0, 0, 64]

    def test_a_device_without_memory_has_it_back(self, talk: Talk) -> None:
        talk.ask()
        talk.engine._endings.make_room()
        talk.engine.step()
        assert talk.engine.stats().conversation_bytes == 0
        assert talk.ask() == 0


class Scarce:
    """A layer's keys or values on a device that has no room for copies of what is behind the first tokens."""

    def __init__(self, x_KTD: torch.Tensor) -> None:
        self._x_KTD = x_KTD

    def __getitem__(self, at: tuple[slice, slice]) -> torch.Tensor:
        if at[1].stop > 2 * BLOCK_TOKENS:
            raise torch.OutOfMemoryError
        return self._x_KTD[at]


def test_a_device_that_runs_out_of_memory_keeps_fewer(clock: Clock) -> None:
    spec, config = keeping_nothing(False).model.spec, EngineConfig()
    kept = Conversations(spec, config, in_use=lambda: 0, clock=clock)
    segment = Segment(spec, 4 * BLOCK_TOKENS)
    segment.length = segment.capacity
    scarce = cast(Any, segment)
    scarce.k_LKTD, scarce.v_LKTD = ([Scarce(x) for x in kv] for kv in (segment.k_LKTD, segment.v_LKTD))
    kept.keep("a", f"{FRONT}x", ("n0", "n1", "n2", "n3"), frozenset(), segment)
    kept.check_invariants()
    assert [block.name for block in kept.find("a", ("n0", "n1", "n2", "n3"))] == ["n0", "n1"]
