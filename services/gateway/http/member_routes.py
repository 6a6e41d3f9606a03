"""``/v1/vector_stores/…/files`` and ``/file_batches``: what collections are made of."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Request, Response

from services.gateway.http.bodies import check_parameters
from services.gateway.http.door import HttpDoor
from services.gateway.http.errors import API_ERRORS
from services.gateway.http.messages import WireRequest, deleting, upserting
from services.gateway.http.paging import AskedPage, listed
from services.gateway.http.store_bodies import (
    AttachRequest,
    AttributesRequest,
    BatchBody,
    BatchRequest,
    MemberBody,
    MemberDeletedBody,
    MemberList,
)
from services.gateway.http.store_routes import ONE, listing_of
from services.gateway.kept.attaching import Status
from services.gateway.kept.batches import Batches
from services.gateway.kept.members import Members
from services.gateway.kept.stores import check_id
from shared.errors import InvalidRequest
from shared.request import RequestContext

_FILES, _BATCHES = ONE + "/files", ONE + "/file_batches"


def add_members(app: FastAPI, door: HttpDoor, members: Members) -> None:
    @app.post(_FILES, response_model=MemberBody, responses=API_ERRORS)
    async def attach(body: AttachRequest, http: Request, store_id: str) -> Response:
        def asked() -> WireRequest:
            check_id(store_id)
            body.check()
            return upserting(store_id, [body.file_id])

        async def work(ctx: RequestContext) -> MemberBody:
            return MemberBody.of(await members.attach(ctx, store_id, body.file_id, body.attributes))

        return await door.through(http, "Upsert", asked, work, {"documents[0].document_id": "file_id"})

    @app.get(_FILES, response_model=MemberList, responses=API_ERRORS)
    async def list_files(http: Request, store_id: str, asked: AskedPage, filter: str = "") -> Response:
        async def work(ctx: RequestContext) -> MemberList:
            page = await members.page(ctx, store_id, asked, _status(filter))
            return MemberList(**listed(list(map(MemberBody.of, page.values)), page.has_more))

        return await door.through(http, "ListDocuments", partial(listing_of, store_id), work)

    @app.get(_FILES + "/{file_id}", response_model=MemberBody, responses=API_ERRORS)
    async def retrieve(http: Request, store_id: str, file_id: str) -> Response:
        async def work(ctx: RequestContext) -> MemberBody:
            return MemberBody.of(await members.get(ctx, store_id, file_id))

        return await door.through(http, "ListDocuments", partial(listing_of, store_id), work)

    @app.post(_FILES + "/{file_id}", response_model=MemberBody, responses=API_ERRORS)
    async def change(body: AttributesRequest, http: Request, store_id: str, file_id: str) -> Response:
        def asked() -> WireRequest:
            check_id(store_id)
            check_parameters(body, {})
            return upserting(store_id, [file_id])

        async def work(ctx: RequestContext) -> MemberBody:
            await members.get(ctx, store_id, file_id)
            return MemberBody.of(await members.attach(ctx, store_id, file_id, body.attributes))

        return await door.through(http, "Upsert", asked, work, {"documents[0].document_id": "file_id"})

    @app.delete(_FILES + "/{file_id}", response_model=MemberDeletedBody, responses=API_ERRORS)
    async def detach(http: Request, store_id: str, file_id: str) -> Response:
        def asked() -> WireRequest:
            check_id(store_id)
            return deleting(store_id, [file_id])

        async def work(ctx: RequestContext) -> MemberDeletedBody:
            await members.detach(ctx, store_id, file_id)
            return MemberDeletedBody(id=file_id)

        return await door.through(http, "DeleteDocuments", asked, work)


def add_batches(app: FastAPI, door: HttpDoor, batches: Batches) -> None:
    @app.post(_BATCHES, response_model=BatchBody, responses=API_ERRORS)
    async def create(body: BatchRequest, http: Request, store_id: str) -> Response:
        def asked() -> WireRequest:
            check_id(store_id)
            return upserting(store_id, [file_id for file_id, _ in body.named()])

        async def work(ctx: RequestContext) -> BatchBody:
            return BatchBody.of(await batches.create(ctx, store_id, body.named()))

        return await door.through(http, "Upsert", asked, work, {"documents": "file_ids"})

    @app.get(_BATCHES + "/{batch_id}", response_model=BatchBody, responses=API_ERRORS)
    async def retrieve(http: Request, store_id: str, batch_id: str) -> Response:
        async def work(ctx: RequestContext) -> BatchBody:
            return BatchBody.of(await batches.get(ctx, store_id, batch_id))

        return await door.through(http, "ListDocuments", partial(listing_of, store_id), work)

    @app.post(_BATCHES + "/{batch_id}/cancel", response_model=BatchBody, responses=API_ERRORS)
    async def cancel(http: Request, store_id: str, batch_id: str) -> Response:
        def asked() -> WireRequest:
            check_id(store_id)
            return upserting(store_id, [])

        async def work(ctx: RequestContext) -> BatchBody:
            return BatchBody.of(await batches.cancel(ctx, store_id, batch_id))

        return await door.through(http, "Upsert", asked, work)


def _status(name: str) -> Status | None:
    """
    Raises:
        InvalidRequest: there is none of this name.
    """
    if not name:
        return None
    if name not in set(Status):
        raise InvalidRequest(f"filter: {name[:80]!r} is not one of {', '.join(Status)}")
    return Status(name)
