"""Makes a context of documents that a question brings along."""

from __future__ import annotations

from collections.abc import Sequence

from shared.answer import HandedDocument, Inquiry, RetrievalOptions, Retrieved
from shared.errors import InvalidRequest
from shared.request import check_name
from shared.search import IndexedChunk, SearchHit, SearchMode


def check_source(inquiry: Inquiry) -> None:
    """Of what is pasted it is seen later.

    Raises:
        InvalidRequest: neither a collection nor documents are given; a document is empty, or something is
            asked that is for searches alone.
    """
    if inquiry.pasted:
        return
    if not inquiry.documents:
        if not inquiry.collection:
            raise InvalidRequest("collection: is empty; name the collection to ask, or hand documents over")
        check_name("collection", inquiry.collection)
        return
    searches = {
        "collection": inquiry.collection,
        "retrieval": inquiry.retrieval != RetrievalOptions(),
        "refusal": inquiry.refusal,
    }
    for name, asked in searches.items():
        if asked:
            raise InvalidRequest(
                f"{name}: is for searches, and documents are handed over; leave one of them out"
            )
    for i, document in enumerate(inquiry.documents):
        if not document.text.strip():
            raise InvalidRequest(f"documents[{i}].text: is empty")


def handed(documents: Sequence[HandedDocument]) -> Retrieved:
    """The context, in the order given. A document is one chunk, and is called by its place in the request."""
    hits = (
        SearchHit(IndexedChunk("", document.whole, ()), f"documents[{i}]", document.title, "", 1.0)
        for i, document in enumerate(documents)
    )
    return Retrieved(tuple(hits), SearchMode.AUTO)
