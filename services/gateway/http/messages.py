"""Makes the messages of RPCs that do the same as a call over HTTP, without contents: for the limits, which
are checked by it, and for the record."""

from __future__ import annotations

from collections.abc import Sequence

from protos.kvquilt.v1 import ingest_pb2, kv_store_pb2, rag_pb2, retrieval_pb2
from services.gateway.kept.searching import StoreSearch
from shared.feedback import Feedback
from shared.wire.feedback import FEEDBACK
from shared.wire.retrieval import FILTER

WireRequest = (
    retrieval_pb2.EmbedRequest
    | retrieval_pb2.SearchRequest
    | ingest_pb2.UpsertRequest
    | ingest_pb2.DeleteDocumentsRequest
    | ingest_pb2.ListDocumentsRequest
    | kv_store_pb2.PutItemRequest
    | kv_store_pb2.DeleteItemRequest
    | kv_store_pb2.StatsRequest
    | rag_pb2.StatusRequest
    | rag_pb2.FeedbackRequest
)


def asking_state() -> rag_pb2.StatusRequest:
    return rag_pb2.StatusRequest()


def asking_tiers() -> kv_store_pb2.StatsRequest:
    return kv_store_pb2.StatsRequest()


def rating(feedback: Feedback) -> rag_pb2.FeedbackRequest:
    return FEEDBACK.to_pb(feedback)


def embedding(texts: Sequence[str], queries: bool) -> retrieval_pb2.EmbedRequest:
    return retrieval_pb2.EmbedRequest(texts=texts, queries=queries)


def searching(asked: StoreSearch) -> retrieval_pb2.SearchRequest:
    return retrieval_pb2.SearchRequest(
        collection=asked.store_id,
        queries=asked.queries,
        k=asked.num,
        filters=map(FILTER.to_pb, asked.filters),
    )


def listing(store_id: str = "", start_after: str = "") -> ingest_pb2.ListDocumentsRequest:
    """``store_id`` empty: of all."""
    return ingest_pb2.ListDocumentsRequest(collection=store_id, start_after=start_after)


def upserting(store_id: str, file_ids: Sequence[str]) -> ingest_pb2.UpsertRequest:
    documents = [ingest_pb2.SourceDocument(document_id=file_id) for file_id in file_ids]
    return ingest_pb2.UpsertRequest(collection=store_id, documents=documents)


def deleting(store_id: str, file_ids: Sequence[str] = ()) -> ingest_pb2.DeleteDocumentsRequest:
    """``file_ids`` empty: everything."""
    return ingest_pb2.DeleteDocumentsRequest(collection=store_id, document_ids=file_ids, all=not file_ids)


def keeping(kind: str) -> kv_store_pb2.PutItemRequest:
    """Its id is not known before it is kept."""
    return kv_store_pb2.PutItemRequest(item=kv_store_pb2.Item(kind=kind))


def dropping(kind: str, item_id: str) -> kv_store_pb2.DeleteItemRequest:
    return kv_store_pb2.DeleteItemRequest(kind=kind, id=item_id)
