"""What is asked: a load makes request number n out of a seed, sends it, and brings back what it cost.

``TokenLoad`` calls the generator with exact token ids; ``QuestionLoad`` asks the whole pipeline in words. The
same seed and number make the same request whatever the rate or the reuse mode.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from load_tests.service.driver import OnToken
from load_tests.service.sample import Reply
from shared.answer import AnswerDone, AnswerUsage, Inquiry, RetrievalOptions
from shared.clients.generation import GenerationClient
from shared.clients.rag import RagClient
from shared.errors import Unavailable
from shared.generation.asked import SamplingParams
from shared.generation.described import PrefilledChunk
from shared.generation.modes import ReuseMode
from shared.generation.orders import AskedMode, GenerationOrder, Reuse
from shared.generation.told import DoneEvent, TokenEvent
from shared.request import RequestContext

Ids = tuple[int, ...]
FULL = ReuseMode.FULL
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


class Corpus:
    """Chunks of random ids, and who is asked how often."""

    def __init__(self, plan: TokenPlan) -> None:
        self._plan = plan
        noise = random.Random(plan.seed)
        self.prefix = self._ids(noise, plan.prefix_len)
        self.chunks = [self._ids(noise, plan.chunk_len) for _ in range(plan.corpus)]
        self._weights = [(i + 1) ** -plan.zipf for i in range(plan.corpus)]

    def context(self, number: int) -> list[int]:
        """Indices of the ``k`` different chunks of a request, in the order in which they are placed."""
        draw = random.Random(f"{self._plan.seed} context {number}")
        # Efraimidis and Spirakis: the k largest u ** (1 / weight) are a weighted draw without replacement.
        keys = [draw.random() ** (1 / weight) for weight in self._weights]
        return sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[: self._plan.k]

    def questions(self, number: int) -> list[Ids]:
        noise = random.Random(f"{self._plan.seed} question {number}")
        return [self._ids(noise, self._plan.question_len) for _ in range(self._plan.num_questions)]

    def _ids(self, noise: random.Random, length: int) -> Ids:
        return tuple(noise.randrange(self._plan.vocab) for _ in range(length))


class TokenLoad:
    """``Generation.Generate`` by token ids; ``new_context`` says for whom and until when."""

    def __init__(self, client: GenerationClient, plan: TokenPlan, new_context: NewContext) -> None:
        self._client = client
        self._plan = plan
        self._new_context = new_context
        self._corpus = Corpus(plan)

    async def prepare(self, on_chunk: Callable[[PrefilledChunk], None], at_once: int = 8) -> None:
        """Prefills the corpus, ``at_once`` chunks per call."""
        refs = iter(self._corpus.chunks)
        while group := list(itertools.islice(refs, at_once)):
            async with aclosing(
                self._client.prefill(self._new_context(), group, self._corpus.prefix)
            ) as prefilled:
                async for chunk in prefilled:
                    on_chunk(chunk)

    async def ask(self, number: int, reuse: AskedMode, on_token: OnToken) -> Reply:
        return await self.generate(number, reuse, on_token, self._plan.num_generated)

    async def generate(self, number: int, reuse: AskedMode, on_token: OnToken, num_generated: int) -> Reply:
        order = GenerationOrder(
            chunks=tuple(self._corpus.chunks[i] for i in self._corpus.context(number)),
            questions=tuple(self._corpus.questions(number)),
            prefix=self._corpus.prefix,
            reuse=Reuse(reuse),
            sampling=SamplingParams(max_tokens=num_generated, ignore_eos=True),
        )
        stream = self._client.generate(self._new_context(), order)
        tokens: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        async with aclosing(stream):
            async for event in stream:
                if isinstance(event, TokenEvent):
                    on_token((event.question, event.sample))
                    tokens[event.question, event.sample].append(event.token_id)
                elif isinstance(event, DoneEvent):
                    return Reply(event.usage, event.timings, _in_order(tokens))
        raise Unavailable("the stream ended before the answer was whole; retry")


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    """``k`` 0: the service's default. ``num_generated`` 0: likewise. ``zipf``: how unequally often questions
    are asked."""

    collection: str
    questions: tuple[str, ...]
    k: int = 0
    num_questions: int = 1
    num_generated: int = 0
    zipf: float = 1.0
    seed: int = 0


class QuestionLoad:
    """``Rag.Answer``, with one or several questions per request."""

    def __init__(self, client: RagClient, plan: QuestionPlan, new_context: NewContext) -> None:
        self._client = client
        self._plan = plan
        self._new_context = new_context
        self._weights = [(i + 1) ** -plan.zipf for i in range(len(plan.questions))]

    def questions(self, number: int) -> list[str]:
        draw = random.Random(f"{self._plan.seed} question {number}")
        return draw.choices(self._plan.questions, self._weights, k=self._plan.num_questions)

    async def ask(self, number: int, reuse: AskedMode, on_token: OnToken) -> Reply:
        inquiry = Inquiry(
            self._plan.collection,
            tuple(self.questions(number)),
            Reuse(reuse),
            SamplingParams(max_tokens=self._plan.num_generated or None),
            RetrievalOptions(k=self._plan.k),
        )
        stream = self._client.answer(self._new_context(), inquiry)
        tokens: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        cost: AnswerUsage | None = None
        async with aclosing(stream):
            async for event in stream:
                match event:
                    case TokenEvent():
                        on_token((event.question, event.sample))
                        tokens[event.question, event.sample].append(event.token_id)
                    case AnswerUsage():
                        cost = event
                    case AnswerDone() if cost is not None:
                        return Reply(cost.usage, cost.timings, _in_order(tokens))
        raise Unavailable("the stream ended before the answer was whole; retry")


def _in_order(tokens: defaultdict[tuple[int, int], list[int]]) -> tuple[Ids, ...]:
    return tuple(tuple(tokens[branch]) for branch in sorted(tokens))
