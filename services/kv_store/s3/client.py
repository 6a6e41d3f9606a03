"""An S3 client that goes by the server's clock when the machine's own is wrong."""

from __future__ import annotations

import email.utils
import logging
import threading
from datetime import datetime, timedelta
from typing import Any

from minio import Minio, time
from minio.error import S3Error
from urllib3 import BaseHTTPResponse

log = logging.getLogger(__name__)

_FORBIDDEN = 403
_TOLERATED = timedelta(minutes=5)
"""Servers tolerate a quarter of an hour; AWS's SDKs correct what is more than this."""
_MOST_CORRECTIONS = 3


class SkewCorrectingClient(Minio):
    """Signs by its own clock until a server refuses that, then by the server's. Thread-safe.

    A refusal (RequestTimeTooSkewed; one of a HEAD has no code) has the server's time in its ``Date``. Where
    that is not the time that the request was signed by, the request is repeated by it, and all that follow
    are signed so: as AWS's SDKs do. A refusal for any other reason is raised as it is.

    Between the machine's clock and the signature the SDK has nothing public: ``_build_headers`` and
    ``_url_open`` are its own.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ahead = timedelta(0)  # how far the server's clock is ahead of the machine's, once that matters
        self._signed = threading.local()

    def now(self) -> datetime:
        """Returns the time to sign by."""
        return time.utcnow() + self._ahead

    def _build_headers(self, *args: Any, **options: Any) -> tuple[dict[str, Any], datetime]:
        headers, _ = super()._build_headers(*args, **options)
        self._signed.date = self.now()
        headers["x-amz-date"] = time.to_amz_date(self._signed.date)
        return headers, self._signed.date

    def _url_open(self, *args: Any, **options: Any) -> BaseHTTPResponse:
        for _ in range(_MOST_CORRECTIONS):
            try:
                return super()._url_open(*args, **options)
            except S3Error as error:
                told = _time_of_refusal(error.response)
                if told is None or abs(told - self._signed.date) < _TOLERATED:
                    raise
            self._ahead = told - time.utcnow()
            log.warning(
                "this machine's clock is %.0f s ahead of the object store's, by which requests are signed",
                -self._ahead.total_seconds(),
            )
        return super()._url_open(*args, **options)


def _time_of_refusal(response: BaseHTTPResponse) -> datetime | None:
    """By the server's clock. None: the answer is no refusal, or does not say."""
    if response.status != _FORBIDDEN:
        return None
    try:
        told = email.utils.parsedate_to_datetime(response.headers.get("date", ""))
    except ValueError:
        return None
    return told if told.tzinfo else None
