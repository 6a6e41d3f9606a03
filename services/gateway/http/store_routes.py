"""``/v1/vector_stores``: collections, and searches of them."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Request, Response

from services.gateway.http.door import HttpDoor
from services.gateway.http.errors import API_ERRORS
from services.gateway.http.headers import is_retry
from services.gateway.http.messages import WireRequest, deleting, listing, upserting
from services.gateway.http.messages import searching as searching_for
from services.gateway.http.paging import AskedPage, listed
from services.gateway.http.store_bodies import (
    FoundBody,
    SearchPage,
    SearchRequest,
    StoreBody,
    StoreChangeRequest,
    StoreDeletedBody,
    StoreList,
    StoreRequest,
)
from services.gateway.kept.members import Members
from services.gateway.kept.searching import Searching
from services.gateway.kept.stores import VectorStores, check_id
from shared.request import RequestContext

PATH = "/v1/vector_stores"
ONE = PATH + "/{store_id}"
_NAMES = {f"documents[{i}].document_id": f"file_ids[{i}]" for i in range(1024)}


def add_stores(
    app: FastAPI, door: HttpDoor, stores: VectorStores, members: Members, searching: Searching
) -> None:
    @app.post(PATH, response_model=StoreBody, responses=API_ERRORS)
    async def create(body: StoreRequest, http: Request) -> Response:
        def asked() -> WireRequest:
            body.new()
            return upserting(body.name or "", body.file_ids or [])

        async def work(ctx: RequestContext) -> StoreBody:
            store = await stores.create(ctx, body.new(), is_retry(http.headers))
            for file_id in body.file_ids or ():
                await members.attach(ctx, store.id, file_id)
            return StoreBody.of(await stores.get(ctx, store.id))

        return await door.through(http, "Upsert", asked, work, _NAMES)

    @app.get(PATH, response_model=StoreList, responses=API_ERRORS)
    async def list_stores(http: Request, asked: AskedPage) -> Response:
        async def work(ctx: RequestContext) -> StoreList:
            page = await stores.page(ctx, asked)
            return StoreList(**listed(list(map(StoreBody.of, page.values)), page.has_more))

        return await door.through(http, "ListDocuments", listing, work)

    @app.get(ONE, response_model=StoreBody, responses=API_ERRORS)
    async def retrieve(http: Request, store_id: str) -> Response:
        async def work(ctx: RequestContext) -> StoreBody:
            return StoreBody.of(await stores.get(ctx, store_id))

        return await door.through(http, "ListDocuments", partial(listing_of, store_id), work)

    @app.post(ONE, response_model=StoreBody, responses=API_ERRORS)
    async def change(body: StoreChangeRequest, http: Request, store_id: str) -> Response:
        def asked() -> WireRequest:
            check_id(store_id)
            body.change()
            return upserting(store_id, [])

        async def work(ctx: RequestContext) -> StoreBody:
            return StoreBody.of(await stores.change(ctx, store_id, body.change()))

        return await door.through(http, "Upsert", asked, work)

    @app.delete(ONE, response_model=StoreDeletedBody, responses=API_ERRORS)
    async def delete(http: Request, store_id: str) -> Response:
        def asked() -> WireRequest:
            check_id(store_id)
            return deleting(store_id)

        async def work(ctx: RequestContext) -> StoreDeletedBody:
            await stores.delete(ctx, store_id)
            return StoreDeletedBody(id=store_id)

        return await door.through(http, "DeleteDocuments", asked, work)

    @app.post(ONE + "/search", response_model=SearchPage, responses=API_ERRORS)
    async def search(body: SearchRequest, http: Request, store_id: str) -> Response:
        def asked() -> WireRequest:
            check_id(store_id)
            return searching_for(body.asked(store_id))

        async def work(ctx: RequestContext) -> SearchPage:
            found = await searching.search(ctx, body.asked(store_id))
            return SearchPage(search_query=body.queries, data=list(map(FoundBody.of, found)))

        return await door.through(http, "Search", asked, work, body.names)


def listing_of(store_id: str) -> WireRequest:
    """
    Raises:
        NotFound: no store has such an id.
    """
    check_id(store_id)
    return listing(store_id)
