"""Asks: all questions about one context at once, in every arm, and scores the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster.evaluation.arms import FULL, EvalArm
from load_tests.reading.articles import Article
from load_tests.reading.contexts import ArticleCutter, ArticleShape, ReadingContext
from services.ingestion.chunker import TextChunk
from shared.engine import Engine, EngineConfig, load_model
from shared.errors import ConfigError, InvalidRequest
from shared.generation.asked import GenerateRequest, SamplingParams
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import DoneEvent, Event, TokenEvent
from shared.measuring.paired import divergence
from shared.measuring.squad import score
from shared.prompt import PromptTokenizer
from shared.prompt_config import PromptConfig
from shared.selection.auxiliary import load_auxiliary
from shared.selection.selector import Selector
from shared.selection.spans import SpanTokenizer

TOP = 64
"""Tokens whose probabilities are compared one by one."""


@dataclass(frozen=True, slots=True)
class ReadingAnswer:
    """
    mode: label of the arm. number: of the question in its context.
    kl: divergence of the first token's distribution from that of ``full``, in nats, over the ``TOP`` tokens
    that are likeliest there and the rest as one.
    ttft_s: until the first token of the request, which asks all questions of the context at once and finds
    all KV that is stored resident; what an auxiliary model takes is not in it.
    """

    mode: str
    context: int
    number: int
    article: int
    question: str
    text: str
    exact: bool
    contains: bool
    f1: float
    kl: float
    num_tokens: int
    ttft_s: float


@dataclass(frozen=True, slots=True)
class _Reply:
    """Of one request. ``first``: of each question, its first token."""

    texts: tuple[str, ...]
    first: tuple[TokenEvent, ...]
    done: DoneEvent


class ReadingBench:
    def __init__(
        self,
        model: str,
        prompt: PromptConfig,
        shape: ArticleShape,
        config: EngineConfig,
        max_tokens: int,
        auxiliary: str = "",
    ) -> None:
        """
        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: one of the models cannot be used; says why.
        """
        prompts = PromptTokenizer.of_model(model, prompt)
        if prompts is None:
            raise ConfigError(f"--model: {model} has no tokenizer; its questions are text")
        loaded = load_model(model, dtype=config.dtype, device=config.device, weights=config.weights)
        loaded.end_also_at(prompts.end_ids)
        self.prompts, self.fingerprint = prompts, loaded.fingerprint
        self.cutter = ArticleCutter(prompts, shape, ("", loaded.fingerprint, prompts.prefix_ids))
        self._engine = Engine(loaded, config, decode=prompts.decode)
        self._sampling = SamplingParams(max_tokens=max_tokens)
        self._selector = None
        if auxiliary:
            self._selector = Selector(load_auxiliary(auxiliary), SpanTokenizer(prompts, model))

    def close(self) -> None:
        self._engine.shut_down()

    def ask(
        self, context: ReadingContext, article: Article, cut: Sequence[TextChunk], arms: Sequence[EvalArm]
    ) -> Iterator[ReadingAnswer]:
        """``arms``: ``FULL`` among them, with which the others are compared.

        Raises:
            KvquiltError: a request failed.
        """
        questions = tuple(self.prompts.encode_question(question.text) for question in context.questions)
        asked = GenerateRequest("", self.prompts.prefix_ids, (), questions, sampling=self._sampling)
        isolated = tuple(self.cutter.isolated(cut[i]) for i in context.chunks)
        best = replace(self._sampling, top_logprobs=TOP)
        full = self._reply(replace(asked, chunks=isolated, reuse=ReuseMode.FULL, sampling=best), FULL)
        top = [dict(event.top_logprobs) for event in full.first]
        watched = tuple(sorted({token_id for of_question in top for token_id in of_question}))
        watching = replace(self._sampling, watch_ids=watched)
        for arm in arms:
            reply = full
            if arm != FULL:
                request = self._request(replace(asked, sampling=watching), context, article, cut, arm)
                reply = self._reply(request, arm)
            for i, question in enumerate(context.questions):
                told = dict(zip(watched, reply.first[i].watched, strict=True)) if arm != FULL else top[i]
                scored = score(reply.texts[i], question.answers)
                yield ReadingAnswer(
                    arm.label,
                    context.number,
                    i,
                    context.article,
                    question.text,
                    reply.texts[i],
                    scored.exact,
                    scored.contains,
                    scored.f1,
                    divergence(top[i], told),
                    sum(len(cut[j].token_ids) for j in context.chunks) if arm.mode else 0,
                    reply.done.timings.engine_ttft_s,
                )

    def _request(
        self,
        asked: GenerateRequest,
        context: ReadingContext,
        article: Article,
        cut: Sequence[TextChunk],
        arm: EvalArm,
    ) -> GenerateRequest:
        """``links``: everything that the context's chunks may be computed behind; what is not, is not
        touched."""
        if arm.mode is None or arm.context is None:
            return replace(asked, reuse=ReuseMode.FULL)
        chained, headers = self.cutter.chained(article, cut, arm.context)
        mode, recompute = arm.mode, Recompute(arm.ratio)
        if mode.deferred:
            mode, recompute = ReuseMode.TOKENS, self._selected(context, cut, arm)
        return replace(
            asked,
            chunks=tuple(chained[i] for i in context.chunks),
            links=(*headers, *chained),
            reuse=mode,
            recompute=recompute,
        )

    def _selected(self, context: ReadingContext, cut: Sequence[TextChunk], arm: EvalArm) -> Recompute:
        if self._selector is None or arm.ratio is None:
            raise InvalidRequest(f"--modes: {arm.mode} needs an auxiliary model; name one by --auxiliary")
        around = self.prompts.template.chunk
        paired = [
            self._selector.pair(around.replace("{text}", cut[i].text), cut[i].token_ids)
            for i in context.chunks
        ]
        segments = self._selector.encode(paired)
        chosen = [
            self._selector.select(paired, segments, question.text, arm.ratio)
            for question in context.questions
        ]
        return Recompute(
            by_question=tuple(tuple(np.flatnonzero(np.concatenate(one.chosen)).tolist()) for one in chosen)
        )

    def _reply(self, request: GenerateRequest, arm: EvalArm) -> _Reply:
        events = list(self._engine.generate(replace(request, request_id=arm.label)))
        by_question = [_tokens(events, i) for i in range(len(request.questions))]
        ends = self._engine.model.spec.eos_ids
        texts = [
            self.prompts.decode([event.token_id for event in tokens if event.token_id not in ends]).strip()
            for tokens in by_question
        ]
        done = events[-1]
        assert isinstance(done, DoneEvent)
        return _Reply(tuple(texts), tuple(tokens[0] for tokens in by_question), done)


def _tokens(events: Sequence[Event], question: int) -> list[TokenEvent]:
    return [event for event in events if isinstance(event, TokenEvent) and event.question == question]
