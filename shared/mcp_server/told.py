"""Describes what the tools tell: values of the system as models of other programs read them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pydantic import BaseModel, Field

from shared.answer import AnswerEvent, AnswerText, AnswerUsage, Retrieved
from shared.documents import DocumentInfo, DocumentPage
from shared.errors import Unavailable
from shared.generation.told import FinishReason
from shared.search import SearchHit, SearchResult


class ToldPassage(BaseModel):
    """A chunk that was found."""

    document_id: str
    title: str
    heading: str
    chunk_id: str
    text: str
    score: float = Field(description="Larger is better; comparable within one answer only.")


class ToldPassages(BaseModel):
    collection: str
    search: str = Field(description="How it was searched: dense, bm25 or hybrid.")
    passages: list[ToldPassage] = Field(description="Best first.")


class ToldCitation(BaseModel):
    """A document that the answer was read from."""

    document_id: str
    title: str
    heading: str
    block_heading: str
    chunk_id: str
    source: int = Field(description="Its place in `sources`, from 0.")
    conditioned_on: str = Field(description="What its KV knows besides, that was not retrieved.")


class ToldAnswer(BaseModel):
    text: str
    refused: bool = Field(description="The documents hold too little evidence: nothing was generated.")
    truncated: bool = Field(description="It is longer than it was allowed to be.")
    citations: list[ToldCitation] = Field(description="Best first.")
    sources: list[ToldPassage] = Field(description="The context of the answer, in order.")
    mode: str | None = Field(description="How the context's KV was reused.")
    note: str = Field(description="Why that is not what was asked for.")
    prompt_tokens: int
    cached_tokens: int = Field(description="Those of the prompt whose KV was not computed.")
    generated_tokens: int
    request_id: str


class ToldDocument(BaseModel):
    collection: str
    document_id: str
    title: str
    num_chunks: int
    current: bool = Field(description="False: made for another model; it cannot be asked about.")


class ToldDocuments(BaseModel):
    documents: list[ToldDocument]
    next: str | None = Field(description="There are more: give this as `start_after`.")


def found(collection: str, result: SearchResult) -> ToldPassages:
    """Of one query."""
    (ranking,) = result.rankings
    return ToldPassages(collection=collection, search=result.mode.value, passages=list(map(passage, ranking)))


def passage(hit: SearchHit) -> ToldPassage:
    return ToldPassage(
        document_id=hit.document_id,
        title=hit.title,
        heading=hit.chunk.heading,
        chunk_id=hit.chunk.chunk_id,
        text=hit.chunk.text,
        score=hit.score,
    )


async def answered(request_id: str, events: AsyncGenerator[AnswerEvent, None]) -> ToldAnswer:
    """Of one question.

    Raises:
        Unavailable: they ended before the answer was whole.
    """
    hits: Sequence[SearchHit] = ()
    text: AnswerText | None = None
    cost: AnswerUsage | None = None
    async with aclosing(events):
        async for event in events:
            match event:
                case Retrieved():
                    hits = event.hits
                case AnswerText():
                    text = event
                case AnswerUsage():
                    cost = event
    if text is None or cost is None:
        raise Unavailable("the answer broke off; retry")
    usage = cost.usage
    return ToldAnswer(
        text=text.text.strip(),
        refused=text.finish_reason is FinishReason.REFUSED,
        truncated=text.finish_reason is FinishReason.LENGTH,
        citations=[
            ToldCitation(
                document_id=cited.document_id,
                title=cited.title,
                heading=cited.heading,
                block_heading=cited.block_heading,
                chunk_id=cited.chunk_id,
                source=cited.hit,
                conditioned_on=cited.conditioned_on,
            )
            for cited in text.citations
        ],
        sources=list(map(passage, hits)),
        mode=str(usage.reuse) if usage.reuse else None,
        note=usage.note,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.reused_tokens,
        generated_tokens=usage.generated_tokens,
        request_id=request_id,
    )


def documents(collection: str, page: DocumentPage) -> ToldDocuments:
    return ToldDocuments(
        documents=list(map(_document, page.documents)),
        next=page.after(collection) if page.truncated else None,
    )


def _document(info: DocumentInfo) -> ToldDocument:
    return ToldDocument(
        collection=info.collection,
        document_id=info.document_id,
        title=info.title,
        num_chunks=info.num_chunks,
        current=info.current,
    )
