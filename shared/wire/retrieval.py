"""Translates what is searched, indexed and found."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from protos.kvquilt.v1 import retrieval_pb2
from shared.search import (
    CollectionInfo,
    EmbeddedTexts,
    Filter,
    IndexedChunk,
    IndexedDocument,
    IndexedIds,
    SearchHit,
)
from shared.wire.enums import FILTER_OPS
from shared.wire.message import Conversion, MessageWire

_CHUNK = MessageWire(IndexedChunk, retrieval_pb2.IndexedChunk)


class _Hit(MessageWire[SearchHit, retrieval_pb2.SearchHit]):
    """The chunk's fields stand beside the others."""

    def fields_of(self, value: SearchHit) -> dict[str, Any]:
        return super().fields_of(value) | _CHUNK.fields_of(value.chunk)

    def values_of(self, message: Message) -> dict[str, Any]:
        return super().values_of(message) | {"chunk": IndexedChunk(**_CHUNK.values_of(message))}


COLLECTION = MessageWire(CollectionInfo, retrieval_pb2.CollectionInfo)
DOCUMENT = MessageWire(IndexedDocument, retrieval_pb2.IndexRequest)
EMBEDDED = MessageWire(
    EmbeddedTexts,
    retrieval_pb2.EmbedResponse,
    vectors=Conversion(
        lambda values: retrieval_pb2.Vector(values=values), lambda vector: tuple(vector.values)
    ),
)
FILTER = MessageWire(Filter, retrieval_pb2.Filter, op=FILTER_OPS)
HIT = _Hit(SearchHit, retrieval_pb2.SearchHit)
IDS = MessageWire(IndexedIds, retrieval_pb2.ListIndexedResponse)
