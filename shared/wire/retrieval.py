"""What is searched, indexed and found, as messages."""

from __future__ import annotations

from protos.kvquilt.v1 import retrieval_pb2
from shared.search import Filter, FilterOp, IndexedChunk, IndexedDocument, SearchHit, SearchMode

_PB_MODE = {
    SearchMode.AUTO: retrieval_pb2.SEARCH_MODE_UNSPECIFIED,
    SearchMode.DENSE: retrieval_pb2.SEARCH_MODE_DENSE,
    SearchMode.BM25: retrieval_pb2.SEARCH_MODE_BM25,
    SearchMode.HYBRID: retrieval_pb2.SEARCH_MODE_HYBRID,
}
_MODE = {pb: mode for mode, pb in _PB_MODE.items()}
_PB_OP = {
    FilterOp.EQ: retrieval_pb2.Filter.OP_EQ,
    FilterOp.NE: retrieval_pb2.Filter.OP_NE,
    FilterOp.IN: retrieval_pb2.Filter.OP_IN,
    FilterOp.PREFIX: retrieval_pb2.Filter.OP_PREFIX,
}
_OP = {pb: op for op, pb in _PB_OP.items()} | {retrieval_pb2.Filter.OP_UNSPECIFIED: FilterOp.EQ}


def mode_of(mode: retrieval_pb2.SearchMode) -> SearchMode:
    """Unknown numbers count as unspecified, as proto3 asks for."""
    return _MODE.get(mode, SearchMode.AUTO)


def mode_to_pb(mode: SearchMode) -> retrieval_pb2.SearchMode:
    return _PB_MODE[mode]


def filter_of(message: retrieval_pb2.Filter) -> Filter:
    return Filter(message.field, _OP.get(message.op, FilterOp.EQ), tuple(message.values))


def filter_to_pb(condition: Filter) -> retrieval_pb2.Filter:
    return retrieval_pb2.Filter(field=condition.field, op=_PB_OP[condition.op], values=condition.values)


def document_of(request: retrieval_pb2.IndexRequest) -> IndexedDocument:
    return IndexedDocument(
        document_id=request.document_id,
        title=request.title,
        model_fingerprint=request.model_fingerprint,
        chunks=tuple(
            IndexedChunk(c.chunk_id, c.text, tuple(c.token_ids), c.heading, c.char_start, c.char_end)
            for c in request.chunks
        ),
        metadata=dict(request.metadata),
    )


def hit_to_pb(hit: SearchHit) -> retrieval_pb2.SearchHit:
    chunk = hit.chunk
    return retrieval_pb2.SearchHit(
        chunk_id=chunk.chunk_id,
        document_id=hit.document_id,
        title=hit.title,
        text=chunk.text,
        token_ids=chunk.token_ids,
        score=hit.score,
        heading=chunk.heading,
        char_start=chunk.char_start,
        char_end=chunk.char_end,
        metadata=hit.metadata,
        model_fingerprint=hit.model_fingerprint,
    )


def hit_of(message: retrieval_pb2.SearchHit) -> SearchHit:
    chunk = IndexedChunk(
        message.chunk_id,
        message.text,
        tuple(message.token_ids),
        message.heading,
        message.char_start,
        message.char_end,
    )
    return SearchHit(
        chunk,
        message.document_id,
        message.title,
        message.model_fingerprint,
        message.score,
        dict(message.metadata),
    )


def chunk_to_pb(chunk: IndexedChunk) -> retrieval_pb2.IndexedChunk:
    return retrieval_pb2.IndexedChunk(
        chunk_id=chunk.chunk_id,
        text=chunk.text,
        token_ids=chunk.token_ids,
        heading=chunk.heading,
        char_start=chunk.char_start,
        char_end=chunk.char_end,
    )
