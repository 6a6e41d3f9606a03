"""Lists what a request may hold at most, and checks it before anything is made of it.

``RequestLimits`` are the numbers, ``FIELDS`` and ``MESSAGES`` say which of them guards what. A field that is
not in the table is guarded by what its kind is: so none goes without a limit. ``check_request`` is called
where requests enter a service (``shared.rpc``, HTTP), and tells the field, what it holds and the limit.

It also refuses what no field may hold: numbers of enums that are not known (taken for "unset", a misspelt
condition of a search would select the opposite), numbers that are none, and NUL in text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from shared.admission.settings import PrincipalLimits
from shared.config import check_least
from shared.errors import InvalidRequest

_OF_MESSAGES = ("message_bytes", "upsert_bytes", "document_bytes")
_LARGEST_MESSAGE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """
    message_bytes: of a request, where nothing below says otherwise. Whoever has a model for contexts of
    millions of tokens raises it.
    upsert_bytes: of a request that brings documents or files; `ingestion.max_document_bytes` bounds each of
    them.
    document_bytes: of what the services tell each other of one document: its text, its tokens.
    messages: parts of a request, counted through all levels.
    entries: of a list or mapping that is not of one of these kinds.
    chunks: of one request, or of a document.
    tokens: ids in one list.
    ids: of chunks or documents, in one request.
    opened: chunks that are opened or fetched at once.
    stop_strings: of one request.
    name_bytes: of an id, a name, a stop string, a value to filter by; in UTF-8, as all texts here.
    title_bytes: of a title or heading.
    question_bytes: of a question, of a comment on an answer, of a value in a document's metadata, of a field
    of what front doors keep.
    text_bytes: of a chunk, or of what stands in front of a question.
    schema_bytes: of a JSON Schema that answers keep to.
    deadline_ms: how long a caller may be willing to wait.

    stall_s: how long a caller may take nothing of an answer that is there.
    per_principal: how much of all this one caller may ask for.
    """

    message_bytes: int = 4 << 20
    upsert_bytes: int = 128 << 20
    document_bytes: int = 256 << 20
    messages: int = 65_536
    entries: int = 1024
    chunks: int = 16_384
    tokens: int = 1 << 20
    ids: int = 65_536
    opened: int = 4096
    stop_strings: int = 64
    name_bytes: int = 8 << 10
    title_bytes: int = 16 << 10
    question_bytes: int = 64 << 10
    text_bytes: int = 256 << 10
    schema_bytes: int = 64 << 10
    deadline_ms: int = 7 * 24 * 3_600_000

    stall_s: int = 60
    per_principal: PrincipalLimits = dataclasses.field(default_factory=PrincipalLimits)

    def __post_init__(self) -> None:
        check_least(self, 1, *OF_ONE_REQUEST, "stall_s")
        for name in _OF_MESSAGES:
            if getattr(self, name) > _LARGEST_MESSAGE:
                raise ValueError(f"{name}: no message has more than {_LARGEST_MESSAGE} bytes")

    @property
    def largest_bytes(self) -> int:
        """Of any request: what a server need not take in at all."""
        return max(int(getattr(self, name)) for name in _OF_MESSAGES)


OF_ONE_REQUEST = tuple(
    f.name for f in dataclasses.fields(RequestLimits) if f.name not in ("stall_s", "per_principal")
)
DEFAULT_LIMITS = RequestLimits()

MESSAGES: Mapping[str, str] = {
    "PutItemRequest": "upsert_bytes",
    "UpsertRequest": "upsert_bytes",
    "IndexRequest": "document_bytes",
    "CheckQuotaRequest": "document_bytes",
    "PutManifestRequest": "document_bytes",
}
"""The limit of a request's bytes, where it is not ``message_bytes``."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "AnswerRequest.preface": ("text_bytes",),
    "AnswerRequest.questions": ("entries", "question_bytes"),
    "DeleteChunksRequest.chunk_ids": ("ids", "name_bytes"),
    "DeleteDocumentsRequest.document_ids": ("ids", "name_bytes"),
    "EarlierTurn.text": ("text_bytes",),
    "EmbedRequest.texts": ("entries", "text_bytes"),
    "EncodeRequest.chunks": ("chunks",),
    "FieldsEntry.value": ("question_bytes",),
    "FeedbackRequest.comment": ("question_bytes",),
    "ForestMerge.sources": ("entries",),
    "ForestOpen.chunks": ("chunks",),
    "GenerateRequest.chunks": ("chunks",),
    "HandedDocument.text": ("text_bytes",),
    "HandedDocument.title": ("title_bytes",),
    "IndexRequest.chunks": ("chunks",),
    "IndexRequest.title": ("title_bytes",),
    "IndexedChunk.heading": ("title_bytes",),
    "IndexedChunk.text": ("text_bytes",),
    "Block.heading": ("title_bytes",),
    "LocalCopiesRequest.chunk_ids": ("ids", "name_bytes"),
    "Manifest.chunks": ("chunks",),
    "Manifest.title": ("title_bytes",),
    "ManifestChunk.heading": ("title_bytes",),
    "ManifestChunk.text": ("text_bytes",),
    "Margins.instruction": ("question_bytes",),
    "Margins.relevance": ("question_bytes",),
    "MetadataEntry.value": ("question_bytes",),
    "NeededRequest.chunk_ids": ("ids", "name_bytes"),
    "OpenRequest.chunk_ids": ("opened", "name_bytes"),
    "Piece.text": ("text_bytes",),
    "PrefetchRequest.chunk_ids": ("opened", "name_bytes"),
    "PrefillRequest.chunks": ("chunks",),
    "ReadableRequest.chunk_ids": ("ids", "name_bytes"),
    "RecomputeRequest.chunks": ("chunks",),
    "RefreshRequest.chunk_ids": ("ids", "name_bytes"),
    "RequestMeta.deadline_ms": ("deadline_ms",),
    "RequestMeta.principal": ("text_bytes",),
    "ResponseFormat.json_schema": ("schema_bytes",),
    "Sampling.stop": ("stop_strings", "name_bytes"),
    "SearchRequest.queries": ("entries", "question_bytes"),
    "SelectRequest.chunks": ("chunks",),
    "SelectRequest.questions": ("entries", "text_bytes"),
    "SelectionChunk.text": ("text_bytes",),
    "SelectionLink.text": ("text_bytes",),
    "StatRequest.chunk_ids": ("ids", "name_bytes"),
    "TokenIds.text": ("text_bytes",),
    "UnindexRequest.document_ids": ("ids", "name_bytes"),
}
"""Message and field → its limits: of the list's entries, of the text's bytes, of the number."""

_SHOWN = 80
_KINDS = FieldDescriptor
_LOOKED_AT = (
    *(_KINDS.TYPE_STRING, _KINDS.TYPE_MESSAGE, _KINDS.TYPE_ENUM),
    *(_KINDS.TYPE_DOUBLE, _KINDS.TYPE_FLOAT),
)


def check_request(request: Message, limits: RequestLimits = DEFAULT_LIMITS) -> None:
    """
    Raises:
        InvalidRequest: names the field, what it holds and the limit.
    """
    kind = request.DESCRIPTOR.name
    try:
        check = _Check(limits)
        check.most(request.ByteSize(), MESSAGES.get(kind, "message_bytes"), "bytes")
        check.message(request)
    except _WrongError as wrong:
        path = "".join(reversed(wrong.path)).removeprefix(".")
        raise InvalidRequest(f"{path or kind}: {wrong}") from None


def limits_of(field: FieldDescriptor) -> tuple[str, ...]:
    """Names of the field's limits; none of a field that cannot be large, or only as its whole message."""
    message = field.containing_type
    if message is not None and (listed := FIELDS.get(f"{message.name}.{field.name}")):
        return listed
    found = []
    if field.is_repeated:
        found.append("entries" if field.type in (_KINDS.TYPE_MESSAGE, _KINDS.TYPE_STRING) else "tokens")
    if field.type == _KINDS.TYPE_STRING:
        found.append("name_bytes")
    return tuple(found)


class _WrongError(Exception):
    """``path``: of the field, its last part first."""

    def __init__(self, says: str) -> None:
        super().__init__(says)
        self.path: list[str] = []


@dataclass(frozen=True, slots=True)
class _Rule:
    """Of a field. ``entries``: the limit of a list or mapping, empty: it is none; ``size``: of a text or
    number. ``looked_at``: what it holds says whether it may."""

    type: int
    looked_at: bool
    entries: str = ""
    size: str = ""
    members: Mapping[int, str] = dataclasses.field(default_factory=dict)
    key: _Rule | None = None
    value: _Rule | None = None


class _Check:
    """Of one request. Where things are is told by those that are wrong alone, for most are not."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits, self._left = limits, limits.messages

    def message(self, message: Message) -> None:
        self._left -= 1
        if self._left < 0:
            raise _WrongError(f"here the request has more parts than {self._named('messages')}")
        rules = _rules(message.DESCRIPTOR)
        for field, value in message.ListFields():
            rule = rules[field.name]
            try:
                if not rule.entries:
                    if rule.looked_at or rule.size:
                        self._value(rule, value)
                    continue
                self.most(len(value), rule.entries, "entries")
                if rule.key is not None and rule.value is not None:
                    self._all(rule.key, value, value)
                    self._all(rule.value, value, value.values())
                elif rule.looked_at:
                    self._all(rule, range(len(value)), value)
            except _WrongError as wrong:
                wrong.path.append(f".{field.name}")
                raise

    def most(self, size: int, limit: str, unit: str) -> None:
        if size > getattr(self._limits, limit):
            raise _WrongError(f"has {size} {unit}, more than {self._named(limit)}")

    def _all(self, rule: _Rule, places: Iterable[object], values: Iterable[Any]) -> None:
        for place, value in zip(places, values, strict=True):
            try:
                self._value(rule, value)
            except _WrongError as wrong:
                wrong.path.append(f"[{str(place)[:_SHOWN]!r}]" if isinstance(place, str) else f"[{place}]")
                raise

    def _value(self, rule: _Rule, value: Any) -> None:
        match rule.type:
            case _KINDS.TYPE_STRING:
                # UTF-8 takes at most four bytes for a character
                if len(value) * 4 > getattr(self._limits, rule.size):
                    self.most(len(value.encode()), rule.size, "bytes")
                if "\0" in value:
                    raise _WrongError("holds NUL, which no text does; remove it")
            case _KINDS.TYPE_MESSAGE:
                self.message(value)
            case _KINDS.TYPE_ENUM if value not in rule.members:
                raise _WrongError(f"{value} is not known; use one of {', '.join(rule.members.values())}")
            case _KINDS.TYPE_DOUBLE | _KINDS.TYPE_FLOAT if not math.isfinite(value):
                raise _WrongError(f"{value} is out of range; it must be finite")
            case _ if rule.size and value > getattr(self._limits, rule.size):
                raise _WrongError(f"{value} is more than {self._named(rule.size)}")

    def _named(self, limit: str) -> str:
        return f"the {getattr(self._limits, limit)} that limits.{limit} allows"


@cache
def _rules(message: Descriptor) -> Mapping[str, _Rule]:
    return {field.name: _rule(field) for field in message.fields}


def _rule(field: FieldDescriptor) -> _Rule:
    names = limits_of(field)
    entries, rest = (names[0], names[1:]) if field.is_repeated else ("", names)
    members = {one.number: one.name for one in field.enum_type.values} if field.enum_type else {}
    inner = field.message_type
    pair = {} if inner is None or not inner.GetOptions().map_entry else _rules(inner)
    return _Rule(
        field.type,
        field.type in _LOOKED_AT,
        entries,
        "".join(rest),
        members,
        pair.get("key"),
        pair.get("value"),
    )
