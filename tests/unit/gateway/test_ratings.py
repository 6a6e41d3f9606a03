"""Whose ratings are told to whom."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.ratings import readable_ratings
from shared.feedback import RatedAnswer, Rating
from shared.principals.principal import Principal, Role
from shared.request import RequestContext


class Documents:
    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        return [chunk_id for chunk_id in chunk_ids if chunk_id in ctx.principal.groups]


def rated(*chunk_ids: str) -> RatedAnswer:
    documents = tuple(f"{chunk_id}.txt" for chunk_id in chunk_ids)
    of = ("r", 0, Rating.GOOD, "", "books", "who?", "she", "composite", 0.1)
    return RatedAnswer(*of, chunk_ids, documents, 1.0)


def by(*groups: str) -> RequestContext:
    who = Principal("somebody", "t", frozenset([Role.WRITER]), frozenset(groups))
    return RequestContext.create(principal=who)


async def test_one_is_told_of_answers_of_whose_chunks_he_may_read_all() -> None:
    ratings = [rated("a"), rated("a", "b"), rated("b"), rated()]
    assert await readable_ratings(by("a"), ratings, Documents()) == [ratings[0], ratings[3]]
    assert await readable_ratings(by("a", "b"), ratings, Documents()) == ratings
    assert await readable_ratings(by("*"), ratings, None) == ratings
    assert await readable_ratings(RequestContext.create(), ratings, None) == ratings


async def test_where_nobody_knows_the_documents_nobody_is_told_but_who_reads_everything() -> None:
    assert await readable_ratings(by("a"), [rated("a")], None) == []
