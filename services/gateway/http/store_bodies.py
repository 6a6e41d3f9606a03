"""Defines what may be asked of ``/v1/vector_stores``, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from services.gateway.http.bodies import BodyText, Lenient, check_extra, check_parameters
from services.gateway.http.paging import ListBody
from services.gateway.kept.attaching import Status
from services.gateway.kept.attributes import Attribute, Attributes, filters_of
from services.gateway.kept.batches import FileBatch
from services.gateway.kept.members import Member
from services.gateway.kept.searching import FoundChunk, StoreSearch
from services.gateway.kept.stores import NewStore, StoreChange, VectorStore
from shared.errors import InvalidRequest, UnreadableDocument

MOST_RESULTS = 50
_AUTO = ({"type": "auto"},)
_RANKERS = (None, "auto", "default-2024-11-15")
_INVALID = ("INVALID_REQUEST", "DOCUMENT_TAKEN", "NOT_FOUND")


def _attribute(value: Any) -> Any:
    if not isinstance(value, (str, int, float)):
        raise ValueError("must be text, a number, true or false")
    return value


AttributeValue = Annotated[bool | float | BodyText, BeforeValidator(_attribute)]
"""Strictly of one type: true is not 1."""


class StoreRequest(Lenient):
    name: BodyText | None = None
    description: BodyText | None = None
    metadata: dict[BodyText, BodyText] | None = None
    file_ids: list[str] | None = None

    def new(self) -> NewStore:
        """
        Raises:
            InvalidRequest: names a parameter that is not supported.
        """
        check_parameters(self, {"chunking_strategy": _AUTO})
        return NewStore(self.name or "", self.description or "", self.metadata or {})


class StoreChangeRequest(Lenient):
    """``null``, or nothing: as it is."""

    name: BodyText | None = None
    metadata: dict[BodyText, BodyText] | None = None

    def change(self) -> StoreChange:
        """Raises like ``StoreRequest.new``."""
        check_parameters(self, {})
        return StoreChange(self.name, self.metadata)


class AttachRequest(Lenient):
    file_id: str
    attributes: dict[BodyText, AttributeValue] | None = None

    def check(self) -> None:
        """Raises like ``StoreRequest.new``."""
        check_parameters(self, {"chunking_strategy": _AUTO})


class AttributesRequest(Lenient):
    attributes: dict[BodyText, AttributeValue]


class BatchFile(Lenient):
    file_id: str
    attributes: dict[BodyText, AttributeValue] | None = None


class BatchRequest(Lenient):
    file_ids: list[str] | None = None
    files: list[BatchFile] | None = None
    attributes: dict[BodyText, AttributeValue] | None = None

    def named(self) -> list[tuple[str, Attributes]]:
        """
        Raises:
            InvalidRequest: names what is missing or not supported.
        """
        check_parameters(self, {"chunking_strategy": _AUTO})
        if self.file_ids and self.files:
            raise InvalidRequest("files: not together with file_ids")
        if self.files and self.attributes:
            raise InvalidRequest("attributes: not together with files, which have their own")
        for i, file in enumerate(self.files or ()):
            check_extra(file, f"files[{i}]")
        if self.files:
            return [(file.file_id, file.attributes or {}) for file in self.files]
        return [(file_id, self.attributes or {}) for file_id in self.file_ids or ()]


class RankingOptions(Lenient):
    ranker: str | None = None
    score_threshold: float | None = Field(None, ge=0, le=1)


class SearchRequest(Lenient):
    query: BodyText | list[BodyText]
    filters: dict[str, Any] | None = None
    max_num_results: int = Field(10, ge=1, le=MOST_RESULTS)
    ranking_options: RankingOptions | None = None
    rewrite_query: bool | None = None

    @property
    def queries(self) -> list[str]:
        return [self.query] if isinstance(self.query, str) else self.query

    @property
    def names(self) -> Mapping[str, str]:
        """Of the request's fields, as they are in this body."""
        if isinstance(self.query, str):
            return dict.fromkeys(("queries", "queries[0]"), "query")
        return {f"queries[{i}]": f"query[{i}]" for i in range(len(self.query))} | {"queries": "query"}

    def asked(self, store_id: str) -> StoreSearch:
        """
        Raises:
            InvalidRequest: names what is wrong or not supported.
        """
        check_parameters(self, {})
        if self.rewrite_query:
            raise InvalidRequest("rewrite_query: is not supported: queries are searched as they are")
        options = self.ranking_options or RankingOptions(score_threshold=None)
        check_extra(options, "ranking_options")
        if options.ranker not in _RANKERS:
            raise InvalidRequest(
                f"ranking_options.ranker: {options.ranker!r} is not supported; auto is: what ranks is set by "
                "retrieval.reranker, for all"
            )
        return StoreSearch(
            store_id,
            tuple(self.queries),
            self.max_num_results,
            filters_of(self.filters) if self.filters is not None else (),
            options.score_threshold or 0.0,
        )


class FileCounts(BaseModel):
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int

    @classmethod
    def of(cls, counts: Mapping[Status, int]) -> FileCounts:
        return cls(**{status.value: counts.get(status, 0) for status in Status}, total=sum(counts.values()))


class StoreBody(BaseModel):
    """``created_at`` 0: it was made otherwise. ``usage_bytes`` null: nobody counts them here."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    description: str | None
    usage_bytes: int | None = None
    file_counts: FileCounts
    status: Literal["in_progress", "completed"]
    expires_after: dict[str, Any] | None = None
    expires_at: int | None = None
    last_active_at: int | None = None
    metadata: dict[str, str]

    @classmethod
    def of(cls, store: VectorStore) -> StoreBody:
        return cls(
            id=store.id,
            created_at=int(store.created_s),
            name=store.name,
            description=store.description or None,
            file_counts=FileCounts.of(store.counts),
            status="in_progress" if store.counts.get(Status.IN_PROGRESS) else "completed",
            metadata=dict(store.metadata),
        )


class StoreDeletedBody(BaseModel):
    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: Literal[True] = True


class LastError(BaseModel):
    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class MemberBody(BaseModel):
    """``usage_bytes``: characters of its text. ``document_id``: ours; by which answers cite it."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    vector_store_id: str
    status: Status
    last_error: LastError | None
    usage_bytes: int
    attributes: dict[str, Attribute]
    document_id: str

    @classmethod
    def of(cls, member: Member) -> MemberBody:
        return cls(
            id=member.file_id,
            created_at=int(member.created_s),
            vector_store_id=member.store_id,
            status=member.status,
            last_error=_error_of(member) if member.status is Status.FAILED else None,
            usage_bytes=member.num_chars,
            attributes=dict(member.attributes),
            document_id=member.document_id,
        )


class MemberDeletedBody(BaseModel):
    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: Literal[True] = True


class BatchBody(BaseModel):
    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: Status
    file_counts: FileCounts

    @classmethod
    def of(cls, batch: FileBatch) -> BatchBody:
        return cls(
            id=batch.id,
            created_at=int(batch.created_s),
            vector_store_id=batch.store_id,
            status=batch.status,
            file_counts=FileCounts.of(batch.counts),
        )


class FoundText(BaseModel):
    type: Literal["text"] = "text"
    text: str


class FoundBody(BaseModel):
    """``score``: how near the chunk is to the query, 0 to 1."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, Attribute]
    content: list[FoundText]

    @classmethod
    def of(cls, found: FoundChunk) -> FoundBody:
        return cls(
            file_id=found.file_id,
            filename=found.filename,
            score=found.score,
            attributes=dict(found.attributes),
            content=[FoundText(text=found.text)],
        )


class SearchPage(BaseModel):
    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[FoundBody]
    has_more: Literal[False] = False
    next_page: None = None


StoreList = ListBody[StoreBody]
MemberList = ListBody[MemberBody]


def _error_of(member: Member) -> LastError:
    code: Literal["server_error", "unsupported_file", "invalid_file"] = "server_error"
    if member.code == UnreadableDocument.code:
        code = "unsupported_file"
    elif member.code in _INVALID:
        code = "invalid_file"
    return LastError(code=code, message=member.why)
