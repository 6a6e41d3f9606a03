"""Has the callers of a soak: some ask, some bring and remove documents, and each knows what it may be
told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from load_tests.benchmark import Violation
from load_tests.cluster_soak.fault import ASKS, WRITES
from load_tests.cluster_soak.ledger import FaultLedger
from shared.answer import AnswerDone, AnswerText, Inquiry, RetrievalOptions
from shared.clients.ingest import IngestClient
from shared.clients.rag import RagClient
from shared.clients.retrieval import RetrievalClient
from shared.documents import SourceDocument, Stage
from shared.errors import KvquiltError, NotFound
from shared.generation.asked import SamplingParams
from shared.generation.told import TokenEvent
from shared.request import RequestContext
from shared.status import from_code

DEADLINE_S, LATE_S = 90.0, 15.0
"""Of every call, and how long after it a call is called stuck."""
_LONG_TOKENS = 300
_MOST_DOCUMENTS = 12
PAUSE_S = 0.1
_K = 3
_FOUND_AMONG = 50
_SYLLABLES = ("al", "ber", "dor", "fen", "gal", "hal", "lun", "mar", "ros", "tam", "vel", "wes")


class SoakCaller(Protocol):
    kind: str
    number: int

    async def step(self) -> None:
        """
        Raises:
            KvquiltError: a call failed. Violation: it was answered wrongly.
        """
        ...


async def work(
    worker: SoakCaller, ledger: FaultLedger, until: Callable[[], bool], pause_s: float = PAUSE_S
) -> None:
    """``pause_s``: between its calls.

    Raises:
        Violation: a call was answered wrongly, failed for good, or hung.
    """
    while not until():
        began_s = ledger.now()
        try:
            async with asyncio.timeout(DEADLINE_S + LATE_S):
                await worker.step()
            ledger.success(worker.kind, worker.number, began_s)
        except TimeoutError:
            raise Violation(f"{worker.kind}: a call hung for {ledger.now() - began_s:.0f} s") from None
        except KvquiltError as error:
            ledger.failure(worker.kind, error)
        await asyncio.sleep(pause_s)


@dataclass(slots=True)
class Asker:
    """``expected``: the answer of each question, as it was before anything happened."""

    number: int
    client: RagClient
    collection: str
    expected: Mapping[str, str]
    rng: random.Random
    kind: str = ASKS

    async def step(self) -> None:
        """A short answer, which must be as it always was, or a long one, of which no token may be missing."""
        question = self.rng.choice(sorted(self.expected))
        if self.rng.random() < 0.5:
            await self._long(question)
        elif (said := await answer_of(self.client, self.collection, question)) != self.expected[question]:
            raise Violation(f"{question!r} was answered {said!r} instead of {self.expected[question]!r}")

    async def _long(self, question: str) -> None:
        sampling = SamplingParams(max_tokens=_LONG_TOKENS, ignore_eos=True)
        inquiry = Inquiry(
            self.collection, (question,), sampling=sampling, retrieval=RetrievalOptions(_K), no_shadow=True
        )
        num_tokens, done = 0, False
        async with aclosing(self.client.answer(_ctx(), inquiry)) as events:
            async for event in events:
                num_tokens += isinstance(event, TokenEvent)
                done = done or isinstance(event, AnswerDone)
        if not done or num_tokens != _LONG_TOKENS:
            raise Violation(f"an answer ended well after {num_tokens} of {_LONG_TOKENS} tokens")


async def answer_of(client: RagClient, collection: str, question: str) -> str:
    inquiry = Inquiry(collection, (question,), retrieval=RetrievalOptions(_K), no_shadow=True)
    texts: list[str] = []
    async with aclosing(client.answer(_ctx(), inquiry)) as events:
        async for event in events:
            if isinstance(event, AnswerText):
                texts.append(event.text)
            elif isinstance(event, AnswerDone):
                return texts[0]
    raise Violation("an answer ended well without its end")


@dataclass(slots=True)
class Writer:
    """Brings documents of its own, changes and removes them. ``allowed``: by document, the mayors that its
    text may name; None among them: it may be absent. More than one after a call whose end is not known."""

    number: int
    ingest: IngestClient
    retrieval: RetrievalClient
    collection: str
    rng: random.Random
    kind: str = WRITES
    allowed: dict[str, set[str | None]] = field(default_factory=dict)

    async def step(self) -> None:
        if len(self.allowed) >= _MOST_DOCUMENTS or (self.allowed and self.rng.random() < 0.2):
            await self._remove(self.rng.choice(sorted(self.allowed)))
        elif self.allowed and self.rng.random() < 0.3:
            await self._bring(self.rng.choice(sorted(self.allowed)))
        else:
            await self._bring(f"{_name(self.rng)}-{self.number}.md".lower())

    async def _bring(self, document_id: str) -> None:
        mayor = _name(self.rng)
        document = SourceDocument(document_id, _text_of(document_id, mayor).encode())
        may_be = self.allowed.setdefault(document_id, {None})
        may_be.add(mayor)
        async with aclosing(self.ingest.upsert(_ctx(), self.collection, [document])) as progress:
            async for event in progress:
                if event.stage is Stage.FAILED:
                    raise from_code(event.error_code, event.error)
        self.allowed[document_id] = {mayor}

    async def _remove(self, document_id: str) -> None:
        self.allowed[document_id].add(None)
        deleted = await self.ingest.delete(_ctx(), self.collection, [document_id])
        if deleted.not_found and None not in self.allowed[document_id]:
            raise Violation(f"document {document_id} was acknowledged, and was not there to be removed")
        del self.allowed[document_id]

    async def check(self) -> int:
        """How many documents are there that must be. Those that a call left halfway, brought or removed, are
        brought again first, as nothing that failed may stand in the way of that. Nothing may be under way.

        Raises:
            Violation: one that was acknowledged is not there, or cannot be found by what it says now.
            KvquiltError: a call failed.
        """
        await self._check_allowed()
        for document_id in [d for d, mayors in self.allowed.items() if None in mayors]:
            await self._bring(document_id)
        await self._check_allowed()
        return len(self.allowed)

    async def _check_allowed(self) -> None:
        try:
            listed = {d.document_id async for d in self.ingest.list(_ctx(), self.collection)}
        except NotFound:
            listed = set()
        for document_id, mayors in self.allowed.items():
            if document_id not in listed:
                if None not in mayors:
                    raise Violation(f"document {document_id} was acknowledged, and is not there")
                continue
            text = await self._indexed(document_id)
            if not text and None in mayors:
                continue  # it is found after it is stored, and ceases to be found before it is removed
            if not any(mayor and f"is {mayor}." in text for mayor in mayors):
                raise Violation(
                    f"document {document_id} is not found by what was acknowledged of it: "
                    f"{sorted(map(str, mayors))}, but it says {text!r}"
                )

    async def _indexed(self, document_id: str) -> str:
        """The text of the document's chunks among the best hits."""
        query = _text_of(document_id, "")
        (hits,) = (await self.retrieval.search(_ctx(), self.collection, [query], _FOUND_AMONG)).rankings
        return "\n".join(hit.chunk.text for hit in hits if hit.document_id == document_id)


def _text_of(document_id: str, mayor: str) -> str:
    town = document_id.partition("-")[0].capitalize()
    return f"# {town}\n\nThe mayor of {town} is {mayor}.\n\nMarket day in {town} is Monday.\n"


def _name(rng: random.Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(5)).capitalize()


def _ctx() -> RequestContext:
    return RequestContext.create(deadline_ms=int(DEADLINE_S * 1000))
