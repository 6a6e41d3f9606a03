"""Tells which collections are not as they would be made now: by another model or prompt, under another
``kv_context``, or in another scope of sharing."""

from __future__ import annotations

from collections.abc import Sequence

from shared.errors import ModelMismatch
from shared.generation.described import MadeFor, ModelDescription
from shared.kv_types import AlikeDocuments, KvContext, Manifest

_MOST_NAMED = 5


def mixed_collections(counts: Sequence[AlikeDocuments], now: MadeFor) -> str:
    """For an operator, with what brings them over; empty: all are as they should be."""
    others: dict[str, list[str]] = {}
    for count in counts:
        if what := difference(count.made_for, now):
            others.setdefault(count.collection, []).append(f"{count.num_documents} of {what}")
    if not others:
        return ""
    totals = {name: sum(c.num_documents for c in counts if c.collection == name) for name in others}
    told = [f"{name} ({', '.join(others[name])}; {totals[name]} documents)" for name in sorted(others)]
    more = f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
    some = min(others) if len(others) == 1 else "NAME"
    return (
        f"collections made otherwise than documents are now: {', '.join(told[:_MOST_NAMED])}{more}; "
        f"bring them over while they answer: kvquilt ingest --re-encode --collection {some}"
    )


def difference(made: MadeFor, now: MadeFor) -> str:
    """Says what ``made`` has otherwise; empty: nothing."""
    if what := made.differs_from(now):
        return f"another {what}"
    if made.kv_context != now.kv_context:
        return f"kv_context {made.kv_context or KvContext.NONE.value}"
    return f"sharing scope {made.kv_scope or 'none'}" if made.kv_scope != now.kv_scope else ""


def mixing(collection: str, stale: Sequence[Manifest], model: ModelDescription) -> ModelMismatch:
    """Says why a new document is not stored beside ``stale`` ones."""
    what = stale[0].made_for.differs_from(model.made_for)
    return ModelMismatch(
        f"collection {collection!r} has {len(stale)} documents made for another {what} than the one "
        "being served; new ones are not "
        f"mixed in. Re-encode the collection first: kvquilt ingest --re-encode --collection {collection}"
    )
