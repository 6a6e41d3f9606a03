"""Every error of kvquilt that a caller can meet.

KvquiltError
├── InvalidRequest          the request is wrong and stays wrong                     INVALID_ARGUMENT
│   ├── ConfigError         a setting is unknown or has a bad value
│   ├── ContextTooLong      prompt and answer exceed the model's positions or window
│   └── UnreadableDocument  cannot be parsed: empty, binary, encrypted, unknown format
├── NotFound                collection, document or chunk does not exist             NOT_FOUND
├── FailedPrecondition      right request, wrong state; the detail says what to do   FAILED_PRECONDITION
│   ├── ModelMismatch       stored for another model, prefix or tokenizer
│   ├── ModelUnsupported    the engine cannot reproduce this model exactly
│   ├── ChunkReferenced     a document still needs the chunk
│   └── NewerFormat         stored by a later version of kvquilt; not to be touched
├── DocumentTaken           the id is of a document that the caller may not read     ALREADY_EXISTS
├── Conflict                somebody else changed it meanwhile; retry                ABORTED
├── Overloaded              no room now; retry later                                 RESOURCE_EXHAUSTED
├── StorageFull             no space left where data must be kept                    RESOURCE_EXHAUSTED
├── DeadlineExceeded        not finished in time                                     DEADLINE_EXCEEDED
├── Cancelled               the caller went away                                     CANCELLED
├── Unavailable             a service is not there now; retry                        UNAVAILABLE
├── CorruptData             stored bytes fail their checksum or cannot be read       DATA_LOSS
└── InternalError           a bug; the log has the rest                              INTERNAL

``detail`` is for the caller: it names the field and the remedy and holds no path, address or trace of the
server. What only an operator may see goes into the log message. A detail that quotes much is told without its
middle: it travels in a trailer, for which gRPC has 8 KiB, twice, with up to three bytes for one.
"""

from __future__ import annotations

_FIRST_BYTES, _LAST_BYTES = 1000, 500


def _short(detail: str) -> str:
    data = detail.encode(errors="replace")
    if len(data) <= _FIRST_BYTES + _LAST_BYTES:
        return detail
    first, last = (part.decode(errors="ignore") for part in (data[:_FIRST_BYTES], data[-_LAST_BYTES:]))
    return f"{first} … {last}"


class KvquiltError(Exception):
    """Root of the tree. ``detail`` is safe to show to a client; ``retryable`` says that the same call may
    work later, and ``retry_after_s`` when, if that is known."""

    code = "INTERNAL"
    retryable = False
    retry_after_s: float | None = None

    def __init__(self, detail: str) -> None:
        self.detail = _short(detail)
        super().__init__(self.detail)


class InvalidRequest(KvquiltError):
    code = "INVALID_REQUEST"


class ConfigError(InvalidRequest):
    code = "CONFIG_ERROR"


class ContextTooLong(InvalidRequest):
    code = "CONTEXT_TOO_LONG"


class UnreadableDocument(InvalidRequest):
    code = "DOCUMENT_UNREADABLE"


class Unauthenticated(KvquiltError):
    code = "UNAUTHENTICATED"


class PermissionDenied(KvquiltError):
    code = "PERMISSION_DENIED"


class NotFound(KvquiltError):
    code = "NOT_FOUND"


class FailedPrecondition(KvquiltError):
    code = "FAILED_PRECONDITION"


class ModelMismatch(FailedPrecondition):
    code = "MODEL_MISMATCH"


class ModelUnsupported(FailedPrecondition):
    code = "MODEL_UNSUPPORTED"


class ChunkReferenced(FailedPrecondition):
    code = "CHUNK_REFERENCED"


class NewerFormat(FailedPrecondition):
    code = "NEWER_FORMAT"


class DocumentTaken(KvquiltError):
    code = "DOCUMENT_TAKEN"


class Conflict(KvquiltError):
    code = "CONFLICT"
    retryable = True


class Overloaded(KvquiltError):
    code = "OVERLOADED"
    retryable = True

    def __init__(self, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class StorageFull(KvquiltError):
    code = "STORAGE_FULL"


class DeadlineExceeded(KvquiltError):
    code = "DEADLINE_EXCEEDED"


class Cancelled(KvquiltError):
    code = "CANCELLED"


class Unavailable(KvquiltError):
    code = "UNAVAILABLE"
    retryable = True


class CorruptData(KvquiltError):
    code = "CORRUPT_DATA"


class InternalError(KvquiltError):
    code = "INTERNAL"
