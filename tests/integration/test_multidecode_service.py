"""Beams, thoughts, margins and live forests as callers of the Generation service see them, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from tokenizers import pre_tokenizers

from protos.kvquilt.v1 import generation_pb2, generation_pb2_grpc
from services.generator.service import Generator
from shared.errors import DeadlineExceeded, FailedPrecondition, InvalidRequest, NotFound
from shared.generation.asked import (
    Beams,
    Choice,
    ChoiceRule,
    Decoding,
    EarlyStopping,
    Margins,
    MarginsAfter,
    SamplingParams,
)
from shared.generation.forest import Append, Edit, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.orders import ForestOrder
from shared.generation.pieces import Piece
from shared.generation.told import (
    AppliedEvent,
    BranchDoneEvent,
    ChosenEvent,
    DoneEvent,
    GenerationEvent,
    GrownEvent,
    MarginEvent,
    MarginTokenEvent,
    RefusedEvent,
    RestedEvent,
    TokenEvent,
)
from tests.beam_oracle import beam_search
from tests.generation_server import Served, context, order_of, reuse_of, save_byte_tokenizer, serving
from tests.oracles import ORACLES, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

PREFIX, CHUNKS, QUESTION = (5, 6, 7), [(9, 10, 11, 12), (13, 14, 15)], (20, 21, 22)


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "talking"
    tiny_model("qwen2", seed=5, vocab_size=300).save_pretrained(path)
    save_byte_tokenizer(path)
    return path


async def generate(
    served: Served,
    chunks: Sequence[Piece],
    questions: Sequence[Piece],
    decoding: Decoding,
    prefix: Piece | None = PREFIX,
    **sampling: Any,
) -> list[GenerationEvent]:
    chosen = SamplingParams(**{"max_tokens": 5, "ignore_eos": True} | sampling)
    order = order_of(chunks, questions, "reordered", sampling=chosen, prefix=prefix, decoding=decoding)
    stream = served.client.generate(context(), order)
    async with aclosing(stream):
        return [event async for event in stream]


def ids(events: Sequence[GenerationEvent], question: int = 0, sample: int = 0) -> tuple[int, ...]:
    return tuple(
        e.token_id
        for e in events
        if isinstance(e, TokenEvent) and (e.question, e.sample) == (question, sample)
    )


async def test_the_best_beams_of_the_textbook_with_their_scores(talking: Path) -> None:
    model = tiny_model("qwen2", seed=5, vocab_size=300)
    beams = Beams(4, 0.5, EarlyStopping.NEVER)
    found = beam_search(
        lambda tokens: ORACLES["reordered"](model, PREFIX, CHUNKS, QUESTION, [*tokens, 0])[-1],
        beams,
        max_tokens=5,
        eos_ids=(),
    )
    async with serving(talking, kv_store="") as served:
        events = await generate(
            served, CHUNKS, [QUESTION], Decoding(beams=Beams(4, 0.5, EarlyStopping.NEVER)), n=3
        )
    ends = {e.sample: e for e in events if isinstance(e, BranchDoneEvent)}
    assert sorted(ends) == [0, 1, 2]
    for rank in range(3):
        assert (ids(events, 0, rank), ends[rank].score) == (
            found.answers[rank][0],
            pytest.approx(found.answers[rank][1], abs=1e-4),
        )


async def test_one_thought_of_each_question_is_chosen(talking: Path) -> None:
    async with serving(talking, kv_store="") as served:
        decoding = Decoding(choose=Choice(ChoiceRule.MEAN_LOGPROB))
        events = await generate(
            served, ["The river rises."], ["What?", "Why?"], decoding, None, n=3, temperature=0.8, seed=2
        )
        chosen = {e.question: e for e in events if isinstance(e, ChosenEvent)}
        for question in range(2):
            scores = [e.score for e in events if isinstance(e, BranchDoneEvent) and e.question == question]
            ends = {
                e.sample: e.score for e in events if isinstance(e, BranchDoneEvent) and e.question == question
            }
            assert ends[chosen[question].sample] == max(scores)
        majority = Decoding(choose=Choice(ChoiceRule.MAJORITY))
        events = await generate(
            served, [], ["What?"], majority, None, n=3, temperature=0.8, seed=2, max_tokens=1
        )
        assert [e.votes >= 1 for e in events if isinstance(e, ChosenEvent)] == [True]
        assert isinstance(events[-1], DoneEvent)


@pytest.mark.parametrize(
    ("decoding", "sampling", "field"),
    [
        (lambda: Decoding(beams=Beams(0)), {}, r"beams\.width"),
        (lambda: Decoding(beams=Beams(2, 99.0)), {}, r"beams\.length_penalty"),
        (lambda: Decoding(beams=Beams(2)), {"n": 3}, r"sampling\.n"),
        (lambda: Decoding(beams=Beams(2)), {"temperature": 1.0}, r"sampling\.temperature"),
        (lambda: Decoding(choose=Choice(ChoiceRule.MAJORITY)), {"temperature": 1.0}, r"sampling\.n"),
        (lambda: Decoding(beams=Beams(2), choose=Choice(ChoiceRule.MAJORITY)), {}, "choose"),
    ],
)
async def test_bad_input_names_the_field(
    talking: Path, decoding: Callable[[], Decoding], sampling: dict[str, Any], field: str
) -> None:
    async with serving(talking, kv_store="") as served:
        with pytest.raises(InvalidRequest, match=field):
            await generate(served, CHUNKS, [QUESTION], decoding(), **sampling)


def encode(text: str) -> tuple[int, ...]:
    """As the byte tokenizer of ``save_byte_tokenizer`` does."""
    order = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    return tuple(
        order[c]
        for c in pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][
            0
        ]
    )


class TestMargins:
    """Every stage against the stock model, teacher-forced on what was generated."""

    TEXTS = ("The river rises.", "Bread is brown.", "Ships are old.")
    QUESTION = "What rises?"

    @pytest.mark.parametrize("after", list(MarginsAfter))
    @pytest.mark.parametrize("reuse", ["reordered", "full"])
    async def test_margins_judgements_and_answer_are_those_of_the_stock_model(
        self, talking: Path, reuse: str, after: MarginsAfter
    ) -> None:
        margins = Margins(
            "Note on {question}", "Is “{margin}” of help for {question}", " ja", " jein", 6, after
        )
        async with serving(talking, kv_store="") as served:
            model = await served.client.describe(context())
            stream = served.client.generate(
                context(),
                order_of(
                    self.TEXTS,
                    [self.QUESTION],
                    reuse,
                    sampling=SamplingParams(4, ignore_eos=True),
                    decoding=Decoding(margins=margins),
                ),
            )
            async with aclosing(stream):
                events = [event async for event in stream]
            assert isinstance(served.generator, Generator)
            decode = served.generator.tokenizer.decode  # type: ignore[union-attr]
        stock = tiny_model("qwen2", seed=5, vocab_size=300)

        def ask(text: str) -> tuple[int, ...]:
            return encode(model.question_template.replace("{question}", text))

        def oracle(
            chunks: Sequence[tuple[int, ...]], question: tuple[int, ...], generated: Sequence[int]
        ) -> torch.Tensor:
            return ORACLES[reuse](stock, model.prefix_ids, chunks, question, generated)

        chunks = [encode(model.chunk_template.replace("{text}", text)) for text in self.TEXTS]
        notes = {e.chunk: e for e in events if isinstance(e, MarginEvent)}
        assert sorted(notes) == [0, 1, 2]
        for i, note in notes.items():
            written = [e for e in events if isinstance(e, MarginTokenEvent) and e.chunk == i]
            ids_ = [e.token_id for e in written]
            seen = [chunks[i]] if after is MarginsAfter.OWN else chunks[: i + 1]
            assert ids_ == oracle(seen, ask("Note on What rises?"), ids_).argmax(-1).tolist()
            assert note.text == decode([t for t in ids_ if t not in model.eos_ids])
            judged = (*ask(f"Is “{note.text.strip()}” of help for What rises?"), *encode(" j"))
            logprobs = oracle(seen, judged, [0])[0].log_softmax(-1)
            yes, no = logprobs[encode("a")[0]].item(), logprobs[encode("e")[0]].item()
            assert (note.yes_logprob, note.no_logprob) == (
                pytest.approx(yes, abs=1e-4),
                pytest.approx(no, abs=1e-4),
            )
            assert note.kept == (yes > no)
        kept = [
            encode(model.chunk_template.replace("{text}", notes[i].text.strip()))
            for i in range(3)
            if notes[i].kept
        ]
        answer = ids(events)
        final = (*(t for note in kept for t in note), *ask(self.QUESTION))
        assert list(answer) == oracle(chunks, final, answer).argmax(-1).tolist()
        assert [type(e) for e in events].index(TokenEvent) > max(
            i for i, e in enumerate(events) if isinstance(e, MarginEvent)
        )
        usage = events[-1].usage  # type: ignore[union-attr]
        assert usage.prompt_tokens == usage.reused_tokens + usage.recomputed_tokens
        assert usage.generated_tokens == 4 + 3 + sum(isinstance(e, MarginTokenEvent) for e in events), (
            "answer, judgements, margins"
        )

    async def test_kept_and_left_out_margins_both_occur_and_only_kept_ones_are_seen(
        self, talking: Path
    ) -> None:
        """The same with yes and no exchanged: what was kept is left out, and the answer's prompt is as long
        as it says."""
        async with serving(talking, kv_store="") as served:
            told = []
            for yes, no in ((" a", " e"), (" e", " a")):
                margins = Margins(yes=yes, no=no, max_tokens=5)
                told.append(
                    await generate(served, self.TEXTS, [self.QUESTION], Decoding(margins=margins), None)
                )
        one, other = ([e for e in events if isinstance(e, MarginEvent)] for events in told)
        assert {m.chunk: m.kept for m in one} == {m.chunk: not m.kept for m in other}
        assert {m.chunk: m.text for m in one} == {m.chunk: m.text for m in other}

    async def test_beams_and_thoughts_apply_to_the_answer(self, talking: Path) -> None:
        async with serving(talking, kv_store="") as served:
            decoding = Decoding(beams=Beams(3), margins=Margins(max_tokens=2))
            events = await generate(served, self.TEXTS, [self.QUESTION], decoding, None, n=3)
        assert sorted(e.sample for e in events if isinstance(e, BranchDoneEvent)) == [0, 1, 2]

    async def test_a_caller_that_leaves_stops_all_margins(self, talking: Path) -> None:
        async with serving(talking, kv_store="") as served:
            sampling = SamplingParams(500, ignore_eos=True)
            decoding = Decoding(margins=Margins(max_tokens=500))
            stream = served.client.generate(
                context(),
                order_of(self.TEXTS, [self.QUESTION], "reordered", sampling=sampling, decoding=decoding),
            )
            async with aclosing(stream):
                async for _ in stream:
                    break
            await nothing_is_held(served)

    @pytest.mark.parametrize(
        ("margins", "chunks", "questions", "field"),
        [
            (Margins(), ["x"], ["a", "b"], "one question"),
            (Margins(), ["x"], [(5, 6)], "one question, as text"),
            (Margins(), [], ["a"], "no chunks"),
            (
                Margins(instruction="note"),
                ["x"],
                ["a"],
                r"decoding\.margins\.instruction: must contain {question}",
            ),
            (Margins(relevance="note"), ["x"], ["a"], r"decoding\.margins\.relevance: must contain {margin}"),
            (Margins(yes=" y", no=" yes"), ["x"], ["a"], r"decoding\.margins\.yes, no"),
            (Margins(max_tokens=10_000), ["x"], ["a"], r"decoding\.margins\.max_tokens"),
        ],
    )
    async def test_bad_input_names_the_field(
        self, talking: Path, margins: Margins, chunks: list[Piece], questions: list[Piece], field: str
    ) -> None:
        async with serving(talking, kv_store="") as served:
            with pytest.raises(InvalidRequest, match=field):
                await generate(served, chunks, questions, Decoding(margins=margins), None)


async def nothing_is_held(served: Served) -> None:
    """Once the engine has ended the step in which the last request ended."""
    assert isinstance(served.generator, Generator)
    while served.generator.facts()["running_requests"] != "0":
        await asyncio.sleep(0.01)
    assert served.generator.facts()["private_bytes"] == "0"


class Talk:
    """Commands that are given when the test wants, and what came back."""

    def __init__(self, served: Served, **opened: Any) -> None:
        self._commands: asyncio.Queue[Edit | None] = asyncio.Queue()
        opened = {"chunks": CHUNKS, "reuse": "reordered", "prefix": PREFIX, "ctx": context()} | opened
        order = ForestOrder(tuple(opened["chunks"]), opened["prefix"], reuse_of(opened["reuse"]))
        self.stream = served.forests.explore(opened["ctx"], order, self._given())

    async def _given(self) -> AsyncIterator[Edit]:
        while (command := await self._commands.get()) is not None:
            yield command

    def give(self, *commands: Edit | None) -> None:
        for command in commands:
            self._commands.put_nowait(command)

    async def until(self, kind: type[Any], count: int = 1) -> list[Any]:
        events: list[Any] = []
        while sum(isinstance(e, kind) for e in events) < count:
            events.append(await anext(self.stream))
        return events


class TestExplore:
    async def test_commands_follow_what_was_seen_and_every_branch_is_the_stock_models(
        self, talking: Path
    ) -> None:
        stock = tiny_model("qwen2", seed=5, vocab_size=300)
        greedy = SamplingParams(4, ignore_eos=True)

        def oracle(question: Sequence[int], generated: Sequence[int]) -> list[int]:
            best: list[int] = (
                ORACLES["reordered"](stock, PREFIX, CHUNKS, question, generated).argmax(-1).tolist()
            )
            return best

        async with serving(talking, kv_store="") as served:
            talk = Talk(served)
            async with aclosing(talk.stream):
                talk.give(Start(1, QUESTION), Grow(1, greedy))
                events = await talk.until(RestedEvent)
                assert [e.num_tokens for e in events if isinstance(e, AppliedEvent)] == [3, 3]
                first = [e.token_id for e in events if isinstance(e, GrownEvent)]
                assert first == oracle(QUESTION, first)
                talk.give(Fork(2, 1, 5), Append(2, (50, 51)), Rewind(1, 1), Grow(1, greedy), Grow(2, greedy))
                events = await talk.until(RestedEvent, 2)
                one, two = (
                    [e.token_id for e in events if isinstance(e, GrownEvent) and e.branch == b]
                    for b in (1, 2)
                )
                assert one == oracle((*QUESTION, *first[:3]), one)
                assert one[0] == first[3]
                assert two == oracle((*QUESTION, *first[:2], 50, 51), two)
                talk.give(
                    Merge(3, (1, 2), 5),
                    Merge(4, (1, 2), placed=True),
                    Prune(1),
                    Prune(2),
                    Fork(5, 4),
                    Rewind(5, 7),
                )
                events = await talk.until(AppliedEvent, 6)
                applied = [e for e in events if isinstance(e, AppliedEvent)]
                assert [e.approximate for e in applied] == [False, True, False, False, True, False]
                merged = [*QUESTION, *first[:3], *one, 50, 51, *two]
                assert applied[0].num_tokens == applied[1].num_tokens == len(merged)
                talk.give(Grow(3, greedy), None)
                events = await talk.until(DoneEvent)
                three = [e.token_id for e in events if isinstance(e, GrownEvent)]
                assert three == oracle(merged, three)
                usage = events[-1].usage
                assert (usage.generated_tokens, usage.prompt_tokens) == (16, 3 + 7 + 3 + 2)
            await nothing_is_held(served)

    async def test_what_is_refused_names_the_field_and_the_forest_lives_on(self, talking: Path) -> None:
        async with serving(talking, kv_store="") as served:
            talk = Talk(served)
            async with aclosing(talk.stream):
                talk.give(
                    Start(1, QUESTION),
                    Fork(2, 7),
                    Rewind(1, 3),
                    Start(1, QUESTION),
                    Grow(1, SamplingParams(400, ignore_eos=True)),
                    Append(1, (5,)),
                )
                refused = {
                    e.command: e.error
                    for e in await talk.until(RefusedEvent, 4)
                    if isinstance(e, RefusedEvent)
                }
                assert [type(refused[i]) for i in (1, 2, 3, 5)] == [
                    NotFound,
                    InvalidRequest,
                    InvalidRequest,
                    FailedPrecondition,
                ]
                assert refused[1].detail.startswith("fork.source: there is no branch 7")
                assert refused[2].detail.startswith("rewind.num_tokens: 3 is out of range")
                talk.give(Prune(1), Grow(1), None)
                events = await talk.until(DoneEvent)
                assert [type(e.error) for e in events if isinstance(e, RefusedEvent)] == [NotFound], (
                    "it was pruned"
                )

    async def test_text_is_asked_through_the_template_and_appended_as_it_is(self, talking: Path) -> None:
        async with serving(talking, kv_store="") as served:
            model = await served.client.describe(context())
            talk = Talk(served, prefix=None, chunks=["The river rises."])
            async with aclosing(talk.stream):
                talk.give(Start(1, "Why?"), Append(1, " Well,"), None)
                lengths = [e.num_tokens for e in await talk.until(DoneEvent) if isinstance(e, AppliedEvent)]
        asked = len(encode(model.question_template.replace("{question}", "Why?")))
        assert lengths == [asked, asked + 6]

    @pytest.mark.parametrize(
        "wrong", [None, Append(1, ""), Grow(2, SamplingParams(9000))], ids=["leaves", "empty", "too much"]
    )
    async def test_a_caller_that_leaves_or_cannot_be_understood_ends_the_forest(
        self, talking: Path, wrong: Edit | None
    ) -> None:
        async with serving(talking, kv_store="") as served:
            talk = Talk(served)
            talk.give(Start(1, QUESTION), Grow(1, SamplingParams(500, ignore_eos=True)))
            await talk.until(GrownEvent)
            if wrong is None:
                await talk.stream.aclose()
            else:
                talk.give(wrong)
                with pytest.raises(
                    InvalidRequest,
                    match=r"append\.piece: is empty|grow\.sampling\.max_tokens: 9000 is more than",
                ):
                    await talk.until(DoneEvent)
            await nothing_is_held(served)

    async def test_the_deadline_ends_it_and_what_cannot_be_opened_is_refused(self, talking: Path) -> None:
        async with serving(talking, kv_store="") as served:
            talk = Talk(served, ctx=context(deadline_ms=300))
            talk.give(Start(1, QUESTION))
            with pytest.raises(DeadlineExceeded):
                await talk.until(DoneEvent)
            with pytest.raises(InvalidRequest, match=r"prefix: token id|prefix\.token_ids\[0\]"):
                await Talk(served, prefix=(999,)).until(DoneEvent)
            async with grpc.aio.insecure_channel(served.address) as channel:
                stub = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]
                call = stub.Explore(
                    iter([generation_pb2.ExploreRequest(prune=generation_pb2.ForestPrune(branch=1))])
                )
                with pytest.raises(grpc.aio.AioRpcError, match="open: must be the first message"):
                    await call.read()
