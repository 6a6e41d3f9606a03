"""Puts an answer together from the events of its stream."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass

from shared.answer import AnswerDone, AnswerEvent, AnswerText, AnswerUsage, Citation, Retrieved
from shared.search import SearchHit


@dataclass(frozen=True, slots=True)
class RagAnswer:
    """``texts``: of every question and sample, in the order in which they ended. ``hits``: the context, in
    the order in which it stood there. ``request_id``: by which the answer is rated."""

    request_id: str
    texts: tuple[AnswerText, ...]
    hits: tuple[SearchHit, ...] = ()
    usage: AnswerUsage | None = None

    @property
    def text(self) -> str:
        """The first sample of the first question."""
        return self._first.text

    @property
    def citations(self) -> tuple[Citation, ...]:
        """Its sources, the best first."""
        return self._first.citations

    @property
    def _first(self) -> AnswerText:
        return min(self.texts, key=lambda text: (text.question, text.sample))


async def collected(events: AsyncIterable[AnswerEvent]) -> RagAnswer:
    texts: list[AnswerText] = []
    hits: tuple[SearchHit, ...] = ()
    usage, request_id = None, ""
    async for event in events:
        match event:
            case Retrieved():
                hits = event.hits
            case AnswerText():
                texts.append(event)
            case AnswerUsage():
                usage = event
            case AnswerDone():
                request_id = event.request_id
    return RagAnswer(request_id, tuple(texts), hits, usage)
