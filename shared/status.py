"""One table between kvquilt's errors and gRPC's status codes, read in both directions; and what these are
over HTTP.

A failure travels as a ``google.rpc.Status`` with one ``ErrorInfo`` (reason = ``KvquiltError.code``; with a
``RetryInfo`` where it is known when to call again), so that the client raises the class that the service
raised (or, of a class that only one service knows, the nearest one above it in this table); without it (a
proxy answered) the status code alone decides.
"""

from __future__ import annotations

from google.rpc import code_pb2, error_details_pb2, status_pb2

from shared import errors
from shared.errors import KvquiltError

DOMAIN = "kvquilt"
DETAILS_KEY = "grpc-status-details-bin"

STATUS_OF: dict[type[KvquiltError], str] = {
    errors.InvalidRequest: "INVALID_ARGUMENT",
    errors.ConfigError: "INVALID_ARGUMENT",
    errors.ContextTooLong: "INVALID_ARGUMENT",
    errors.UnreadableDocument: "INVALID_ARGUMENT",
    errors.Unauthenticated: "UNAUTHENTICATED",
    errors.PermissionDenied: "PERMISSION_DENIED",
    errors.NotFound: "NOT_FOUND",
    errors.FailedPrecondition: "FAILED_PRECONDITION",
    errors.ModelMismatch: "FAILED_PRECONDITION",
    errors.ModelUnsupported: "FAILED_PRECONDITION",
    errors.ChunkReferenced: "FAILED_PRECONDITION",
    errors.NewerFormat: "FAILED_PRECONDITION",
    errors.DocumentTaken: "ALREADY_EXISTS",
    errors.Conflict: "ABORTED",
    errors.Overloaded: "RESOURCE_EXHAUSTED",
    errors.StorageFull: "RESOURCE_EXHAUSTED",
    errors.DeadlineExceeded: "DEADLINE_EXCEEDED",
    errors.Cancelled: "CANCELLED",
    errors.Unavailable: "UNAVAILABLE",
    errors.CorruptData: "DATA_LOSS",
    errors.InternalError: "INTERNAL",
    errors.KvquiltError: "INTERNAL",
}

HTTP_STATUS_OF = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,  # 409 would make clients try again
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "DATA_LOSS": 500,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}

_CLASS_OF_CODE = {cls.code: cls for cls in STATUS_OF if cls is not KvquiltError}
_CLASS_OF_STATUS = {status: cls for cls, status in reversed(STATUS_OF.items())}  # the first of each


def status_of(kind: type[KvquiltError]) -> str:
    """Name of the gRPC status code of an error class: its own row of ``STATUS_OF``, or else the row of the
    nearest class above it."""
    return next(STATUS_OF[cls] for cls in kind.__mro__ if cls in STATUS_OF)


def http_status_of(kind: type[KvquiltError]) -> int:
    return HTTP_STATUS_OF[status_of(kind)]


def to_status(error: KvquiltError) -> tuple[str, bytes]:
    """Returns the name of the gRPC status code, and the serialized ``google.rpc.Status`` for the trailing
    metadata."""
    name = status_of(type(error))
    status = status_pb2.Status(code=code_pb2.Code.Value(name), message=error.detail)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(
            reason=error.code, domain=DOMAIN, metadata={"retryable": str(error.retryable).lower()}
        )
    )
    if error.retry_after_s is not None:
        wait = error_details_pb2.RetryInfo()
        wait.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        status.details.add().Pack(wait)
    return name, status.SerializeToString()


def with_code(error: KvquiltError) -> str:
    """The detail for a way on which trailing metadata is lost; ``from_status`` finds the class again."""
    return f"{error.code}: {error.detail}"


def from_code(code: str, detail: str) -> KvquiltError:
    """The error whose ``code`` this is."""
    return _CLASS_OF_CODE.get(code, errors.InternalError)(detail)


def from_status(status_name: str, message: str, details: bytes | None) -> KvquiltError:
    """The error a service raised, from what its client received."""
    if details:
        status = status_pb2.Status.FromString(details)
        for packed in status.details:
            info = error_details_pb2.ErrorInfo()
            if packed.Unpack(info) and info.domain == DOMAIN and info.reason in _CLASS_OF_CODE:
                error = _CLASS_OF_CODE[info.reason](status.message)
                error.retry_after_s = _retry_after_s(status)
                return error
    code, _, detail = message.partition(": ")
    if code in _CLASS_OF_CODE and STATUS_OF[_CLASS_OF_CODE[code]] == status_name:
        return _CLASS_OF_CODE[code](detail)
    return _CLASS_OF_STATUS.get(status_name, errors.InternalError)(message)


def _retry_after_s(status: status_pb2.Status) -> float | None:
    wait = error_details_pb2.RetryInfo()
    for packed in status.details:
        if packed.Unpack(wait):
            return float(wait.retry_delay.ToNanoseconds() / 1e9)
    return None
