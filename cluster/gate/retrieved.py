"""Finds, in a running system, what would be retrieved for each of an operator's questions, and the
documents that it comes from, so that the questions can be asked without the system."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.gate.questions import OwnQuestion
from shared.errors import InvalidRequest, NotFound
from shared.identity import digest
from shared.kv_types import Manifest
from shared.request import RequestContext
from shared.search import CollectionInfo, ContextOrder, Filter, FilterOp, SearchHit, SearchMode, SearchResult

_AT_ONCE = 16


class Searcher(Protocol):
    """The part of ``shared.clients.retrieval.RetrievalClient`` that is used here."""

    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int,
        mode: SearchMode,
        filters: Sequence[Filter],
    ) -> SearchResult: ...

    async def list_collections(self, ctx: RequestContext) -> list[CollectionInfo]: ...


class Manifests(Protocol):
    """The part of ``shared.clients.kv_store.KvStoreClient`` that is used here."""

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest: ...


@dataclass(frozen=True, slots=True)
class OwnSubject:
    """A question, and the chunks that were retrieved for it, in the order of its context: ids of documents
    and numbers of chunks in them, from 0. ``texts``: of these chunks."""

    number: int
    question: OwnQuestion
    hits: tuple[tuple[str, int], ...]
    texts: tuple[str, ...]

    def kind_name(self, kind: str) -> str:
        return kind


@dataclass(frozen=True, slots=True)
class RetrievedQuestions:
    """``subjects`` in random order, so that the first of them stand for all; ``documents``: by id, those
    that some of them need. ``left_out``: how many found nothing."""

    subjects: tuple[OwnSubject, ...]
    documents: Mapping[str, Manifest]
    left_out: int = 0

    @property
    def digest(self) -> str:
        """Of all that answers depend on."""
        parts = [
            repr((one.number, one.question, one.hits, one.texts)).encode("utf-8", "surrogatepass")
            for one in self.subjects
        ]
        return digest(*parts)


async def retrieve(
    ctx: RequestContext,
    searcher: Searcher,
    store: Manifests,
    collection: str,
    questions: Sequence[OwnQuestion],
    k: int,
    seed: int = 0,
    order: ContextOrder = ContextOrder.BEST_FIRST,
) -> RetrievedQuestions:
    """
    Raises:
        NotFound: there is no such collection.
        InvalidRequest: for no question anything was found.
    """
    rankings = await _search(ctx, searcher, collection, questions, k)
    needed = {hit.document_id for hits in rankings for hit in hits}
    documents = {i: await store.get_manifest(ctx, collection, i) for i in sorted(needed)}
    places = {
        (document_id, chunk.chunk_id): number
        for document_id, manifest in documents.items()
        for number, chunk in enumerate(manifest.chunks)
    }
    subjects = []
    for number, (question, hits) in enumerate(zip(questions, rankings, strict=True)):
        known = [hit for hit in order.arrange(hits) if (hit.document_id, hit.chunk.chunk_id) in places]
        if known:
            found = tuple((hit.document_id, places[hit.document_id, hit.chunk.chunk_id]) for hit in known)
            subjects.append(OwnSubject(number, question, found, tuple(hit.chunk.text for hit in known)))
    if not subjects:
        raise InvalidRequest(
            f"--questions: nothing in collection {collection!r} was found for any of {len(questions)} "
            "questions; name the documents' collection by -c, or documents that are there in the questions"
        )
    random.Random(f"{seed} order of questions").shuffle(subjects)
    return RetrievedQuestions(tuple(subjects), documents, len(questions) - len(subjects))


async def only_collection(ctx: RequestContext, searcher: Searcher) -> str:
    """
    Raises:
        NotFound: nothing is ingested. InvalidRequest: there are several.
    """
    names = [one.name for one in await searcher.list_collections(ctx)]
    if not names:
        raise NotFound(
            "--questions: no document is ingested; run `kvquilt ingest DIRECTORY --collection NAME`"
        )
    if len(names) > 1:
        raise InvalidRequest(f"--questions: name the collection by -c, one of {', '.join(sorted(names))}")
    return names[0]


async def _search(
    ctx: RequestContext, searcher: Searcher, collection: str, questions: Sequence[OwnQuestion], k: int
) -> list[tuple[SearchHit, ...]]:
    """Of each question its ranking; those that search the same documents at once."""
    by_documents: dict[tuple[str, ...], list[int]] = {}
    for number, question in enumerate(questions):
        by_documents.setdefault(question.documents, []).append(number)
    found: dict[int, tuple[SearchHit, ...]] = {}
    for ids, numbers in by_documents.items():
        filters = [Filter("document_id", FilterOp.IN, ids)] if ids else []
        for start in range(0, len(numbers), _AT_ONCE):
            batch = numbers[start : start + _AT_ONCE]
            texts = [questions[number].question for number in batch]
            result = await searcher.search(ctx, collection, texts, k, SearchMode.AUTO, filters)
            found |= zip(batch, result.rankings, strict=True)
    return [found[number] for number in range(len(questions))]
