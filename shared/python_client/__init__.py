"""Talks to kvquilt from Python: questions, documents, search, forests.

Distributed as ``kvquilt-client``, which needs nothing but gRPC and protobuf (``cluster.client_wheel``); the
package is called ``kvquilt_client`` there.
"""

from shared.answer import (
    AnswerDone,
    AnswerText,
    AnswerUsage,
    Citation,
    HandedDocument,
    Inquiry,
    Refusal,
    Retrieved,
)
from shared.documents import DeletedDocuments, DocumentInfo, SourceDocument, Stage, UpsertProgress
from shared.errors import (
    DeadlineExceeded,
    InvalidRequest,
    KvquiltError,
    NotFound,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from shared.feedback import Rating
from shared.generation.asked import SamplingParams
from shared.generation.forest import Append, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.told import AppliedEvent, GrownEvent, RefusedEvent, RestedEvent, TokenEvent
from shared.python_client.answers import RagAnswer
from shared.python_client.asynchronous import AsyncClient
from shared.python_client.forests import AsyncForest
from shared.python_client.synchronous import Client, Forest
from shared.search import Filter, FilterOp, SearchHit, SearchMode

__all__ = [
    "AnswerDone",
    "AnswerText",
    "AnswerUsage",
    "Append",
    "AppliedEvent",
    "AsyncClient",
    "AsyncForest",
    "Citation",
    "Client",
    "DeadlineExceeded",
    "DeletedDocuments",
    "DocumentInfo",
    "Filter",
    "FilterOp",
    "Forest",
    "Fork",
    "Grow",
    "GrownEvent",
    "HandedDocument",
    "Inquiry",
    "InvalidRequest",
    "KvquiltError",
    "Merge",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "Prune",
    "RagAnswer",
    "Rating",
    "Refusal",
    "RefusedEvent",
    "RestedEvent",
    "Retrieved",
    "Rewind",
    "SamplingParams",
    "SearchHit",
    "SearchMode",
    "SourceDocument",
    "Stage",
    "Start",
    "TokenEvent",
    "Unauthenticated",
    "Unavailable",
    "UpsertProgress",
]
