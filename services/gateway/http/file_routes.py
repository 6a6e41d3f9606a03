"""``/v1/files``: uploads, kept for their tenant."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from services.gateway.http.door import HttpDoor
from services.gateway.http.errors import API_ERRORS
from services.gateway.http.headers import is_retry
from services.gateway.http.messages import dropping, keeping, listing
from services.gateway.http.paging import AskedPage, ListBody, listed
from services.gateway.http.uploads import SCHEMA, upload_of
from services.gateway.kept.files import KIND, Files, KeptFile
from shared.request import RequestContext

PATH = "/v1/files"


class FileBody(BaseModel):
    """``readers``: ours; the groups that may read it, and what is made of it; none: everybody of the
    tenant."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: str | None = None
    expires_at: int | None = None
    readers: list[str]


class FileDeletedBody(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


FileList = ListBody[FileBody]


def add_files(app: FastAPI, door: HttpDoor, files: Files, max_bytes: int) -> None:
    """``max_bytes``: of an upload; so much is counted where its caller does not say how large it is."""

    @app.post(PATH, response_model=FileBody, responses=API_ERRORS, openapi_extra={"requestBody": SCHEMA})
    async def upload(http: Request) -> Response:
        asked = keeping(KIND)

        async def work(ctx: RequestContext) -> FileBody:
            file = await files.keep(ctx, await upload_of(http), is_retry(http.headers))
            asked.item.id = file.id  # for the record
            return told(file)

        declared = http.headers.get("content-length", "")
        num_bytes = min(int(declared), max_bytes) if declared.isdecimal() else max_bytes
        return await door.through(http, "PutItem", lambda: asked, work, num_bytes=num_bytes)

    @app.get(PATH, response_model=FileList, responses=API_ERRORS)
    async def list_files(http: Request, asked: AskedPage, purpose: str = "") -> Response:
        async def work(ctx: RequestContext) -> FileList:
            page = await files.page(ctx, asked, purpose)
            return FileList(**listed(list(map(told, page.values)), page.has_more))

        return await door.through(http, "ListDocuments", lambda: listing("", asked.after), work)

    @app.get(PATH + "/{file_id}", response_model=FileBody, responses=API_ERRORS)
    async def retrieve(http: Request, file_id: str) -> Response:
        async def work(ctx: RequestContext) -> FileBody:
            return told(await files.get(ctx, file_id))

        return await door.through(http, "ListDocuments", listing, work)

    @app.get(PATH + "/{file_id}/content", response_class=Response, responses=API_ERRORS)
    async def content(http: Request, file_id: str) -> Response:
        async def work(ctx: RequestContext) -> Response:
            file = await files.get(ctx, file_id)
            with door.entrance.entered(ctx.principal, file.size_bytes, counted=False):
                _, data = await files.content(ctx, file_id)
            headers = {
                "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
                "x-content-type-options": "nosniff",
            }
            return Response(data, media_type="application/octet-stream", headers=headers)

        return await door.through(http, "ListDocuments", listing, work)

    @app.delete(PATH + "/{file_id}", response_model=FileDeletedBody, responses=API_ERRORS)
    async def delete(http: Request, file_id: str) -> Response:
        async def work(ctx: RequestContext) -> FileDeletedBody:
            await files.delete(ctx, file_id)
            return FileDeletedBody(id=file_id)

        return await door.through(http, "DeleteItem", lambda: dropping(KIND, file_id), work)


def told(file: KeptFile) -> FileBody:
    return FileBody(
        id=file.id,
        bytes=file.size_bytes,
        created_at=int(file.created_s),
        filename=file.name,
        purpose=file.purpose,
        readers=list(file.readers),
    )
