"""The life of a request at the gateway."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from protos.kvquilt.v1 import rag_pb2, recompute_pb2
from services.gateway.config import FeedbackConfig, GatewayConfig, RefusalConfig
from services.gateway.feedback import FeedbackKeeper
from services.gateway.handlers import GatewayHandlers
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.answer import (
    AnswerDone,
    AnswerEvent,
    AnswerText,
    AnswerUsage,
    Inquiry,
    Refusal,
    RetrievalOptions,
    Retrieved,
)
from shared.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    KvquiltError,
    ModelMismatch,
    NotFound,
    Unavailable,
)
from shared.generation.asked import Choice, ChoiceRule, Decoding, SamplingParams
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.orders import GenerationOrder, Reuse
from shared.generation.pieces import Conditioned, Tokenized
from shared.generation.selection import Grouping, Reading
from shared.generation.told import ChosenEvent, FinishReason, SelectedEvent, TextSpan, TokenEvent
from shared.kv_types import KvContext
from shared.principals.principal import Principal
from shared.request import RequestContext
from shared.search import Block, ContextOrder, Filter, FilterOp, SearchHit, SearchMode
from shared.wire.answer import INQUIRY
from tests.unit.gateway.fakes import FakeFetcher, FakeGenerator, FakeRetriever, hit
from tests.virtual_time import run_virtually, virtual_loop

WHO, WHEN = "Who built the bridge?", "When was the bridge built?"
HITS = [hit("a", "Orla Venn built it"), hit("b", "It was built in 1874"), hit("c", "Nothing to see")]


def pipeline(
    generator: FakeGenerator | None = None,
    retriever: FakeRetriever | None = None,
    fetcher: FakeFetcher | None = None,
    clock: Callable[[], float] | None = None,
    **settings: object,
) -> Pipeline:
    ticks = itertools.count()
    return Pipeline(
        retriever or FakeRetriever({WHO: HITS, WHEN: [HITS[1], HITS[0]]}),
        generator or FakeGenerator({WHO: "Orla Venn", WHEN: "in 1874"}),
        GatewayConfig(**settings),  # type: ignore[arg-type]
        Prefetching(fetcher, max_in_flight=2),
        clock=clock or (lambda: float(next(ticks))),
    )


async def ask(p: Pipeline, inquiry: Inquiry, ctx: RequestContext | None = None) -> list[AnswerEvent]:
    async with aclosing(p.answer(ctx or RequestContext.create("r1"), inquiry)) as events:
        return [event async for event in events]


def inquiry(*questions: str, **changes: object) -> Inquiry:
    return Inquiry("handbook", questions or (WHO,), **changes)  # type: ignore[arg-type]


async def test_events_come_as_context_then_tokens_then_text_then_cost_then_done() -> None:
    events = await ask(pipeline(), inquiry())
    kinds = [type(event) for event in events]
    assert kinds == [Retrieved, TokenEvent, TokenEvent, AnswerText, AnswerUsage, AnswerDone]
    assert events[-1] == AnswerDone("r1")
    text = events[3]
    assert isinstance(text, AnswerText)
    assert text.text == "Orla Venn"
    assert [c.document_id for c in text.citations] == ["a.txt"]


async def test_retrieved_chunks_reach_the_generator_with_their_ids_in_ranked_order() -> None:
    generator = FakeGenerator({WHO: "Orla"})
    asked = inquiry(reuse=Reuse(ReuseMode.COMPOSITE), sampling=SamplingParams(max_tokens=7))
    await ask(pipeline(generator, names_chunks=True), asked)
    assert generator.asked == [
        GenerationOrder(
            tuple(Tokenized(h.chunk.token_ids, h.chunk.text) for h in HITS),
            (WHO,),
            reuse=Reuse(ReuseMode.COMPOSITE),
            kv_context=KvContext.DOCUMENT,
            sampling=SamplingParams(max_tokens=7),
            chunk_ids=tuple(h.chunk.chunk_id for h in HITS),
        )
    ]


async def test_chunks_are_named_only_to_a_router_and_only_by_names_that_they_have() -> None:
    for names, without_prefix in ((False, False), (True, True)):
        generator = FakeGenerator({WHO: "Orla"})
        await ask(pipeline(generator, names_chunks=names), inquiry(without_prefix=without_prefix))
        (order,) = generator.asked
        assert order.chunk_ids == ()
        assert len(order.chunks) == len(HITS)


async def test_the_best_chunk_stands_next_to_the_question_if_that_is_configured() -> None:
    generator = FakeGenerator({WHO: "Orla"})
    events = await ask(pipeline(generator, order=ContextOrder.BEST_LAST), inquiry())
    assert isinstance(events[0], Retrieved)
    assert events[0].hits == tuple(reversed(HITS))
    assert generator.asked[0].chunks == tuple(h.chunk.piece for h in reversed(HITS))


async def test_of_several_questions_the_best_chunk_of_all_stands_next_to_them() -> None:
    asked = inquiry(WHO, WHEN, retrieval=RetrievalOptions(k=2))
    events = await ask(pipeline(order=ContextOrder.BEST_LAST), asked)
    first_best = await ask(pipeline(), asked)
    assert isinstance(events[0], Retrieved)
    assert isinstance(first_best[0], Retrieved)
    assert events[0].hits == first_best[0].hits[::-1]


async def test_the_configured_reuse_applies_where_the_request_names_none() -> None:
    generator = FakeGenerator({WHO: "Orla"})
    await ask(pipeline(generator), inquiry())
    assert generator.asked[0].reuse.mode is ReuseMode.REORDERED


async def test_a_preface_stands_in_front_of_every_question_but_nothing_is_searched_by_it() -> None:
    generator = FakeGenerator({f"Be brief.\n\n{q}": "in 1874" for q in (WHO, WHEN)})
    retriever = FakeRetriever({WHO: HITS, WHEN: HITS})
    await ask(pipeline(generator, retriever), inquiry(WHO, WHEN, preface="Be brief."))
    assert retriever.asked[0][1] == (WHO, WHEN)
    assert generator.asked[0].questions == (f"Be brief.\n\n{WHO}", f"Be brief.\n\n{WHEN}")


async def test_retrieval_options_reach_the_retriever_and_zero_k_means_the_default() -> None:
    retriever = FakeRetriever({WHO: HITS})
    options = RetrievalOptions(2, SearchMode.BM25, (Filter("title", FilterOp.EQ, ("x",)),))
    await ask(pipeline(retriever=retriever), inquiry(retrieval=options))
    await ask(pipeline(retriever=retriever, k=3), inquiry())
    assert retriever.asked == [
        ("handbook", (WHO,), 2, SearchMode.BM25, options.filters),
        ("handbook", (WHO,), 3, SearchMode.AUTO, ()),
    ]


async def test_k_beyond_the_collection_takes_what_there_is() -> None:
    events = await ask(pipeline(), inquiry(retrieval=RetrievalOptions(k=60)))
    assert isinstance(events[0], Retrieved)
    assert len(events[0].hits) == 3


async def test_several_questions_share_one_context_fused_by_reciprocal_rank_with_each_chunk_once() -> None:
    generator = FakeGenerator({WHO: "Orla Venn", WHEN: "in 1874"})
    events = await ask(pipeline(generator), inquiry(WHO, WHEN))
    assert isinstance(events[0], Retrieved)
    assert [h.chunk.chunk_id for h in events[0].hits] == ["a", "b", "c"]
    assert generator.asked[0].questions == (WHO, WHEN)
    texts = {e.question: e.text for e in events if isinstance(e, AnswerText)}
    assert texts == {0: "Orla Venn", 1: "in 1874"}


async def test_times_run_from_arrival_and_the_generators_own_stages_are_kept() -> None:
    events = await ask(pipeline(), inquiry())
    usage = next(e for e in events if isinstance(e, AnswerUsage))
    timings = usage.timings
    assert (timings.queue_s, timings.prefill_s, timings.engine_ttft_s) == (1.0, 5.0, 4.0)
    assert 0 < timings.retrieve_s < timings.first_token_s < timings.total_s


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        (Inquiry("", (WHO,)), "collection"),
        (Inquiry("../x", (WHO,)), "collection"),
        (Inquiry("handbook", ("  ",)), "question"),
        (Inquiry("handbook", (WHO, "")), r"questions\[1\]"),
        (Inquiry("handbook", ()), "questions"),
        (Inquiry("handbook", (WHO,), retrieval=RetrievalOptions(k=65)), "retrieval.k"),
    ],
)
async def test_wrong_requests_name_the_field_and_reach_no_service(bad: Inquiry, names: str) -> None:
    retriever = FakeRetriever({WHO: HITS})
    with pytest.raises(InvalidRequest, match=names):
        await ask(pipeline(retriever=retriever), bad)
    assert retriever.asked == []


async def test_an_unknown_collection_is_not_found() -> None:
    with pytest.raises(NotFound, match="no collection"):
        await ask(
            pipeline(retriever=FakeRetriever({}, error=NotFound("no collection 'handbook'"))), inquiry()
        )


async def test_a_search_that_finds_nothing_is_not_answered_from_nothing() -> None:
    generator = FakeGenerator({WHO: "Orla"})
    with pytest.raises(NotFound, match="matches"):
        await ask(pipeline(generator, FakeRetriever({WHO: []})), inquiry())
    assert generator.asked == []


async def test_chunks_of_another_model_are_refused_with_the_remedy() -> None:
    stale = FakeRetriever({WHO: [HITS[0], hit("old", "old text", "old.md", fingerprint="0" * 32)]})
    with pytest.raises(ModelMismatch, match=r"'old.md'.*kvquilt ingest --collection handbook --re-encode"):
        await ask(pipeline(retriever=stale), inquiry())


@pytest.mark.parametrize(
    ("stored", "what"), [({"prefix_hash": "0"}, "prompt prefix"), ({"template_hash": "0"}, "chunk template")]
)
async def test_chunks_under_another_prompt_are_refused_by_what_differs(
    stored: dict[str, str], what: str
) -> None:
    stale = FakeRetriever({WHO: [HITS[0], dataclasses.replace(HITS[1], **stored)]})
    with pytest.raises(ModelMismatch, match=rf"ingested for another {what} than .*--re-encode"):
        await ask(pipeline(retriever=stale), inquiry())


def under(*contexts: str) -> FakeRetriever:
    chunks = zip(HITS, contexts, strict=True)
    return FakeRetriever({WHO: [dataclasses.replace(hit, kv_context=context) for hit, context in chunks]})


@pytest.mark.parametrize(
    ("contexts", "configured", "told"),
    [
        (("document",) * 3, KvContext.DOCUMENT, ""),
        (("", "", ""), KvContext.NONE, ""),
        (
            ("document", "", ""),
            KvContext.DOCUMENT,
            "2 of 3 chunks of collection 'handbook' were computed under kv_context none, and document is",
        ),
        (
            ("document", "header", ""),
            KvContext.NONE,
            "2 of 3 chunks of collection 'handbook' were computed under kv_context document, header, and",
        ),
    ],
)
async def test_chunks_under_another_kv_context_are_answered_over_and_told_with_the_remedy(
    contexts: tuple[str, ...], configured: KvContext, told: str
) -> None:
    events = await ask(pipeline(retriever=under(*contexts), kv_context=configured), inquiry())
    (usage,) = (event.usage for event in events if isinstance(event, AnswerUsage))
    assert usage.note.startswith(told) if told else not usage.note
    assert usage.note.endswith("`kvquilt ingest --collection handbook --re-encode`") or not told
    assert isinstance(events[-1], AnswerDone)


@pytest.mark.parametrize(
    ("contexts", "told"),
    [
        (("header",) * 3, KvContext.HEADER),
        (("", "none", ""), KvContext.NONE),
        (("document", "header", "document"), None),
        (("of a later version",) * 3, None),
    ],
)
async def test_the_generator_is_told_under_which_kv_context_all_chunks_were_computed(
    contexts: tuple[str, ...], told: KvContext | None
) -> None:
    generator = FakeGenerator({WHO: "Orla"})
    await ask(pipeline(generator, retriever=under(*contexts)), inquiry())
    assert generator.asked[0].kv_context is told


async def test_an_answer_without_stored_kv_is_of_no_context() -> None:
    p = pipeline(retriever=under("header", "", ""))
    events = await ask(p, inquiry(reuse=Reuse(ReuseMode.FULL)))
    (usage,) = (event.usage for event in events if isinstance(event, AnswerUsage))
    assert usage.note == ""


async def test_citations_are_marked_where_stored_kv_may_be_used() -> None:
    chunk = dataclasses.replace(HITS[0].chunk, place=3, block=Block(1, "", 1, True))
    retriever = FakeRetriever({WHO: [dataclasses.replace(HITS[0], chunk=chunk)]})
    for mode, told in ((ReuseMode.REORDERED, "header + 2 chunks"), (ReuseMode.FULL, "")):
        events = await ask(pipeline(retriever=retriever), inquiry(reuse=Reuse(mode)))
        (text,) = (event for event in events if isinstance(event, AnswerText))
        assert [(c.block, c.conditioned_on) for c in text.citations] == [(1, told)]


def test_a_question_waits_while_retrieval_changes_its_owner_as_long_as_its_deadline_lets_it() -> None:
    retriever = FakeRetriever({WHO: HITS}, away_until_s=45.0)

    async def work() -> tuple[list[AnswerEvent], float]:
        return await ask(pipeline(retriever=retriever), inquiry()), virtual_loop().time()

    events, took_s = run_virtually(work())
    assert isinstance(events[-1], AnswerDone)
    assert 45.0 <= took_s < 48.0


def test_retrieval_that_stays_away_is_told_shortly_before_the_deadline() -> None:
    retriever = FakeRetriever({WHO: HITS}, away_until_s=1e9)

    async def work() -> float:
        with pytest.raises(Unavailable, match="retrieval is not available"):
            await ask(pipeline(retriever=retriever), inquiry(), RequestContext.create(deadline_ms=60_000))
        return virtual_loop().time()

    assert 55.0 <= run_virtually(work()) < 60.0
    assert len(retriever.asked) < 60


def test_a_generator_that_dies_before_its_first_token_is_asked_again_unnoticed() -> None:
    generator = FakeGenerator({WHO: "Orla Venn"}, failures=[(0, Unavailable("died"))] * 5)
    events = run_virtually(ask(pipeline(generator), inquiry()))
    assert isinstance(events[-1], AnswerDone)
    assert len(generator.asked) == 6
    assert [e.text for e in events if isinstance(e, TokenEvent)] == ["Orla", " Venn"]


def behind(name: str, parent_id: str) -> SearchHit:
    """A chunk that stands behind another one."""
    found = hit(name, f"It is {name}'s")
    return replace(found, chunk=replace(found.chunk, parent_id=parent_id))


async def test_chunks_whose_document_is_being_replaced_are_read_alone_and_usage_says_so() -> None:
    """The index has them still, and no manifest what they stand behind."""
    gone = NotFound("chunks[1].parent_id: no document that you may read has such a chunk")
    generator = FakeGenerator({WHO: "Orla Venn"}, failures=[(0, gone)])
    hits = [HITS[0], behind("b", "ab" * 20)]
    events = await ask(pipeline(generator, FakeRetriever({WHO: hits}), names_chunks=True), inquiry())
    assert [e.text for e in events if isinstance(e, TokenEvent)] == ["Orla", " Venn"]
    first, second = generator.asked
    assert isinstance(first.chunks[1], Conditioned)
    assert second.chunks == (first.chunks[0], first.chunks[1].piece)
    assert (second.kv_context, second.chunk_ids) == (KvContext.NONE, ())
    (usage,) = (e.usage for e in events if isinstance(e, AnswerUsage))
    assert usage.isolated_tokens == len(hits[1].chunk.token_ids)
    assert "what 1 of 2 chunks stand behind is in no document any more" in usage.note


@pytest.mark.parametrize(("begun", "hits"), [(1, [behind("b", "ab" * 20)]), (0, HITS)])
async def test_what_is_not_found_otherwise_is_an_error(begun: int, hits: list[SearchHit]) -> None:
    generator = FakeGenerator({WHO: "Orla Venn"}, failures=[(begun, NotFound("gone"))])
    with pytest.raises(NotFound, match="gone"):
        await ask(pipeline(generator, FakeRetriever({WHO: hits})), inquiry())
    assert len(generator.asked) == 1


def test_a_generator_that_goes_on_dying_is_told_shortly_before_the_deadline() -> None:
    generator = FakeGenerator({WHO: "Orla"}, failures=[(0, Unavailable("died"))] * 1000)

    async def work() -> float:
        with pytest.raises(Unavailable, match="died"):
            await ask(pipeline(generator), inquiry(), RequestContext.create(deadline_ms=60_000))
        return virtual_loop().time()

    assert 55.0 <= run_virtually(work()) < 60.0
    assert len(generator.asked) == generator.closed < 60


async def test_a_generator_that_dies_in_mid_answer_is_never_asked_again_and_the_answer_is_not_called_whole() -> (  # noqa: E501
    None
):
    generator = FakeGenerator({WHO: "Orla Venn"}, failures=[(1, Unavailable("died"))])
    events = pipeline(generator).answer(RequestContext.create(), inquiry())
    assert [type(await anext(events)) for _ in range(2)] == [Retrieved, TokenEvent]
    with pytest.raises(Unavailable, match="not an answer") as failure:
        await anext(events)
    assert failure.value.retryable
    assert len(generator.asked) == 1


@pytest.mark.parametrize("error", [ContextTooLong("question: too long"), DeadlineExceeded("late")])
async def test_errors_that_would_come_again_are_not_retried(error: KvquiltError) -> None:
    generator = FakeGenerator({WHO: "Orla"}, failures=[(0, error)])
    with pytest.raises(type(error)):
        await ask(pipeline(generator), inquiry())
    assert len(generator.asked) == 1


async def test_nothing_is_begun_anew_after_the_deadline() -> None:
    generator = FakeGenerator({WHO: "Orla"}, failures=[(0, Unavailable("died"))])
    late = RequestContext("r", Principal.operator("default"), deadline_s=0.0)
    with pytest.raises(Unavailable, match="died"):
        await ask(pipeline(generator), inquiry(), late)
    assert len(generator.asked) == 1


async def test_a_caller_that_leaves_closes_the_generation() -> None:
    generator = FakeGenerator({WHO: "Orla Venn"})
    events = pipeline(generator).answer(RequestContext.create(), inquiry())
    async for event in events:
        if isinstance(event, TokenEvent):
            break
    await events.aclose()
    assert generator.closed == 1


async def test_cancelling_the_request_while_the_generator_thinks_closes_the_generation() -> None:
    generator = FakeGenerator({WHO: "Orla Venn"}, hang_after=1)
    task = asyncio.create_task(ask(pipeline(generator), inquiry()))
    while not generator.asked:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert generator.closed == 1


async def test_waiting_for_a_generator_that_restarts_is_no_part_of_retrieval() -> None:
    described, now = asyncio.Event(), [0.0]
    fetcher, generator = FakeFetcher(), FakeGenerator({WHO: "Orla Venn"}, describe_after=described)
    p = pipeline(generator, fetcher=fetcher, clock=lambda: now[0])
    task = asyncio.create_task(ask(p, inquiry()))
    while not fetcher.asked:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    now[0] = 40.0
    described.set()
    timings = next(e for e in await task if isinstance(e, AnswerUsage)).timings
    assert (timings.retrieve_s, timings.first_token_s) == (0, 40)


async def test_the_store_hears_of_retrieved_chunks_before_the_generator_has_even_described_itself() -> None:
    described = asyncio.Event()
    fetcher, generator = FakeFetcher(), FakeGenerator({WHO: "Orla Venn"}, describe_after=described)
    task = asyncio.create_task(ask(pipeline(generator, fetcher=fetcher), inquiry()))
    while not fetcher.asked:
        await asyncio.sleep(0)
    assert fetcher.asked == [("a", "b", "c")]
    assert generator.asked == []
    described.set()
    assert isinstance((await task)[-1], AnswerDone)


@pytest.mark.parametrize("error", [Unavailable("the store is away"), RuntimeError("a bug")])
async def test_a_prefetch_that_fails_changes_no_answer(error: Exception) -> None:
    fetcher = FakeFetcher(error)
    events = await ask(pipeline(fetcher=fetcher), inquiry())
    assert isinstance(events[-1], AnswerDone)
    assert len(fetcher.asked) == 1


async def test_prefetches_that_hang_hold_up_no_answer_and_do_not_pile_up() -> None:
    fetcher = FakeFetcher(hangs=True)
    p = pipeline(fetcher=fetcher)
    for _ in range(4):
        assert isinstance((await ask(p, inquiry()))[-1], AnswerDone)
    assert len(fetcher.asked) == 2


async def test_answers_that_reuse_nothing_fetch_nothing_in_advance() -> None:
    fetcher = FakeFetcher()
    await ask(pipeline(fetcher=fetcher), inquiry(reuse=Reuse(ReuseMode.FULL)))
    await ask(pipeline(fetcher=fetcher, reuse=ReuseMode.FULL), inquiry())
    assert fetcher.asked == []
    await ask(pipeline(fetcher=fetcher, reuse=ReuseMode.FULL), inquiry(reuse=Reuse(ReuseMode.COMPOSITE)))
    assert len(fetcher.asked) == 1


async def test_what_is_asked_of_decoding_reaches_the_generator_and_its_choice_the_caller() -> None:
    generator = FakeGenerator({WHO: "Orla Venn"}, chosen=ChosenEvent(0, 0, "orla venn", 1))
    decoding = Decoding(choose=Choice(ChoiceRule.MAJORITY))
    events = await ask(pipeline(generator), inquiry(decoding=decoding))
    assert generator.asked[0].decoding == decoding
    assert [type(event) for event in events[-4:]] == [AnswerText, ChosenEvent, AnswerUsage, AnswerDone]


async def test_what_is_computed_anew_reaches_the_generator_and_what_was_chosen_the_caller() -> None:
    chosen = SelectedEvent((1, 2), scores=(0.1, 0.5, 0.4), chunks=((TextSpan(0, 4, 0.45),), (), ()))
    generator = FakeGenerator({WHO: "Orla"}, selected=chosen)
    reuse = Reuse(ReuseMode.CACHECLIP, Recompute(0.4), Ape(0.5), Grouping.PAPER, Reading.EACH)
    events = await ask(pipeline(generator), inquiry(reuse=reuse, explain=True))
    order = generator.asked[0]
    assert (order.prefix, order.reuse, order.explain) == (None, reuse, True)
    assert events[1] == chosen


async def test_without_the_prefix_none_is_sent_and_nothing_fetched_in_advance() -> None:
    generator, fetcher = FakeGenerator({WHO: "Orla"}), FakeFetcher()
    await ask(pipeline(generator, fetcher=fetcher), inquiry(without_prefix=True))
    assert generator.asked[0].prefix == ()
    assert fetcher.asked == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reuse": "magic"}, "reuse: 'magic' is not one of full, reordered"),
        ({"recompute": recompute_pb2.Recompute(grouping=7)}, "recompute.grouping: 7"),
        ({"questions": [" "]}, "question: is empty"),
    ],
)
async def test_the_gateway_names_the_field_of_what_it_does_not_know(
    options: dict[str, Any], says: str
) -> None:
    handlers = GatewayHandlers(pipeline(), {}, 1.0, {}, FeedbackKeeper(FeedbackConfig()))
    request = rag_pb2.AnswerRequest(**{"collection": "handbook", "questions": [WHO]} | options)
    with pytest.raises(InvalidRequest) as refusal:
        [_ async for _ in handlers.Answer(request)]
    assert says in refusal.value.detail


FAR = [replace(hit("x", "Rain is expected"), similarity=0.1)]


async def test_a_question_without_evidence_gets_the_configured_text_and_the_generator_is_not_asked() -> None:
    generator, fetcher = FakeGenerator({}), FakeFetcher()
    p = pipeline(
        generator, FakeRetriever({WHO: FAR}), fetcher, refusal=RefusalConfig(text="Not in the handbook.")
    )
    events = await ask(p, inquiry(refusal=Refusal.STRICT))
    assert [type(event) for event in events] == [Retrieved, AnswerText, AnswerUsage, AnswerDone]
    assert events[1] == AnswerText(0, 0, "Not in the handbook.", FinishReason.REFUSED)
    usage = events[2]
    assert isinstance(usage, AnswerUsage)
    assert usage.usage.note == "refused: the evidence in the documents is 0.05, below 0.45 (strict)"
    assert (usage.usage.prompt_tokens, usage.usage.generated_tokens) == (0, 0)
    assert usage.timings.total_s > 0
    assert generator.asked == []
    assert fetcher.asked == []


async def test_of_several_questions_those_with_evidence_are_answered_under_their_own_numbers() -> None:
    near = [replace(h, similarity=0.9) for h in HITS]
    generator = FakeGenerator({WHEN: "in 1874"})
    retriever = FakeRetriever({WHO: FAR, WHEN: near})
    events = await ask(pipeline(generator, retriever), inquiry(WHO, WHEN, refusal=Refusal.STRICT))
    assert generator.asked[0].questions == (WHEN,)
    texts = {e.question: (e.text, e.finish_reason) for e in events if isinstance(e, AnswerText)}
    assert texts == {
        0: ("The documents do not say.", FinishReason.REFUSED),
        1: ("in 1874", FinishReason.STOP),
    }
    assert {e.question for e in events if isinstance(e, TokenEvent)} == {1}


async def test_refusal_is_off_unless_configured_and_the_request_has_the_last_word() -> None:
    for configured, asked, refused in (
        (Refusal.OFF, None, False),
        (Refusal.LENIENT, None, True),
        (Refusal.STRICT, Refusal.OFF, False),
        (Refusal.OFF, Refusal.LENIENT, True),
    ):
        generator = FakeGenerator({WHO: "Orla"})
        p = pipeline(generator, FakeRetriever({WHO: FAR}), refusal=RefusalConfig(configured))
        await ask(p, inquiry(refusal=asked))
        assert (generator.asked == []) is refused


async def test_where_nothing_is_found_a_refusal_is_an_answer() -> None:
    p = pipeline(retriever=FakeRetriever({WHO: []}))
    assert any(isinstance(e, AnswerText) for e in await ask(p, inquiry(refusal=Refusal.LENIENT)))
    with pytest.raises(NotFound):
        await ask(p, inquiry())


def test_an_unknown_refusal_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="refusal: 'maybe' is not one of off, lenient, strict"):
        INQUIRY.of(rag_pb2.AnswerRequest(refusal="maybe"))
