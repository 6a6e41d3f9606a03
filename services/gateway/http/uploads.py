"""Reads an upload: one file and a few fields, as ``multipart/form-data``; what is large waits on the disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from services.gateway.kept.files import Upload
from shared.errors import Cancelled, InvalidRequest

_MAX_FIELDS = 300
_MAX_FIELD_BYTES = 4096
_READERS = ("readers", "readers[]")
_KNOWN = ("file", "purpose", *_READERS)

SCHEMA = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string", "enum": ["assistants", "user_data"]},
                    "readers": {"type": "array", "items": {"type": "string"}},
                },
            }
        }
    },
}
"""For ``/openapi.json``: the body is read by hand, when it is known who sends it and that there is room."""


async def upload_of(http: Request) -> Upload:
    """
    Raises:
        InvalidRequest: names what is missing, wrong or not supported.
        Cancelled: the caller left in the middle; nothing of it is left.
        HTTPException: 413.
    """
    async with _form(http) as form:
        for name in form:
            if name not in _KNOWN:
                field = name.partition("[")[0]
                raise InvalidRequest(f"{field}: is not supported; leave it out (docs/http.md lists what is)")
        files, purposes = form.getlist("file"), form.getlist("purpose")
        if len(files) != 1 or not isinstance(files[0], UploadFile):
            raise InvalidRequest("file: is required, one part of multipart/form-data with a file name")
        if len(purposes) != 1 or not isinstance(purposes[0], str):
            raise InvalidRequest("purpose: is required")
        readers = [value for name in _READERS for value in form.getlist(name)]
        if not all(isinstance(reader, str) for reader in readers):
            raise InvalidRequest("readers: must be names of groups")
        name, content = files[0].filename or "", await files[0].read()
        return Upload(name, purposes[0], content, tuple(sorted({str(reader) for reader in readers})))


@asynccontextmanager
async def _form(http: Request) -> AsyncGenerator[FormData, None]:
    try:
        async with http.form(max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES) as form:
            yield form
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise InvalidRequest(f"file: the body is no multipart/form-data: {error.detail}") from None
    except ClientDisconnect:
        raise Cancelled("the upload stopped half-way; nothing of it is kept") from None
