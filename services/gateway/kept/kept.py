"""Puts together what is kept for callers, and what they do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from services.gateway.config import ResponsesConfig
from services.gateway.kept.attaching import Attaching, Upserting
from services.gateway.kept.batches import Batches
from services.gateway.kept.files import Files
from services.gateway.kept.members import MemberDocuments, Members
from services.gateway.kept.responses import Responses
from services.gateway.kept.searching import Searching
from services.gateway.kept.stores import Counting, Deleting, VectorStores
from services.gateway.ports import Retriever
from shared.admission.entrance import Entrance
from shared.kv_stores import ItemStore


class KeptStore(ItemStore, MemberDocuments, Counting, Protocol):
    """The KV store: items and documents."""


class InAndOut(Upserting, Deleting, Protocol):
    """Documents in and out."""


@dataclass(frozen=True, slots=True)
class KeptThings:
    files: Files
    stores: VectorStores
    members: Members
    searching: Searching
    batches: Batches
    attaching: Attaching
    responses: Responses


def kept_by(
    store: KeptStore,
    ingestion: InAndOut,
    retriever: Retriever,
    entrance: Entrance,
    rrf_constant: int,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    responses: ResponsesConfig | None = None,
) -> KeptThings:
    """``entrance``: where memory for files is counted; ``rrf_constant``: as of questions; ``pause``: see
    ``Attaching``."""
    attaching = Attaching(store, ingestion, entrance, pause)
    stores = VectorStores(store, store, ingestion, attaching)
    return KeptThings(
        Files(store),
        stores,
        Members(store, store, ingestion, stores, attaching),
        Searching(retriever, stores, rrf_constant),
        Batches(store, stores, attaching),
        attaching,
        Responses(store, responses or ResponsesConfig(), entrance),
    )
