"""Asks: a load makes request number n out of a seed, sends it, and brings back what it cost.

``TokenLoad`` calls the generator with exact token ids; ``QuestionLoad`` asks the whole pipeline in words. The
same seed and number make the same request whatever the rate or the reuse mode.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from load_tests.service.driver import OnToken
from load_tests.service.sample import Reply
from shared.answer import AnswerDone, AnswerEvent, AnswerUsage, Inquiry, RetrievalOptions
from shared.clients.generation import GenerationClient
from shared.clients.rag import RagClient
from shared.errors import Unavailable
from shared.generation.asked import SamplingParams
from shared.generation.described import PrefilledChunk
from shared.generation.orders import AskedMode, GenerationOrder, Reuse
from shared.generation.selection import SelectionTimings
from shared.generation.told import DoneEvent, GenerationEvent, SelectedEvent, TokenEvent
from shared.measuring.asking import random_ids
from shared.request import RequestContext

Ids = tuple[int, ...]
_PREFILLED_AT_ONCE = 8
NewContext = Callable[[], RequestContext]


class Load(Protocol):
    async def ask(self, number: int, reuse: AskedMode, on_token: OnToken) -> Reply:
        """Sends request ``number`` and calls back per token.

        Raises:
            KvquiltError: it failed, or the answer was not whole.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """Lengths in tokens. A request's chunks are drawn from ``corpus`` by a Zipf law: the i-th most popular
    chunk is chosen in proportion to ``1 / i ** zipf``; 0 draws all alike. ``vocab``: ids are below it."""

    k: int = 8
    chunk_len: int = 512
    corpus: int = 64
    zipf: float = 1.0
    question_len: int = 64
    num_questions: int = 1
    num_generated: int = 16
    prefix_len: int = 16
    vocab: int = 256
    seed: int = 0


def zipf_weights(count: int, exponent: float) -> list[float]:
    return [rank**-exponent for rank in range(1, count + 1)]


class Corpus:
    """Chunks of random ids, and who is asked how often."""

    def __init__(self, plan: TokenPlan) -> None:
        self._plan = plan
        self.prefix = self._ids("prefix", plan.prefix_len)
        self.chunks = [self._ids(f"chunk {i}", plan.chunk_len) for i in range(plan.corpus)]
        self._weights = zipf_weights(plan.corpus, plan.zipf)

    def context(self, number: int) -> list[int]:
        """Indices of the ``k`` different chunks of a request, in the order in which they are placed."""
        draw = random.Random(f"{self._plan.seed} context {number}")
        # Efraimidis and Spirakis: the k largest u ** (1 / weight) are a weighted draw without replacement.
        keys = [draw.random() ** (1 / weight) for weight in self._weights]
        return sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[: self._plan.k]

    def questions(self, number: int) -> list[Ids]:
        num_questions, length = self._plan.num_questions, self._plan.question_len
        return [self._ids(f"question {number} {i}", length) for i in range(num_questions)]

    def _ids(self, name: str, length: int) -> Ids:
        return random_ids(f"{self._plan.seed} {name}", length, self._plan.vocab)


class TokenLoad:
    """``Generation.Generate`` by token ids; ``new_context`` says for whom and until when."""

    def __init__(self, client: GenerationClient, plan: TokenPlan, new_context: NewContext) -> None:
        self._client = client
        self._plan = plan
        self._new_context = new_context
        self._corpus = Corpus(plan)

    def asked(self, new_context: NewContext) -> TokenLoad:
        """The same requests, each in a context of ``new_context``."""
        return TokenLoad(self._client, self._plan, new_context)

    async def prepare(self, on_chunk: Callable[[PrefilledChunk], None]) -> None:
        """Prefills the corpus, some chunks per call."""
        for first in range(0, self._plan.corpus, _PREFILLED_AT_ONCE):
            group = self._corpus.chunks[first : first + _PREFILLED_AT_ONCE]
            context = self._new_context()
            async with aclosing(self._client.prefill(context, group, self._corpus.prefix)) as prefilled:
                async for chunk in prefilled:
                    on_chunk(chunk)

    async def ask(self, number: int, reuse: AskedMode, on_token: OnToken) -> Reply:
        order = GenerationOrder(
            chunks=tuple(self._corpus.chunks[i] for i in self._corpus.context(number)),
            questions=tuple(self._corpus.questions(number)),
            prefix=self._corpus.prefix,
            reuse=Reuse(reuse),
            sampling=SamplingParams(max_tokens=self._plan.num_generated, ignore_eos=True),
        )
        return await reply_of(self._client.generate(self._new_context(), order), on_token)


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    """``k`` 0: the service's default. ``num_generated`` 0: likewise. ``zipf``: how unequally often questions
    are asked. ``ignore_eos``: answers are as long as they may be."""

    collection: str
    questions: tuple[str, ...]
    k: int = 0
    num_questions: int = 1
    num_generated: int = 0
    zipf: float = 1.0
    seed: int = 0
    ignore_eos: bool = False


class QuestionLoad:
    """``Rag.Answer``, with one or several questions per request."""

    def __init__(self, client: RagClient, plan: QuestionPlan, new_context: NewContext) -> None:
        self.plan = plan
        self.new_context = new_context
        self._client = client
        self._weights = zipf_weights(len(plan.questions), plan.zipf)

    def asked(self, new_context: NewContext) -> QuestionLoad:
        """The same requests, each in a context of ``new_context``."""
        return QuestionLoad(self._client, self.plan, new_context)

    def questions(self, number: int) -> list[str]:
        draw = random.Random(f"{self.plan.seed} question {number}")
        return draw.choices(self.plan.questions, self._weights, k=self.plan.num_questions)

    async def ask(self, number: int, reuse: AskedMode, on_token: OnToken) -> Reply:
        inquiry = Inquiry(
            self.plan.collection,
            tuple(self.questions(number)),
            Reuse(reuse),
            SamplingParams(max_tokens=self.plan.num_generated or None, ignore_eos=self.plan.ignore_eos),
            RetrievalOptions(k=self.plan.k),
        )
        return await reply_of(self._client.answer(self.new_context(), inquiry), on_token)


async def reply_of(stream: AsyncGenerator[GenerationEvent | AnswerEvent, None], on_token: OnToken) -> Reply:
    """Returns what a whole answer cost.

    Raises:
        Unavailable: it was not whole.
    """
    tokens: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    cost: DoneEvent | AnswerUsage | None = None
    selecting: SelectionTimings | None = None
    async with aclosing(stream):
        async for event in stream:
            if isinstance(event, TokenEvent):
                on_token((event.question, event.sample))
                tokens[event.question, event.sample].append(event.token_id)
            if isinstance(event, SelectedEvent):
                selecting = event.timings
            if isinstance(event, DoneEvent | AnswerUsage):
                cost = event
            if isinstance(event, DoneEvent | AnswerDone) and cost is not None:
                in_order = tuple(tuple(tokens[branch]) for branch in sorted(tokens))
                return Reply(cost.usage, cost.timings, in_order, selecting)
    raise Unavailable("the stream ended before the answer was whole; retry")
