"""Commands of operators about the KV that is kept: `kvquilt store …`.

Longer than other modules: one group of commands, and their help.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cluster.cli.duration import Duration
from cluster.cli.output import output_option
from cluster.cli.session import EXISTING_FILE, FILE, LONG_DEADLINE_MS, Session, resumable

if TYPE_CHECKING:
    from cluster.archive.transfer import Transferred
    from shared.clients.kv_store import KvStoreClient
    from shared.kv_reports import StoreStats
    from shared.kv_types import AlikeDocuments


@click.group()
def store() -> None:
    """The KV that is kept: what there is, whether it is whole, and moving it.

    \b
    kvquilt store stats                       what every tier holds, to the byte
    kvquilt store verify                      read and verify every copy
    kvquilt store repair                      make whole what is damaged or missing
    kvquilt store migrate --encoding int8     bring KV into another encoding, documents to the model that is served
    kvquilt store gc                          remove what no document needs
    kvquilt store pin -c handbook             keep a collection in the nodes' tiers
    kvquilt store export -c handbook FILE     a collection, or everything, as one file; `import` brings it back
    """  # noqa: E501


@store.command()
@output_option(with_flag=True)
@click.pass_obj
def stats(session: Session) -> None:
    """Show what every tier of every node holds, to the byte, what the documents of each tenant, and of each
    principal that stored some of them, keep and may keep, and how the documents of your collections were
    made.

    Tiers: memory and disk (copies; the disk is the truth where there is no object store), pending (durable on
    that node, not yet in the object store), objects (the object store). The bytes of a tenant, and of a
    principal, are those of the distinct chunks of its documents. Items are what front doors keep, such as
    uploaded files. Documents and items that your key may not read are left out.
    """
    from cluster.cli.store_console import (
        collections_table,
        counters_table,
        principals_table,
        stats_values,
        tenants_table,
        tiers_table,
    )
    from shared.clients.doors import store_client

    async def both(store: KvStoreClient) -> tuple[StoreStats, list[AlikeDocuments]]:
        return await store.stats(session.context()), await store.count_documents(session.context())

    found, counts = session.ask(store_client, both)
    if session.as_json:
        session.tell(stats_values(found, counts))
        return
    for table in (
        tiers_table(found),
        tenants_table(found),
        principals_table(found),
        collections_table(counts),
        counters_table(found),
    ):
        if table.row_count:
            session.out.print(table)
            session.out.print()
    if found.objects_detail:
        told = f"what the object store holds is not known: {found.objects_detail}"
        session.err.print(told, style="red", soft_wrap=True)
    if found.num_unreachable:
        session.err.print(f"{found.num_unreachable} node(s) do not answer; they are not counted", style="red")


@store.command()
@click.option(
    "--recompute-sample",
    "num_recomputed",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also compute the KV of N random chunks once more, and compare it with what is stored.",
)
@output_option()
@click.pass_obj
def verify(session: Session, num_recomputed: int | None) -> None:
    """Read and verify every copy of every chunk, in every tier of every node and in the object store, both
    copies of every document's manifest, the pins, and what front doors keep, such as uploaded files.

    Changes nothing. Lists damaged and forged copies, and chunks that documents need and of which no durable
    good copy is left; exit code 1 if there are any. `kvquilt store repair` makes them whole. Also counts what
    has no seal of the installation's current key.

    \b
    kvquilt store verify
    kvquilt store verify --recompute-sample 20       is the KV what the model makes of the documents?
    """
    from cluster.cli.recomputing import verify_store

    if not asyncio.run(verify_store(session, num_recomputed or 0)):
        sys.exit(1)


@store.command()
@output_option()
@click.pass_obj
@resumable
async def repair(session: Session) -> int:
    """Verify everything, replace damaged copies by good ones, and compute anew what has no good copy left.

    Documents of all tenants are repaired, or those of --tenant. Exit code 0 when everything is whole
    afterwards.
    """
    from cluster.cli.store_upkeep import print_findings
    from cluster.cli.store_upkeep import repair as recompute
    from cluster.cli.store_upkeep import verify as scrub
    from shared.clients.doors import ingest_client, store_client

    async with session.connect(store_client) as client, session.connect(ingest_client) as ingest:
        findings = await scrub(session.err, client, session.context(LONG_DEADLINE_MS), repair=True)
        print_findings(session.out, findings)
        contexts = partial(session.context, LONG_DEADLINE_MS)
        whole = await recompute(session.out, session.err, client, ingest, contexts, session.tenant, findings)
    told = "whole" if whole else "not whole: see above; the same command may be given again"
    session.tell(asdict(findings) | {"whole": whole}, told)
    return 0 if whole else 1


@store.command()
@click.option("--collection", "-c", default="", help="Only this collection. Default: all of the tenant's.")
@click.option(
    "--encoding", default="", help="exact, int8, … Default: the one in which the generator writes new KV."
)
@click.option(
    "--seal/--no-seal",
    default=True,
    help="Also seal what has no seal of the current key, of all tenants; reads everything. Default: yes.",
)
@output_option()
@click.pass_obj
@resumable
async def migrate(session: Session, collection: str, encoding: str, seal: bool) -> int:
    """Bring documents to the model that is served, their KV into one encoding, and what is stored under the
    installation's current key.

    Documents of another model are made anew from their stored text, as `kvquilt ingest --re-encode` does.
    Questions are answered meanwhile: a store may hold mixed encodings. Exit code 1 when a document failed.

    \b
    kvquilt store migrate --encoding int8           half the bytes
    kvquilt store migrate -c handbook               after the model or its kv_encoding was changed
    """
    from cluster.cli.recomputing import seal_store
    from cluster.cli.store_upkeep import migrate as bring
    from shared.clients.doors import generation_client, ingest_client

    async with session.connect(ingest_client) as ingest, session.connect(generation_client) as generation:
        chosen = encoding or (await generation.describe(session.context())).kv_encoding
        contexts = partial(session.context, LONG_DEADLINE_MS)
        summary = await bring(session.out, session.err, ingest, contexts, collection, chosen)
    told = asdict(summary) | {"encoding": chosen}
    if summary.failed:
        session.tell(told)
        summary.print_failed(session.out)
        return 1
    session.out.print(
        f"{summary.num_done} documents have all their KV in {chosen or 'the encoding of the generator'}"
    )
    session.tell(told | {"seals": asdict(await seal_store(session)) if seal else None})
    return 0


@store.command()
@click.option(
    "--grace",
    type=Duration(),
    default="1h",
    show_default=True,
    help="Only what was stored at least this long ago.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
@output_option()
@click.pass_obj
def gc(session: Session, grace: float, dry_run: bool) -> None:
    """Remove chunks that no document needs and nobody reads.

    The store does this by itself from time to time (kv_store.garbage in the configuration). Nothing that a
    document refers to or a request is reading is ever removed.
    """
    from shared.clients.doors import store_client

    ctx = session.context(LONG_DEADLINE_MS)
    found = session.ask(store_client, lambda store: store.collect_garbage(ctx, grace, dry_run))
    doing = "would be removed" if dry_run else "removed"
    session.tell(asdict(found) | {"dry_run": dry_run})
    session.out.print(
        f"{found.num_chunks} chunks of {found.num_bytes:,} bytes {doing}; {found.num_kept} kept "
        "(too young or being read)",
        soft_wrap=True,
    )


@store.command()
@click.argument("document_ids", nargs=-1)
@click.option("--collection", "-c", required=True)
@output_option()
@click.pass_obj
def pin(session: Session, document_ids: tuple[str, ...], collection: str) -> None:
    """Keep documents in the nodes' tiers once they are there, whatever else is read.

    Without DOCUMENT_IDS the whole collection, documents that are added later included.

    \b
    kvquilt store pin -c handbook
    kvquilt store pin lease.pdf -c handbook
    """
    _change_pins(session, collection, document_ids, unpin=False)


@store.command()
@click.argument("document_ids", nargs=-1)
@click.option("--collection", "-c", required=True)
@output_option()
@click.pass_obj
def unpin(session: Session, document_ids: tuple[str, ...], collection: str) -> None:
    """Take pins back: of DOCUMENT_IDS, or of the collection."""
    _change_pins(session, collection, document_ids, unpin=True)


@store.command()
@output_option()
@click.pass_obj
def pins(session: Session) -> None:
    """List what is pinned."""
    from cluster.cli.store_console import pins_table
    from shared.clients.doors import store_client

    found = session.ask(store_client, lambda store: store.list_pins(session.context()))
    session.tell(list(map(asdict, found)))
    session.out.print(pins_table(found) if found else "nothing is pinned")


_items_option = click.option(
    "--items/--no-items",
    "with_items",
    default=True,
    help="Also uploaded files, vector stores and responses, which takes a key that reads everything "
    "(group *). Default: yes.",
)


@store.command("export")
@click.argument("file", type=FILE)
@click.option("--collection", "-c", default="", help="Only this collection. Default: all of the tenant's.")
@_items_option
@output_option()
@click.pass_obj
@resumable
async def export_(session: Session, file: Path, collection: str, with_items: bool) -> int:
    """Write a collection, or all that the tenant has, to one FILE: documents and their KV, and what is kept
    beside them over HTTP.

    Of a collection that is the vector store that it is, files on their way into it, and the files that its
    documents are made of; of a tenant everything, responses included. The file is a tar archive; every chunk
    is in it once, and everything is verified on the way. It appears under its name when it is whole; an
    export that was interrupted goes on when the same command is given again.

    \b
    kvquilt store export -c handbook handbook.kvquilt
    kvquilt --tenant acme store export acme.kvquilt
    """
    from cluster.archive.transfer import export_collection
    from shared.clients.doors import store_client

    async with session.connect(store_client) as client:
        ctx = session.context(LONG_DEADLINE_MS)
        written = await export_collection(session.err, client, ctx, collection, file, with_items)
    session.tell(asdict(written) | {"file": file}, f"{_counted(written)} in {file}")
    return 0


@store.command("import")
@click.argument("file", type=EXISTING_FILE)
@click.option(
    "--collection", "-c", default="", help="Under another name. Default: the one it was exported from."
)
@_items_option
@click.option(
    "--replace-items",
    is_flag=True,
    help="Replace files, vector stores and responses of the same name that are others. Default: an error.",
)
@output_option()
@click.pass_obj
@resumable
async def import_(
    session: Session, file: Path, collection: str, with_items: bool, replace_items: bool
) -> int:
    """Bring an exported collection, or all that a tenant had, into this store, for the tenant that was
    chosen, and index it.

    Documents of the same id are replaced. The model that is served must be the one that computed the KV.
    Files, vector stores and responses are as old as they were, and count as stored by whose they were; for
    another tenant than the export's they become yours. Everything is verified; what is stored already is not
    sent again, so an interrupted import goes on when the same command is given again.

    \b
    kvquilt store import handbook.kvquilt
    kvquilt --tenant acme store import handbook.kvquilt -c manual
    """
    from cluster.archive.transfer import import_collection
    from cluster.cli.ingest_command import Summary, follow_all
    from shared.clients.doors import generation_client, ingest_client, store_client

    ctx = session.context(LONG_DEADLINE_MS)
    async with session.connect(store_client) as client, session.connect(generation_client) as generation:
        model = await generation.describe(session.context())
        moving = (session.err, client, ctx, model, file, collection)
        written = await import_collection(*moving, with_items, replace_items)
    summary = Summary()
    if written.num_documents:
        async with session.connect(ingest_client) as ingest:
            summary = await follow_all(session.err, ingest.rebuild(ctx, written.collection))
    where = f"collection {written.collection}" if written.collection else f"tenant {ctx.tenant}"
    session.tell(asdict(written) | {"failed": summary.failed}, f"{_counted(written)} in {where}")
    summary.print_failed(session.out)
    return 1 if summary.failed else 0


def _counted(moved: Transferred) -> str:
    documents, chunks = f"{moved.num_documents} documents", f"{moved.num_chunks} chunks"
    if not moved.num_items:
        return f"{documents} and {chunks}"
    return f"{documents}, {chunks} and {moved.num_items} files, vector stores or responses"


def _change_pins(session: Session, collection: str, document_ids: tuple[str, ...], unpin: bool) -> None:
    from shared.clients.doors import store_client

    async def change(store: KvStoreClient) -> int:
        for document_id in document_ids or ("",):
            num_bytes = await store.pin(session.context(), collection, document_id, unpin)
        return num_bytes

    num_bytes = session.ask(store_client, change)
    session.tell({"pinned_bytes": num_bytes}, f"{num_bytes:,} bytes are pinned now, over all tenants")
