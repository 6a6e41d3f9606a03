"""Commands of operators about the index: `kvquilt retrieval …`."""

from __future__ import annotations

import dataclasses

import click

from cluster.cli.output import output_option
from cluster.cli.session import LONG_DEADLINE_MS, Session, resumable


@click.group()
def retrieval() -> None:
    """The index over documents."""


@retrieval.command()
@click.option("--collection", "-c", default="", help="Only this collection. Default: all of the tenant's.")
@output_option()
@click.pass_obj
@resumable
async def rebuild(session: Session, collection: str) -> int:
    """Make the index anew from the stored documents.

    Afterwards it holds exactly what the stored documents say: what was lost is indexed, what has no document
    vanishes. For an index that was deleted, that is damaged, or that was made with another embedder, which is
    searched until its whole collection is indexed anew, and then replaced at once. Neither sources nor the
    generator are needed, and no KV is computed. Documents that are indexed as they should be cost a lookup.
    Exit code 1 when a document failed.

    \b
    kvquilt retrieval rebuild
    kvquilt retrieval rebuild -c handbook
    """
    from cluster.cli.ingest_command import follow_all
    from shared.clients.doors import ingest_client

    async with session.connect(ingest_client) as client:
        summary = await follow_all(session.err, client.rebuild(session.context(LONG_DEADLINE_MS), collection))
    session.tell(dataclasses.asdict(summary))
    session.out.print(
        f"{summary.num_stored} indexed, {summary.num_unchanged} as they should be, "
        f"{summary.num_removed} removed from the "
        f"index, {len(summary.failed)} failed",
        soft_wrap=True,
    )
    summary.print_failed(session.out)
    return 1 if summary.failed else 0
