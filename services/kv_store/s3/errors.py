"""Turns what an S3 server, the SDK and the network report into errors for our callers. The originals go to
the log."""

from __future__ import annotations

import contextlib
import logging
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import ParseError

from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError

from services.kv_store.s3.credentials import WHERE
from services.kv_store.s3.retries import Unreachable
from shared.errors import FailedPrecondition, InternalError, KvquiltError, NotFound, StorageFull, Unavailable

log = logging.getLogger(__name__)

_REFUSED = FailedPrecondition(
    f"the object store refuses these credentials: set {WHERE}, to keys that may list, read, write and "
    "delete in objects.bucket"
)
_SKEWED = FailedPrecondition(
    "the clocks of this machine and of the object store differ by minutes; set them right"
)
_OTHER_REGION = FailedPrecondition("objects.region: the bucket is in another region")
_FULL = StorageFull("the object store has no space left")
_OVERLOADED = "the object store is overloaded or failing; retry"
_UNREACHABLE = "the object store cannot be reached; retry"
_BY_CODE: dict[str, KvquiltError] = {
    "AccessDenied": _REFUSED,
    "InvalidAccessKeyId": _REFUSED,
    "SignatureDoesNotMatch": _REFUSED,
    "InvalidTokenId": _REFUSED,
    "InvalidToken": _REFUSED,
    "ExpiredToken": _REFUSED,
    "AccountProblem": _REFUSED,
    "RequestTimeTooSkewed": _SKEWED,
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "PermanentRedirect": _OTHER_REGION,
    "NoSuchBucket": FailedPrecondition("objects.bucket: there is no such bucket"),
    "InvalidBucketName": FailedPrecondition("objects.bucket: the object store does not accept this name"),
    "XMinioStorageFull": _FULL,
    "XMinioAdminBucketQuotaExceeded": _FULL,
    "QuotaExceeded": _FULL,
    "NoSuchKey": NotFound("no such object"),
}
_TRANSIENT_CODES = {
    "SlowDown",
    "RequestTimeout",
    "IncompleteBody",
    "InternalError",
    "ServiceUnavailable",
    "OperationAborted",
}
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_INSUFFICIENT_STORAGE = 507
_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")


@contextlib.contextmanager
def speaking_s3() -> Iterator[None]:
    """
    Raises:
        Unavailable: the call may work when it is repeated.
        NotFound: no such object.
        StorageFull, FailedPrecondition, InternalError: it stays as it is until somebody does something.
    """
    try:
        yield
    except (MinioException, HTTPError, OSError, ParseError) as error:
        translated = translate(error)
        if isinstance(translated, (FailedPrecondition, InternalError, StorageFull)):
            log.error("the object store: %s: %s", translated.detail, error)
        raise translated from error


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """``code``: S3's name of the error, empty if the server gave none."""

    code: str
    status: int


def answer_of(error: MinioException) -> ErrorResponse:
    """An answer to HEAD has no body: there MinIO says the code in a header. A body that does not call itself
    application/xml is left to us by the SDK."""
    match error:
        case S3Error():
            return ErrorResponse(
                error.response.headers.get("x-minio-error-code") or error.code or "", error.response.status
            )
        case InvalidResponseError():
            found = _CODE.search(error._body or "")
            return ErrorResponse(found.group(1) if found else "", error._code)
        case ServerError():
            return ErrorResponse("", error.status_code)
    return ErrorResponse("", 0)


def translate(error: Exception) -> KvquiltError:
    return _of_answer(answer_of(error)) if isinstance(error, MinioException) else _of_connection(error)


def _of_answer(answer: ErrorResponse) -> KvquiltError:
    code, status = answer.code, answer.status
    if code in _BY_CODE:
        known = _BY_CODE[code]
        return type(known)(known.detail)
    if status == _INSUFFICIENT_STORAGE:
        return StorageFull(_FULL.detail)
    if status in _TRANSIENT_STATUS or code in _TRANSIENT_CODES or code.startswith("SlowDown"):
        return Unavailable(_OVERLOADED)
    if status in (401, 403):
        return FailedPrecondition(_REFUSED.detail)
    if status == 400 and code in ("", "BadRequest"):
        return FailedPrecondition(
            "objects.endpoint, objects.secure: what answers there does not speak S3, or wants TLS"
        )
    return InternalError("the object store refused a request; the service's log has the reason")


def _of_connection(error: Exception) -> KvquiltError:
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return FailedPrecondition(
                "objects.ca_file: the object store's certificate is not signed by a known authority"
            )
        if isinstance(cause, ssl.SSLError) and cause.reason in (
            "WRONG_VERSION_NUMBER",
            "RECORD_LAYER_FAILURE",
        ):
            return FailedPrecondition("objects.secure: the object store does not speak TLS")
    return Unreachable(_UNREACHABLE)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        inner = error.args[0] if error.args and isinstance(error.args[0], BaseException) else None
        error = inner or error.__cause__ or error.__context__
