"""Translates what the KV store tells."""

from __future__ import annotations

from protos.kvquilt.v1 import kv_store_node_pb2
from protos.kvquilt.v1 import kv_store_pb2 as pb
from shared.kv_items import Item, ItemPage
from shared.kv_reports import CollectedGarbage, StoreStats, VerifyProgress
from shared.kv_types import (
    AlikeDocuments,
    Chain,
    ChunkPage,
    ChunkStat,
    DeletedChunks,
    Manifest,
    ManifestPage,
    OpenedChunk,
    PeerCopy,
)
from shared.pinned import PinnedDocuments
from shared.wire.message import Conversion, MessageWire, TupleWire

ALIKE = MessageWire(AlikeDocuments, pb.AlikeDocuments)
CHUNK_STAT = MessageWire(ChunkStat, pb.ChunkStat)
CHUNK_PAGE = MessageWire(ChunkPage, kv_store_node_pb2.ListChunksResponse)
DELETED = MessageWire(DeletedChunks, kv_store_node_pb2.DeleteChunksResponse)
ITEM = MessageWire(Item, pb.Item)
ITEM_PAGE = MessageWire(ItemPage, pb.ListItemsResponse)
MANIFEST = MessageWire(Manifest, pb.Manifest)
MANIFEST_PAGE = MessageWire(ManifestPage, pb.ListManifestsResponse)
STATS = MessageWire(StoreStats, pb.StatsResponse)
VERIFIED = MessageWire(VerifyProgress, pb.VerifyProgress)
COLLECTED = MessageWire(CollectedGarbage, pb.CollectGarbageResponse)
PINNED = MessageWire(PinnedDocuments, pb.PinnedDocuments)
OPENED = MessageWire(
    OpenedChunk, kv_store_node_pb2.OpenedChunk, layers=TupleWire(pb.ByteRange, "offset", "length")
)
CHAIN = MessageWire(
    Chain,
    kv_store_node_pb2.DocumentChain,
    links=Conversion(
        lambda ids: kv_store_node_pb2.ChainLink(token_ids=ids), lambda link: tuple(link.token_ids)
    ),
)
PEER_COPY = MessageWire(PeerCopy, kv_store_node_pb2.PeerCopy)
