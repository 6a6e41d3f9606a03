"""Commands about documents: `kvquilt ingest`, `documents`, `delete`."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

import click

from cluster.cli.output import output_option
from cluster.cli.session import Session, resumable
from shared.errors import InvalidRequest
from shared.readers import checked_readers

INGEST_DEADLINE_MS = 3_600_000
READERS_OPTION = click.option(
    "--readers",
    multiple=True,
    metavar="GROUP",
    help=(
        "A group that may read what no .readers.yaml names; several by giving it several times. Default: "
        "everybody of the tenant."
    ),
)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--collection", "-c", required=True, help="Where the documents go; created when new.")
@click.option(
    "--re-encode",
    is_flag=True,
    help=(
        "Instead of PATHS: make the collection anew, from its stored text, for the model that is served, its "
        "prompt and the configured kv_context. It answers meanwhile."
    ),
)
@READERS_OPTION
@output_option()
@click.pass_obj
@resumable
async def ingest(
    session: Session, paths: tuple[Path, ...], collection: str, re_encode: bool, readers: tuple[str, ...]
) -> int:
    """Documents in: folders (searched through) and files, .txt .md .html .pdf .docx .pptx .xlsx .csv .eml.

    Unchanged documents cost a lookup, changed ones are replaced, an interrupted run goes on when the same
    command is given again. What of a document could not be read, as pages without text, is a warning, and so
    is a language that the embedder does not read. Exit code 1 when a document failed; the others are in.

    Who may read a document is said by `.readers.yaml` in its folder or above it in PATHS (docs/readers.md),
    else by --readers.

    \b
    kvquilt ingest ./docs --collection handbook
    kvquilt ingest lease.pdf notes.md -c handbook
    kvquilt ingest ./hr -c handbook --readers hr --readers board
    kvquilt ingest -c handbook --re-encode             after the model was changed
    """
    from cluster.cli.ingest_command import follow_all, ingest_files, print_skipped, skipped_values
    from cluster.cli.sources import Sources, find_sources
    from shared.clients.doors import ingest_client

    if bool(paths) == re_encode:
        raise InvalidRequest("name the PATHS to ingest, or --re-encode, not both")
    if readers and re_encode:
        raise InvalidRequest("--readers: not with --re-encode, which leaves documents those that they have")
    groups = checked_readers("--readers", readers)
    sources = find_sources(paths) if paths else Sources([], {})
    print_skipped(session.err, sources.skipped)

    async with session.connect(ingest_client) as client:
        ctx = session.context(INGEST_DEADLINE_MS)
        if re_encode:
            summary = await follow_all(session.err, client.re_encode(ctx, collection))
        else:
            summary = await ingest_files(
                session.err,
                lambda documents: client.upsert(session.context(INGEST_DEADLINE_MS), collection, documents),
                sources.files,
                groups,
            )
    session.tell(asdict(summary) | {"skipped": skipped_values(sources.skipped)})
    summary.print(session.out)
    return 1 if summary.failed else 0


@click.command()
@click.option("--collection", "-c", default="", help="Only this collection.")
@output_option(with_flag=True)
@click.pass_obj
def documents(session: Session, collection: str) -> None:
    """List what has been ingested, who may read it, and what the KV of each document was computed behind
    (kv_context). Documents are named as `kvquilt delete` takes them."""
    from cluster.cli.console import documents_table, print_whole
    from shared.clients.doors import ingest_client

    async def go() -> None:
        async with session.connect(ingest_client) as client:
            found = [d async for d in client.list(session.context(), collection)]
        if session.as_json:
            session.tell(list(map(asdict, found)))
        elif found:
            print_whole(session.out, documents_table(found))
        else:
            session.out.print("no documents")

    asyncio.run(go())


@click.command()
@click.argument("document_ids", nargs=-1)
@click.option("--collection", "-c", required=True)
@click.option("--all", "everything", is_flag=True, help="The whole collection.")
@output_option()
@click.pass_obj
def delete(session: Session, document_ids: tuple[str, ...], collection: str, everything: bool) -> None:
    """Remove documents and every chunk that no other document needs.

    \b
    kvquilt delete lease.pdf -c handbook
    kvquilt delete --all -c handbook
    """
    from shared.clients.doors import ingest_client

    if bool(document_ids) == everything:
        raise InvalidRequest("name DOCUMENT_IDS, or --all, not both")

    deleted = session.ask(
        ingest_client,
        lambda client: client.delete(session.context(), collection, document_ids, everything),
    )
    session.tell(
        asdict(deleted), f"{deleted.num_documents} documents and {deleted.num_chunks} chunks removed"
    )
    for document_id in deleted.not_found:
        session.err.print(f"not found: {document_id}", style="red")
    if deleted.not_found:
        sys.exit(3)
