"""cacheclip over gRPC: a selector chooses while KV is loaded, and whatever becomes of it, there is an
answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidRequest, KvquiltError, Overloaded, Unavailable
from shared.generation.asked import Decoding, Margins, SamplingParams
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.pieces import Conditioned, Tokenized
from shared.generation.selection import (
    AuxiliaryDescription,
    Grouping,
    Reading,
    SelectedTokens,
    SelectionChunk,
    SelectionLink,
    SelectionOrder,
    SelectionTimings,
)
from shared.generation.told import DoneEvent, GenerationEvent, SelectedEvent, TokenEvent
from shared.identity import ids_hash
from shared.prompt import PromptTokenizer
from shared.request import RequestContext
from shared.verdict import FORM, Verdict
from tests.generation_server import Served, context, order_of, save_byte_tokenizer, serving
from tests.kv_directory import DirectoryStore
from tests.oracles import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

MAX_TOKENS = 4
TEXTS = ("Orla Venn built the bridge.", "It stands in Tambach.", "Market day is Monday.")
QUESTION = "Who built it?"
TOKENS = (3, 4, 5, 40, 41)
SELECTOR = {"application": "selector"}
DEFAULT_LEN = sum(len(text.encode()) + 2 for text in TEXTS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token per byte."""
    path = tmp_path_factory.mktemp("models") / "talking"
    tiny_model("qwen2", seed=5, vocab_size=300).save_pretrained(path)
    save_byte_tokenizer(path)
    return path


@dataclass
class FakeSelector:
    """Chooses ``tokens``, or what is in ``by_question``, when ``may_answer`` is set. ``failure`` is raised
    instead."""

    tokens: tuple[int, ...] = TOKENS
    by_question: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    failure: Exception | None = None
    may_answer: asyncio.Event | None = None
    num_isolated: int = 0
    scores: Callable[[int], tuple[float, ...]] = lambda num_tokens: tuple(
        i / num_tokens for i in range(num_tokens)
    )
    asked: list[SelectionOrder] = field(default_factory=list)
    contexts: list[RequestContext] = field(default_factory=list)
    num_given_up: int = 0
    fingerprint: str = "a" * 32

    async def describe(self, ctx: RequestContext) -> AuxiliaryDescription:
        return AuxiliaryDescription("small", self.fingerprint, "", (), "", 512, "float32", 1, "cpu", "")

    async def select(self, ctx: RequestContext, order: SelectionOrder) -> tuple[SelectedTokens, ...]:
        self.asked.append(order)
        self.contexts.append(ctx)
        try:
            if self.may_answer is not None:
                await self.may_answer.wait()
        except asyncio.CancelledError:
            self.num_given_up += 1
            raise
        if self.failure is not None:
            raise self.failure
        scores = self.scores(sum(len(chunk.token_ids) for chunk in order.chunks))
        timings = SelectionTimings(0.001, 0.002, 0.0, 0.003, 0.006)
        return tuple(
            SelectedTokens(
                self.by_question.get(question, self.tokens),
                scores,
                order.reading,
                6,
                9,
                timings,
                self.num_isolated,
            )
            for question in order.questions
        )


async def generate(served: Served, chunks: Sequence[Any] = TEXTS, **options: Any) -> list[GenerationEvent]:
    options = {"reuse": "cacheclip", "questions": [QUESTION], "deadline_ms": 60_000} | options
    ctx, questions = context(options.pop("deadline_ms")), options.pop("questions")
    sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    async with aclosing(
        served.client.generate(ctx, order_of(chunks, questions, sampling=sampling, **options))
    ) as stream:
        return [event async for event in stream]


def end_of(events: Sequence[GenerationEvent]) -> DoneEvent:
    assert isinstance(events[-1], DoneEvent)
    return events[-1]


def told(events: Sequence[GenerationEvent]) -> list[tuple[int, int, float]]:
    return [(e.question, e.token_id, e.logprob) for e in events if isinstance(e, TokenEvent)]


def selected_of(events: Sequence[GenerationEvent]) -> SelectedEvent:
    (selected,) = (event for event in events if isinstance(event, SelectedEvent))
    return selected


def ids_of(model: Path, text: str) -> tuple[int, ...]:
    tokenizer = PromptTokenizer.of_model(str(model))
    assert tokenizer is not None
    return tokenizer.encode_chunk(text)


class TestChosen:
    async def test_the_answer_is_that_of_the_listed_tokens_and_the_usage_says_how_they_came_about(
        self, model: Path
    ) -> None:
        selector = FakeSelector()
        async with serving_with(model, selector) as served:
            await generate(served, reuse="reordered")  # brings the chunks' KV
            events = await generate(
                served, recompute=Recompute(0.3), grouping=Grouping.PAPER, reading=Reading.EACH, explain=True
            )
            listed = await generate(served, reuse="tokens", recompute=Recompute(tokens=TOKENS))
        assert told(events) == told(listed)
        usage, timings = end_of(events).usage, end_of(events).timings
        assert (usage.reuse, usage.note) == ("cacheclip", "")
        assert (usage.selected_tokens, usage.picked_tokens, usage.grouped_tokens) == (5, 6, 9)
        assert usage.recomputed_tokens == end_of(listed).usage.recomputed_tokens
        assert timings.select_s > 0
        selected = selected_of(events)
        assert (selected.tokens, selected.reading, selected.timings) == (
            TOKENS,
            "each",
            SelectionTimings(0.001, 0.002, 0.0, 0.003, 0.006),
        )
        assert len(selected.scores) == DEFAULT_LEN
        assert [[(s.start, s.end) for s in spans] for spans in selected.chunks] == [[(3, 6)], [(11, 13)], []]
        # with the model's template
        chunks = tuple(
            SelectionChunk(f"{text}\n\n", ids_of(model, text), chunk_id)
            for text, chunk_id in zip(TEXTS, end_of(events).chunk_ids, strict=True)
        )
        assert selector.asked == [SelectionOrder(chunks, (QUESTION,), 0.3, Grouping.PAPER, Reading.EACH)]

    async def test_defaults_are_the_configured_ones(self, model: Path) -> None:
        selector = FakeSelector()
        settings = {"grouping": "sliding", "reading": "each"}
        async with serving_with(model, selector, settings, reuse="cacheclip") as served:
            events = await generate(served, reuse=None)
        assert end_of(events).usage.reuse == "cacheclip"
        assert selector.asked[0] == SelectionOrder(
            selector.asked[0].chunks, (QUESTION,), 0.2, Grouping.SLIDING, Reading.EACH
        )

    async def test_each_of_several_questions_is_answered_by_its_own_selection_as_it_would_be_alone(
        self, model: Path
    ) -> None:
        others = {"When?": (1, 50, 51), "Where?": TOKENS}
        selector = FakeSelector(by_question=others)
        asked = [QUESTION, *others]
        async with serving_with(model, selector, engine={"batch_invariant": True}) as served:
            await generate(served, reuse="reordered")  # brings the chunks' KV
            events = await generate(served, questions=asked)
            alone = [await generate(served, questions=[question]) for question in asked]
        for index, single in enumerate(alone):
            of_this = [(token_id, logprob) for q, token_id, logprob in told(events) if q == index]
            assert of_this == [(token_id, logprob) for _, token_id, logprob in told(single)], asked[index]
        selections = [event for event in events if isinstance(event, SelectedEvent)]
        assert [(one.question, one.tokens) for one in selections] == [
            (index, others.get(question, TOKENS)) for index, question in enumerate(asked)
        ]
        assert selector.asked[0].questions == tuple(asked)

    async def test_chunks_given_by_ids_are_read_by_their_text_or_by_what_the_ids_say(
        self, model: Path
    ) -> None:
        selector = FakeSelector()
        chunks = [
            Tokenized(ids_of(model, TEXTS[0]), TEXTS[0]),
            ids_of(model, TEXTS[1]),
            TEXTS[2],
        ]
        async with serving_with(model, selector) as served:
            by_ids = await generate(served, chunks, questions=[ids_of(model, QUESTION)], explain=True)
            by_text = await generate(served, questions=[ids_of(model, QUESTION)], explain=True)
        assert told(by_ids) == told(by_text)
        assert selector.asked[0] == selector.asked[1]
        assert selector.asked[0].questions == (f"{QUESTION}\n\n",)
        assert end_of(by_ids).usage.note == ""

    async def test_the_selector_is_told_what_chunks_stand_behind_and_what_it_did_not_know_is_noted(
        self, model: Path
    ) -> None:
        selector = FakeSelector(num_isolated=2)
        conditioned = Conditioned(TEXTS[1], (TEXTS[0], ids_of(model, TEXTS[2])))
        async with serving_with(model, selector) as served:
            events = await generate(served, [conditioned, Conditioned(TEXTS[2], parent_id="ab" * 20)])
        by_context, by_parent = selector.asked[0].chunks
        assert by_context.context == tuple(
            SelectionLink(f"{text}\n\n", ids_of(model, text)) for text in (TEXTS[0], TEXTS[2])
        )
        assert (by_parent.parent_id, by_parent.context) == ("ab" * 20, ())
        assert (by_context.chunk_id, by_parent.chunk_id) == end_of(events).chunk_ids
        usage = end_of(events).usage
        assert usage.reuse == "cacheclip"
        assert usage.note == "the selector read 2 chunk(s) without what stands in front of them"

    async def test_kv_is_loaded_while_the_selector_chooses(self, model: Path, tmp_path: Path) -> None:
        selector = FakeSelector(may_answer=asyncio.Event())
        store = DirectoryStore(tmp_path / "kv")
        async with serving_with(model, selector, store=store) as served:
            await generate(served, reuse="reordered")
        async with serving_with(model, selector, store=store) as served:
            asking = asyncio.create_task(generate(served))
            await until(lambda: facts_of(served)["resident_chunks"] == "3")
            assert not asking.done()
            assert selector.may_answer is not None
            selector.may_answer.set()
            events = await asking
            assert end_of(events).usage.loaded_tokens == DEFAULT_LEN
            assert end_of(events).usage.reuse == "cacheclip"
            timings = end_of(events).timings
            assert 0 < timings.select_wait_s <= timings.first_token_s

    async def test_others_are_answered_while_the_selector_chooses(self, model: Path) -> None:
        selector = FakeSelector(may_answer=asyncio.Event())
        async with serving_with(model, selector, engine={"max_running_branches": 1}) as served:
            asking = asyncio.create_task(generate(served))
            await until(lambda: bool(selector.asked))
            assert end_of(await generate(served, reuse="reordered")).usage.generated_tokens == MAX_TOKENS
            assert not asking.done()
            assert selector.may_answer is not None
            selector.may_answer.set()
            assert end_of(await asking).usage.reuse == "cacheclip"

    async def test_whoever_goes_away_takes_the_selection_along(self, model: Path) -> None:
        selector = FakeSelector(may_answer=asyncio.Event())
        async with serving_with(model, selector) as served:
            asking = asyncio.create_task(generate(served))
            await until(lambda: bool(selector.asked))
            asking.cancel()
            await until(lambda: selector.num_given_up == 1)
            await until(lambda: facts_of(served)["running_requests"] == "0")

    async def test_margins_are_written_on_chunks_as_they_are_stored_and_the_answer_on_chosen_tokens(
        self, model: Path
    ) -> None:
        selector = FakeSelector()
        async with serving_with(model, selector) as served:
            decoding = Decoding(margins=Margins(max_tokens=3))
            events = await generate(served, decoding=decoding)
            listed = await generate(
                served, decoding=decoding, reuse="tokens", recompute=Recompute(tokens=TOKENS)
            )
        assert told(events) == told(listed)
        assert [asked.questions for asked in selector.asked] == [(QUESTION,)], "one selection, for the answer"
        assert end_of(events).usage.selected_tokens == len(TOKENS)
        assert end_of(events).usage.reuse == "cacheclip"


class TestFallback:
    @pytest.mark.parametrize(
        ("failure", "why"),
        [
            (Unavailable("it is gone"), "the selector failed: it is gone"),
            (Overloaded("no room"), "the selector failed: no room"),
            (InvalidRequest("questions: is odd"), "the selector failed: questions: is odd"),
            (RuntimeError("secret path /home"), "the selector failed; the generator's log has the reason"),
        ],
    )
    async def test_a_selector_that_fails_stops_no_answer(
        self, model: Path, failure: Exception, why: str
    ) -> None:
        async with serving_with(model, FakeSelector(failure=failure)) as served:
            events = await generate(served, recompute=Recompute(0.4))
            epic = await generate(served, reuse="epic", recompute=Recompute(0.4))
        assert told(events) == told(epic)
        usage = end_of(events).usage
        assert (usage.reuse, usage.note) == ("epic", f"cacheclip became epic: {why}")
        assert usage.selected_tokens == end_of(epic).usage.selected_tokens > 0
        assert (usage.picked_tokens, usage.grouped_tokens) == (0, 0)
        assert selected_of(events).timings is None

    @pytest.mark.parametrize(
        "fallback", ["full", "reordered", "composite", "random", "query_attention", "cacheblend", "ape"]
    )
    async def test_the_fallback_is_configured(self, model: Path, fallback: Any) -> None:
        async with serving_with(
            model, FakeSelector(failure=Unavailable("gone")), {"fallback": fallback}
        ) as served:
            events = await generate(served, recompute=Recompute(0.4, seed=3))
            by_ratio = fallback in ("random", "query_attention", "cacheblend")
            plain = await generate(
                served, reuse=fallback, recompute=Recompute(0.4, seed=3) if by_ratio else None
            )
        assert told(events) == told(plain)
        assert end_of(events).usage.reuse == fallback

    @pytest.mark.parametrize(
        ("settings", "deadline_ms"),
        [({"timeout_s": 0.1}, 60_000), ({"deadline_share": 0.02}, 10_000)],
        ids=["timeout", "share"],
    )
    async def test_a_slow_selector_stops_no_answer(
        self, model: Path, settings: dict[str, float], deadline_ms: int
    ) -> None:
        selector = FakeSelector(may_answer=asyncio.Event())
        async with serving_with(model, selector, settings) as served:
            events = await generate(served, deadline_ms=deadline_ms)
        assert end_of(events).usage.note.startswith(
            "cacheclip became epic: the selector did not answer within 0."
        )
        assert selector.num_given_up == 1, "nobody waits for it any more"
        assert selector.contexts[0].remaining_s < 1, "it is told how long it has"

    @pytest.mark.parametrize("tokens", [(5, 4), (4, 4), (DEFAULT_LEN,)])
    async def test_a_selector_that_chooses_what_is_not_there_is_not_believed(
        self, model: Path, tokens: tuple[int, ...]
    ) -> None:
        async with serving_with(model, FakeSelector(tokens)) as served:
            usage = end_of(await generate(served)).usage
        assert (usage.reuse, usage.generated_tokens) == ("epic", MAX_TOKENS)
        assert usage.note == "cacheclip became epic: the selector chose tokens that the context does not have"

    async def test_ids_that_no_text_gives_are_nothing_to_read(self, model: Path) -> None:
        selector = FakeSelector()
        # a byte that begins a character, and another character
        half = (
            ids_of(model, "ü")[0],
            *ids_of(model, "x"),
        )
        async with serving_with(model, selector) as served:
            by_ids = end_of(await generate(served, [TEXTS[0], half])).usage
            other_text = end_of(
                await generate(served, [Tokenized(ids_of(model, TEXTS[0]), "Something else")])
            ).usage
            question = end_of(await generate(served, questions=[half])).usage
        assert selector.asked == []
        reads = (
            "cacheclip became epic: the selector reads text, and there is none that gives the token ids of"
        )
        assert [u.note for u in (by_ids, other_text, question)] == [
            f"{reads} {f}" for f in ("chunks[1]", "chunks[0]", "questions[0]")
        ]

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (lambda: {"recompute": Recompute(float("nan"))}, "recompute.ratio: nan"),
            (lambda: {"recompute": Recompute(1.5)}, "recompute.ratio: 1.5"),
            (lambda: {"questions": [" "]}, "questions[0]: is empty"),
            (lambda: {"questions": [()]}, "questions[0]: is empty"),
            (lambda: {"recompute": Recompute(tokens=(1,))}, "recompute.tokens: mode cacheclip"),
        ],
    )
    async def test_a_callers_mistake_is_an_error_and_no_fallback(
        self, model: Path, options: Callable[[], dict[str, Any]], says: str
    ) -> None:
        async with serving_with(model, FakeSelector()) as served:
            with pytest.raises(KvquiltError) as refusal:
                await generate(served, **options())
        assert isinstance(refusal.value, InvalidRequest)
        assert says in refusal.value.detail

    async def test_without_chunks_there_is_nothing_to_choose(self, model: Path) -> None:
        async with serving_with(model, FakeSelector(tokens=())) as served:
            usage = end_of(await generate(served, [])).usage
        assert (usage.reuse, usage.note, usage.selected_tokens) == ("cacheclip", "", 0)


class TestVerdict:
    async def test_it_holds_for_the_model_that_chooses_and_status_says_when_that_has_changed(
        self, model: Path, tmp_path: Path
    ) -> None:
        selector, path = FakeSelector(), tmp_path / "verdict.json"
        async with serving_with(model, selector) as served:
            ours = await served.client.describe(context())
        Verdict(
            ReuseMode.CACHECLIP,
            0.03,
            ours.fingerprint,
            ids_hash(ours.prefix_ids),
            ours.kv_encoding,
            0.4,
            tokenizer=ours.tokenizer_hash,
            auxiliary=selector.fingerprint,
            grouping="budget",
            reading="stitched",
            form=FORM,
        ).write(path)
        settings = {"verdict": str(path), "kv_context": "none"}
        async with serving_with(model, selector, **settings) as served:
            usage = end_of(await generate(served, reuse="auto")).usage
            assert (usage.reuse, usage.note) == ("cacheclip", "")
            assert facts_of(served)["verdict"] == "cacheclip 0.4 (none)"
        changed = FakeSelector(fingerprint="b" * 32)
        async with serving_with(model, changed, **settings) as served:
            usage = end_of(await generate(served, reuse="auto")).usage
            assert usage.reuse == "full"
            assert usage.note == "auto is full: the verdict was made for another auxiliary"
            assert changed.asked == []
            assert (await served.client.health(context())).facts["verdict"] == (
                "expired: it was made for another auxiliary; run `kvquilt gate`"
            )
        async with serving_with(model, selector, {"grouping": "paper"}, **settings) as served:
            usage = end_of(await generate(served, reuse="auto")).usage
            assert (usage.reuse, usage.note) == (
                "full",
                "auto is full: the verdict was made for another grouping",
            )


def serving_with(
    model: Path, selector: FakeSelector, settings: dict[str, Any] | None = None, **options: Any
) -> Any:
    return serving(
        model, options.pop("store", None), selector, selector=SELECTOR | (settings or {}), **options
    )


def facts_of(served: Served) -> dict[str, str]:
    assert not isinstance(served.generator, KvquiltError)
    return served.generator.facts()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)
