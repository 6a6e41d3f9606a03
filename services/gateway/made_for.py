"""Compares what the KV of found chunks was made for with what is served."""

from __future__ import annotations

from collections.abc import Sequence

from shared.errors import ModelMismatch
from shared.generation.described import ModelDescription
from shared.kv_types import KvContext
from shared.search import SearchHit


def check_served(collection: str, hits: Sequence[SearchHit], model: ModelDescription) -> None:
    """
    Raises:
        ModelMismatch: names a document that was ingested for another model, and the remedy.
    """
    differing = ((hit.document_id, hit.made_for.differs_from(model.made_for)) for hit in hits)
    document_id, what = min(((name, what) for name, what in differing if what), default=("", ""))
    if what:
        raise ModelMismatch(
            f"{document_id!r} in collection {collection!r} was ingested for another {what} than the one "
            f"being served; run `kvquilt ingest --collection {collection} --re-encode`"
        )


def under_others(collection: str, hits: Sequence[SearchHit], ours: KvContext) -> str:
    """Says which chunks were computed under another ``kv_context`` than ``ours``; empty: none. Each names
    what it stands behind, so the answer is right, as it must be while a collection is being brought over."""
    contexts = [hit.made_for.kv_context or KvContext.NONE for hit in hits]
    others = sorted({str(one) for one in contexts if one != ours})
    if not others:
        return ""
    num = sum(one != ours for one in contexts)
    return (
        f"{num} of {len(hits)} chunks of collection {collection!r} were computed under kv_context "
        f"{', '.join(others)}, and {ours} is configured: run `kvquilt ingest --collection {collection} "
        "--re-encode`"
    )
