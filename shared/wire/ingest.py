"""Translates documents on their way in."""

from __future__ import annotations

from protos.kvquilt.v1 import ingest_pb2
from shared.documents import DeletedDocuments, DocumentPage, SourceDocument, UpsertProgress
from shared.wire.enums import STAGES
from shared.wire.message import MessageWire

SOURCE = MessageWire(SourceDocument, ingest_pb2.SourceDocument)
PROGRESS = MessageWire(UpsertProgress, ingest_pb2.UpsertProgress, stage=STAGES)
DELETED = MessageWire(DeletedDocuments, ingest_pb2.DeleteDocumentsResponse)
PAGE = MessageWire(DocumentPage, ingest_pb2.ListDocumentsResponse)
