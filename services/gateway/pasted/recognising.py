"""Makes a context of what a caller pasted into a message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from services.gateway.config import PastedConfig
from services.gateway.pasted.chosen import ChainChooser, PastedChunk
from services.gateway.pasted.cut_out import CutOut, KnownPart, cut_out
from services.gateway.pasted.known_chunks import BORDER, Likely
from services.gateway.pasted.known_texts import DocumentSource, KnownIndex, KnownTexts
from shared.answer import Inquiry, RetrievalOptions
from shared.earlier_turns import Speaker
from shared.errors import InvalidRequest, KvquiltError
from shared.generation.described import ModelDescription
from shared.kv_types import Manifest
from shared.request import RequestContext
from shared.search import IndexedChunk, SearchHit

_MOST_DOCUMENTS = 64
_AT_ONCE = 8


class Describing(Protocol):
    async def describe(self, ctx: RequestContext) -> ModelDescription: ...


@dataclass(frozen=True, slots=True)
class RecognisedText:
    """``inquiry``: what is left of it. ``hits``: the context, in the order in which it was said."""

    inquiry: Inquiry
    hits: tuple[SearchHit, ...]


class Recognising:
    """``source`` None: no documents are known, and long text is cut all the same."""

    def __init__(self, config: PastedConfig, source: DocumentSource | None) -> None:
        self._config, self._source = config, source
        self._known = (
            None
            if source is None
            else KnownTexts(source, config.known_bytes, config.refresh_s, config.wait_s)
        )
        self._one_at_a_time = asyncio.Lock()  # messages may be long: no more than one in memory as hashes

    async def recognise(self, ctx: RequestContext, inquiry: Inquiry, model: Describing) -> RecognisedText:
        """Of the question, and of what users said in earlier turns.

        Raises:
            InvalidRequest: it is turned off, or beside what is for searches, or nothing was pasted.
        """
        self._check(inquiry)
        index = await self._known.of(ctx) if self._known is not None else None
        chooser = ChainChooser(await model.describe(ctx))
        hits: list[SearchHit] = []
        turns = list(inquiry.turns)
        for i, turn in enumerate(turns):
            if turn.speaker is Speaker.USER:
                turns[i] = replace(turn, text=await self._cut(ctx, turn.text, index, chooser, hits))
        question = await self._cut(ctx, inquiry.questions[0], index, chooser, hits)
        if not hits:
            raise InvalidRequest(
                "collection: name the collection to ask, or hand documents over; in what was said there is "
                f"neither known text nor text of {self._config.least_chars} characters beside a question"
            )
        return RecognisedText(replace(inquiry, questions=(question,), turns=tuple(turns)), tuple(hits))

    def _check(self, inquiry: Inquiry) -> None:
        if not self._config.enabled:
            raise InvalidRequest(
                "collection: name the collection to ask, or hand documents over; pasted text is not looked "
                "for (gateway.pasted.enabled)"
            )
        beside = {
            "collection": inquiry.collection,
            "documents": inquiry.documents,
            "retrieval": inquiry.retrieval != RetrievalOptions(),
            "refusal": inquiry.refusal,
        }
        for name, given in beside.items():
            if given:
                raise InvalidRequest(f"{name}: is not for questions that bring their text along (pasted)")
        if len(inquiry.questions) != 1:
            raise InvalidRequest(f"questions: with pasted there is one, got {len(inquiry.questions)}")

    async def _cut(
        self,
        ctx: RequestContext,
        text: str,
        index: KnownIndex | None,
        chooser: ChainChooser,
        hits: list[SearchHit],
    ) -> str:
        """Returns what stays of ``text``; what goes becomes ``hits``."""
        chooser.hears(text)
        if len(text) < BORDER:
            return text
        async with self._one_at_a_time:
            likely = await asyncio.to_thread(index.chunks.find, text) if index is not None else []
        manifests = await self._manifests(ctx, index, likely) if index is not None and likely else {}
        known, found = await asyncio.to_thread(_verified, text, likely, manifests, chooser)
        async with self._one_at_a_time:
            cut = await asyncio.to_thread(cut_out, text, known, self._config.least_chars)
        hits += _context(cut, found, len(hits))
        return cut.rest

    async def _manifests(
        self, ctx: RequestContext, index: KnownIndex, likely: Sequence[Likely]
    ) -> dict[int, Manifest]:
        """By the documents' numbers: as they are now, as far as the caller may read them."""
        assert self._source is not None
        source, turn = self._source, asyncio.Semaphore(_AT_ONCE)
        numbers = list(dict.fromkeys(number for one in likely for number, _ in one.alike))[:_MOST_DOCUMENTS]

        async def read(number: int) -> Manifest | None:
            name = index.names[number]
            async with turn:
                try:
                    return await source.get_manifest(ctx, name.collection, name.document_id)
                except KvquiltError:  # it is gone, or not the caller's any more, or the store is away
                    return None

        manifests = await asyncio.gather(*map(read, numbers))
        return {n: manifest for n, manifest in zip(numbers, manifests, strict=True) if manifest is not None}


def _verified(
    text: str, likely: Sequence[Likely], manifests: dict[int, Manifest], chooser: ChainChooser
) -> tuple[list[KnownPart], list[SearchHit]]:
    known: list[KnownPart] = []
    found: list[SearchHit] = []
    for one in likely:
        pasted = text[one.begin : one.end]
        candidates = [
            candidate
            for document, number in one.alike
            if document in manifests and (candidate := PastedChunk(manifests[document], number)).says(pasted)
        ]
        hit = chooser.choose(candidates, one.end) if candidates else None
        if hit is not None:
            known.append(KnownPart(one.begin, one.end, len(found)))
            found.append(hit)
    return known, found


def _context(cut: CutOut, found: Sequence[SearchHit], num_before: int) -> list[SearchHit]:
    """A piece that nobody knows is called by its place."""
    hits = []
    for i, part in enumerate(cut.taken, num_before):
        if isinstance(part, int):
            hits.append(found[part])
        else:
            hits.append(SearchHit(IndexedChunk("", part, ()), f"pasted[{i}]", "", "", 1.0))
    return hits
