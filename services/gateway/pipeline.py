"""The life of a request at the gateway: retrieve, then generate over what was retrieved.

    questions ──► search ──► fuse ──► [Retrieved] ──► generate ──► [TokenEvent …] [AnswerText …] ──►
                  [AnswerUsage] [AnswerDone] describe ──┘ (meanwhile)
                              └► prefetch of the chunks' KV (told, not waited for)

A question that brings its documents along is asked over these, and nothing is searched; one that follows
others may be searched by in other words (``follow_ups``). Questions without
evidence are answered by the configured text, if that is asked for; the generator is not told of them
(``refusal``).

A stream that ends without ``AnswerDone`` is not an answer, so every way out but that one raises.

Longer than other modules: the stages of a request are read in their order.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from services.gateway import tracing
from services.gateway.config import GatewayConfig
from services.gateway.feedback import FeedbackKeeper, GivenAnswer
from services.gateway.follow_ups import AS_ASKED, FollowUps, SearchedBy
from services.gateway.fusion import fuse
from services.gateway.handed import check_source, handed
from services.gateway.made_for import check_served, under_others
from services.gateway.pasted.recognising import Recognising
from services.gateway.ports import GeneratorPort, Retriever
from services.gateway.prefetch import Prefetching
from services.gateway.reference import AnsweredOrder
from services.gateway.refusal import refusals, renumbered
from services.gateway.regeneration import generate_or_alone
from services.gateway.shadow import Shadow
from services.gateway.sourced import Sourced
from services.gateway.together import both
from shared.answer import AnswerDone, AnswerEvent, AnswerText, AnswerUsage, Inquiry, Retrieved
from shared.earlier_turns import preface_of
from shared.errors import InvalidRequest, NotFound
from shared.generation.orders import AskedMode, GenerationOrder, may_reuse
from shared.generation.told import (
    BranchDoneEvent,
    ChosenEvent,
    DoneEvent,
    FinishReason,
    GenerationEvent,
    MarginEvent,
    MarginTokenEvent,
    SelectedEvent,
    Timings,
    TokenEvent,
    Usage,
)
from shared.patience import patiently
from shared.request import RequestContext
from shared.search import SearchMode, common_kv_context
from shared.tracing.spans import StageSpan, span, traced_stream


@dataclass(frozen=True, slots=True)
class _Found:
    """``refused``: why, by the number of the question. ``search_s``: without the time in which a generator is
    waited for. ``reuses``: stored KV may be used. ``note``: what an operator should know."""

    retrieved: Retrieved
    refused: dict[int, str]
    search_s: float
    reuses: bool = True
    note: str = ""
    searched: SearchedBy = AS_ASKED


class Pipeline:
    def __init__(
        self,
        retriever: Retriever,
        generator: GeneratorPort,
        config: GatewayConfig,
        prefetching: Prefetching,
        feedback: FeedbackKeeper | None = None,
        shadow: Shadow | None = None,
        clock: Callable[[], float] = time.monotonic,
        recognising: Recognising | None = None,
    ) -> None:
        """``recognising`` None: of pasted text no document is known."""
        self._retriever = retriever
        self._generator = generator
        self._config = config
        self._prefetching = prefetching
        self._feedback = feedback
        self._shadow = shadow
        self._clock = clock
        self._follow_ups = FollowUps(config.follow_ups, generator)
        self._recognising = recognising or Recognising(config.pasted, None)

    def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        """
        Raises:
            InvalidRequest: no collection, an empty question, or k or the number of questions beyond the
            service's limits. NotFound: no such collection, or nothing in it matches. ModelMismatch: the
            collection was made for another model. Unavailable: a service died; the same request may work
            again.
        """

        def stream(stage: StageSpan) -> AsyncGenerator[AnswerEvent, None]:
            return self._answer(stage.ctx, inquiry, tracing.AnswerTrace(stage))

        return traced_stream(ctx, tracing.ANSWERING, tracing.asked_of(inquiry), stream=stream)

    async def _answer(
        self, ctx: RequestContext, inquiry: Inquiry, trace: tracing.AnswerTrace
    ) -> AsyncGenerator[AnswerEvent, None]:
        arrived = self._clock()
        self._check(inquiry)
        trace.asks(inquiry)
        inquiry, found = await self._retrieve(ctx, inquiry)
        retrieved = found.retrieved
        yield retrieved
        for i in found.refused:
            yield AnswerText(i, 0, self._config.refusal.text, FinishReason.REFUSED)
        first_token_s = 0.0
        said: dict[int, str] = dict.fromkeys(found.refused, self._config.refusal.text)
        texts: defaultdict[tuple[int, int], str] = defaultdict(str)
        context = Sourced(inquiry.questions, retrieved.hits, found.reuses)
        async with aclosing(self._generate(ctx, inquiry, found)) as events:
            async for event in events:
                match event:
                    case TokenEvent():
                        first_token_s = first_token_s or self._since(arrived)
                        texts[event.question, event.sample] += event.text
                        yield event
                    case BranchDoneEvent():
                        said_before = texts.pop((event.question, event.sample), "")
                        text = await asyncio.to_thread(context.text, event, said_before)
                        said.setdefault(event.question, text.text)
                        yield text
                    case SelectedEvent() | ChosenEvent() | MarginTokenEvent() | MarginEvent():
                        yield event
                    case DoneEvent():
                        measured = {
                            "retrieve_s": found.search_s,
                            "first_token_s": first_token_s,
                            "total_s": self._since(arrived),
                        }
                        notes = (event.usage.note, *found.refused.values(), found.note, found.searched.note)
                        note = "; ".join(filter(None, notes))
                        trace.answered(event.usage, first_token_s, said)
                        yield AnswerUsage(
                            dataclasses.replace(found.searched.charged(event.usage), note=note),
                            dataclasses.replace(event.timings, **measured),
                        )
                        self._remember(ctx, inquiry, retrieved, said, event.usage)
                        yield AnswerDone(ctx.request_id)

    def _remember(
        self, ctx: RequestContext, inquiry: Inquiry, retrieved: Retrieved, said: dict[int, str], usage: Usage
    ) -> None:
        """So that the answer can be rated, and compared; of several samples the one that was whole first. Not
        of documents that were handed over, or pasted: nobody knows them later."""
        if inquiry.documents or inquiry.pasted:
            return
        if self._feedback is not None:
            texts = tuple(said.get(i, "") for i in range(len(inquiry.questions)))
            reuse = usage.reuse.value if usage.reuse else ""
            given = GivenAnswer(
                inquiry.collection, inquiry.questions, texts, retrieved.hits, reuse, usage.selected_tokens
            )
            self._feedback.remember(ctx.tenant, ctx.request_id, given)
        if self._shadow is not None:
            order = self._order(inquiry, retrieved, inquiry.questions)
            answered = AnsweredOrder(
                ctx.tenant,
                inquiry.collection,
                inquiry.questions[0],
                retrieved.hits,
                order,
                said.get(0, ""),
                usage,
            )
            self._shadow.consider(ctx, inquiry, answered)

    def _check(self, inquiry: Inquiry) -> None:
        check_source(inquiry)
        if not 1 <= len(inquiry.questions) <= self._config.max_questions:
            raise InvalidRequest(
                f"questions: 1 to {self._config.max_questions} are possible, got {len(inquiry.questions)}"
            )
        for i, question in enumerate(inquiry.questions):
            if not question.strip():
                where = f"questions[{i}]" if len(inquiry.questions) > 1 else "question"
                raise InvalidRequest(f"{where}: is empty")
        if inquiry.retrieval.k > self._config.max_k:
            raise InvalidRequest(f"retrieval.k: at most {self._config.max_k}, got {inquiry.retrieval.k}")

    async def _retrieve(self, ctx: RequestContext, inquiry: Inquiry) -> tuple[Inquiry, _Found]:
        """Also what is asked: without what was pasted."""
        if inquiry.pasted:
            return await self._recognise(ctx, inquiry)
        if inquiry.documents:
            return inquiry, _Found(handed(inquiry.documents), {}, 0.0, may_reuse(self._mode(inquiry)))
        return inquiry, await self._find(ctx, inquiry)

    async def _recognise(self, ctx: RequestContext, inquiry: Inquiry) -> tuple[Inquiry, _Found]:
        began, reuses = self._clock(), may_reuse(self._mode(inquiry))
        recognise = partial(self._recognising.recognise, ctx, inquiry, self._generator)
        recognised = await patiently(ctx, "recognising what was pasted", recognise)
        stored = [hit.chunk.chunk_id for hit in recognised.hits if hit.chunk.chunk_id]
        if reuses and not inquiry.without_prefix:
            self._prefetching.begin(ctx, stored)
        retrieved = Retrieved(recognised.hits, SearchMode.AUTO)
        return recognised.inquiry, _Found(retrieved, {}, self._since(began), reuses)

    async def _find(self, ctx: RequestContext, inquiry: Inquiry) -> _Found:
        began = self._clock()

        async def search() -> _Found:
            by = await self._follow_ups.searched_by(ctx, inquiry)
            retrieved, refused = await patiently(ctx, "searching", lambda: self._search(ctx, inquiry, by))
            reuses = len(refused) < len(inquiry.questions) and may_reuse(self._mode(inquiry))
            return _Found(retrieved, refused, self._since(began), reuses, searched=by)

        found, model = await both(
            search(),
            patiently(ctx, "asking which model is served", lambda: self._generator.describe(ctx)),
        )
        hits = found.retrieved.hits
        if not hits and not found.refused:
            raise NotFound(
                f"nothing in collection {inquiry.collection!r} matches; ask for less by filters or use "
                "another search mode"
            )
        check_served(inquiry.collection, hits, model)
        if found.reuses:
            return dataclasses.replace(
                found, note=under_others(inquiry.collection, hits, self._config.kv_context)
            )
        return found

    async def _search(
        self, ctx: RequestContext, inquiry: Inquiry, by: SearchedBy
    ) -> tuple[Retrieved, dict[int, str]]:
        """Also the questions to refuse, with the reason."""
        options = inquiry.retrieval
        k = options.k or self._config.k
        with span(ctx, tracing.RETRIEVING, tracing.searched_of(inquiry, k)) as stage:
            result = await self._retriever.search(
                stage.ctx, inquiry.collection, by.queries, k, options.mode, options.filters
            )
            refused = await asyncio.to_thread(  # questions may be long
                refusals, inquiry.refusal, self._config.refusal, by.queries, result.rankings
            )
            hits = self._config.order.arrange(fuse(result.rankings, k, self._config.rrf_constant))
            tracing.found_by(stage, by.queries, hits)
        answering = len(refused) < len(inquiry.questions)
        reuses = answering and may_reuse(self._mode(inquiry))
        if reuses and not inquiry.without_prefix:  # their KV without it is another
            self._prefetching.begin(ctx, [hit.chunk.chunk_id for hit in hits])
        return Retrieved(hits, result.mode, by.queries, by.follow_up), refused

    async def _generate(
        self, ctx: RequestContext, inquiry: Inquiry, found: _Found
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Over the questions that are not refused."""
        asked = [i for i in range(len(inquiry.questions)) if i not in found.refused]
        if not asked:
            yield DoneEvent(Usage(0, 0, 0, 0), Timings())
            return
        order = self._order(inquiry, found.retrieved, tuple(inquiry.questions[i] for i in asked))
        async with aclosing(generate_or_alone(partial(self._generator.generate, ctx), order, ctx)) as events:
            async for event in events:
                yield renumbered(event, asked)

    def _order(self, inquiry: Inquiry, retrieved: Retrieved, questions: tuple[str, ...]) -> GenerationOrder:
        told = preface_of(inquiry.turns, [inquiry.preface] if inquiry.preface else ())
        preface = f"{told}\n\n" if told else ""
        return GenerationOrder(
            chunks=tuple(hit.chunk.piece for hit in retrieved.hits),
            questions=tuple(f"{preface}{question}" for question in questions),
            prefix=() if inquiry.without_prefix else None,
            reuse=dataclasses.replace(inquiry.reuse, mode=self._mode(inquiry)),
            kv_context=common_kv_context(retrieved.hits),
            sampling=inquiry.sampling,
            decoding=inquiry.decoding,
            explain=inquiry.explain,
            chunk_ids=self._named(inquiry, retrieved),
            conversation=bool(inquiry.turns),
        )

    def _named(self, inquiry: Inquiry, retrieved: Retrieved) -> tuple[str, ...]:
        """For the generator's router, where there is one. Without the prefix they are other ones."""
        if inquiry.without_prefix or not self._config.names_chunks:
            return ()
        return tuple(hit.chunk.chunk_id for hit in retrieved.hits)

    def _mode(self, inquiry: Inquiry) -> AskedMode:
        return inquiry.reuse.mode or self._config.reuse

    def _since(self, instant: float) -> float:
        return self._clock() - instant
