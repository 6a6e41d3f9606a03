"""Names the files of manifests: a document's after what it is called, so that no other document's passes for
it."""

from __future__ import annotations

from hashlib import blake2b

from shared.request import check_name

Key = tuple[str, str, str]
"""Tenant, collection, document id."""
REMOVED = "removed/"
"""Before the names of journals, which are called by nobody."""


def name_of(key: Key) -> str:
    """
    Raises:
        InvalidRequest: tenant or collection is no name.
    """
    tenant, collection, document_id = key
    check_name("tenant", tenant)
    check_name("collection", collection)
    return f"manifests/{tenant}/{collection}/{blake2b(document_id.encode(), digest_size=20).hexdigest()}.json"
