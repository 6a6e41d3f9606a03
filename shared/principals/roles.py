"""Lists which role every RPC needs: one table, which ``docs/authentication.md`` shows and a test compares
with the protos.

Services may call each other's RPCs whatever role the one who asked has: what he asked for was checked where
he came in.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.principals.principal import Role

ANYBODY = None
"""Needs no credentials; whoever has none is told that the service lives, and no more."""

ROLES: Mapping[str, Role | None] = {
    "Rag.Answer": Role.READER,
    "Rag.Feedback": Role.WRITER,
    "Rag.ListFeedback": Role.WRITER,
    "Rag.Health": ANYBODY,
    "Admin.Status": Role.ADMIN,
    "Ingest.Upsert": Role.WRITER,
    "Ingest.DeleteDocuments": Role.WRITER,
    "Ingest.ListDocuments": Role.READER,
    "Ingest.Rebuild": Role.ADMIN,
    "Ingest.Refresh": Role.ADMIN,
    "Ingest.Health": ANYBODY,
    "Retrieval.Search": Role.READER,
    "Retrieval.Embed": Role.READER,
    "Retrieval.ListCollections": Role.READER,
    "Retrieval.AdoptIndex": Role.INTERNAL,
    "Retrieval.Index": Role.INTERNAL,
    "Retrieval.Restrict": Role.INTERNAL,
    "Retrieval.Unindex": Role.INTERNAL,
    "Retrieval.ListIndexed": Role.INTERNAL,
    "Retrieval.Health": ANYBODY,
    "Generation.Generate": Role.READER,
    "Generation.Explore": Role.READER,
    "Generation.DescribeModel": Role.READER,
    "Generation.Prefill": Role.ADMIN,
    "Generation.Recompute": Role.ADMIN,
    "Generation.SuspendVerdict": Role.INTERNAL,
    "Generation.Health": ANYBODY,
    "Selection.Select": Role.INTERNAL,
    "Selection.Encode": Role.INTERNAL,
    "Selection.DescribeAuxiliary": Role.INTERNAL,
    "Selection.Health": ANYBODY,
    "KvStore.Stat": Role.ADMIN,
    "KvStore.Put": Role.ADMIN,
    "KvStore.Get": Role.ADMIN,
    "KvStore.PutManifest": Role.ADMIN,
    "KvStore.CheckQuota": Role.INTERNAL,
    "KvStore.GetManifest": Role.ADMIN,
    "KvStore.ListManifests": Role.ADMIN,
    "KvStore.DeleteManifest": Role.INTERNAL,
    "KvStore.PutItem": Role.ADMIN,
    "KvStore.GetItem": Role.ADMIN,
    "KvStore.ListItems": Role.ADMIN,
    "KvStore.DeleteItem": Role.ADMIN,
    "KvStore.CountDocuments": Role.ADMIN,
    "KvStore.Readable": Role.INTERNAL,
    "KvStore.Prefetch": Role.INTERNAL,
    "KvStore.Stats": Role.ADMIN,
    "KvStore.Verify": Role.ADMIN,
    "KvStore.CollectGarbage": Role.ADMIN,
    "KvStore.Pin": Role.ADMIN,
    "KvStore.ListPins": Role.ADMIN,
    "KvStore.Health": ANYBODY,
    "NodeStore.Open": Role.INTERNAL,
    "NodeStore.Stage": Role.INTERNAL,
    "NodeStore.Adopt": Role.INTERNAL,
    "NodeStore.Chain": Role.INTERNAL,
    "NodeStore.Readable": Role.INTERNAL,
    "NodeStore.Prefetch": Role.INTERNAL,
    "NodeStore.ListChunks": Role.INTERNAL,
    "NodeStore.DeleteChunks": Role.INTERNAL,
    "NodeStore.LocalCopies": Role.INTERNAL,
    "NodeStore.Needed": Role.INTERNAL,
    "NodeStore.ListPinnedChunks": Role.INTERNAL,
    "NodeStore.Readers": Role.INTERNAL,
}
"""Service and method → the role; those of one name need the same one, since Ray Serve has one name space for
all methods of an application."""

_OF_METHOD = {rpc.partition(".")[2]: role for rpc, role in ROLES.items()}


def role_for(method: str) -> Role | None:
    """One that is not in the table is for the services alone."""
    return _OF_METHOD.get(method, Role.INTERNAL)
