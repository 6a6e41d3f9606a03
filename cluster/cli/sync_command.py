"""`kvquilt sync`: a collection in step with a folder or a prefix of a bucket."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from cluster.cli.document_commands import INGEST_DEADLINE_MS, READERS_OPTION
from cluster.cli.output import output_option
from cluster.cli.session import EXISTING_FILE, Session, resumable
from shared.documents import DeletedDocuments, DocumentInfo, SourceDocument, UpsertProgress
from shared.errors import InvalidRequest, NotFound
from shared.readers import checked_readers

if TYPE_CHECKING:
    from cluster.cli.syncing import SyncReport, SyncSource
    from shared.clients.ingest import IngestClient


@click.command()
@click.argument("source")
@click.option("--collection", "-c", required=True, help="What is brought in step; created when new.")
@click.option("--delete", is_flag=True, help="Delete documents that have vanished from SOURCE.")
@click.option("--yes", is_flag=True, help="With --delete: however many they are.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@READERS_OPTION
@click.option(
    "--as",
    "label",
    default="",
    metavar="NAME",
    help="What SOURCE is called, wherever it lies; its documents are named NAME/path.",
)
@click.option(
    "--endpoint",
    default="",
    metavar="URL",
    help="The S3 server. Default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else Amazon's.",
)
@click.option(
    "--config",
    "config_path",
    type=EXISTING_FILE,
    help="A quilt.yaml whose `kv_store.objects` says how the S3 server is reached.",
)
@output_option(with_flag=True)
@click.pass_obj
@resumable
async def sync(
    session: Session,
    source: str,
    collection: str,
    delete: bool,
    yes: bool,
    dry_run: bool,
    readers: tuple[str, ...],
    label: str,
    endpoint: str,
    config_path: Path | None,
) -> int:
    """Bring a collection in step with SOURCE, a folder or s3://BUCKET/PREFIX: new and changed documents go
    in, vanished ones are reported, and go out with --delete.

    \b
    kvquilt sync ./docs -c handbook --dry-run          what would be done
    kvquilt sync ./docs -c handbook --delete
    kvquilt sync s3://company/handbook -c handbook --delete --endpoint https://minio.example:9000
    kvquilt sync /mnt/team -c handbook --delete --as team

    Every file is read and compared by its hash; one that has not changed costs neither prefill nor embedding.
    A renamed file is added and deleted. What cannot be parsed keeps its old document. Vanished documents go
    last, after everything was stored; none goes when SOURCE is empty or cannot be reached.

    Only documents that `sync` or `ingest` brought from the same SOURCE are replaced or deleted: a folder is
    known by its absolute path, a prefix by server, bucket and name, both by --as NAME if it is given. So
    several SOURCES can share a collection. Deleting more than 10 documents, and more than half of SOURCE's,
    needs --yes.

    Who may read a document is said by `.readers.yaml` in SOURCE (docs/readers.md), else by --readers, else
    everybody of the tenant may; a document whose readers alone have changed is changed, and costs no prefill.

    S3 keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from credentials_file in --config.

    Exit code 1 when a document failed or a deletion did not happen; the others are done. An interrupted run
    goes on when the same command is given again.
    """
    from cluster.cli.ingest_command import print_skipped, skipped_values
    from cluster.cli.syncing import Sync
    from shared.clients.doors import ingest_client

    if yes and not delete:
        raise InvalidRequest("--yes: only with --delete")
    groups = checked_readers("--readers", readers)
    chosen = _source_of(source, label, endpoint, config_path)
    found = chosen.find()
    print_skipped(session.err, found.skipped)

    async with session.connect(ingest_client) as client:
        run = Sync(chosen, _Remote(client, session, collection), delete, yes, dry_run, groups)
        report = await run.run(session.err, found)
    if session.as_json:
        told = as_values(report, collection, dry_run)
        session.tell(told | {"skipped": skipped_values(found.skipped)})
    print_report(session.out, report, delete, dry_run)
    return 0 if report.complete else 1


@dataclass(frozen=True, slots=True)
class _Remote:
    """A collection of a running system."""

    client: IngestClient
    session: Session
    name: str

    async def documents(self) -> AsyncIterator[DocumentInfo]:
        try:
            async for document in self.client.list(self.session.context(), self.name):
                yield document
        except NotFound:  # there is none yet
            return

    def upsert(
        self, documents: Sequence[SourceDocument], dry_run: bool
    ) -> AsyncGenerator[UpsertProgress, None]:
        return self.client.upsert(self.session.context(INGEST_DEADLINE_MS), self.name, documents, dry_run)

    async def delete(self, document_ids: Sequence[str]) -> DeletedDocuments:
        return await self.client.delete(self.session.context(INGEST_DEADLINE_MS), self.name, document_ids)


def as_values(report: SyncReport, collection: str, dry_run: bool) -> dict[str, object]:
    """For programs."""
    values = asdict(report)
    del values["num_own"]
    counts = values.pop("summary")
    kept = ("failed", "warnings", "num_chunks", "num_chunks_reused", "num_tokens")
    return {"collection": collection, "dry_run": dry_run, **values, **{name: counts[name] for name in kept}}


def print_report(console: Console, report: SyncReport, delete: bool, dry_run: bool) -> None:
    """Prints what was done, by name as long as it is little, then in numbers, then what went wrong."""
    from cluster.cli.ingest_command import NUM_SHOWN

    gone = [d for d in report.vanished if not (delete and dry_run)]
    deleted = report.deleted + [d for d in report.vanished if delete and dry_run]
    summary = report.summary
    for done, documents, style in (
        ("added", report.added, "green"),
        ("changed", report.changed, "green"),
        ("deleted", deleted, "red"),
        ("vanished", gone, "yellow"),
        ("unseen", report.unseen, "yellow"),
    ):
        for document_id in documents[:NUM_SHOWN]:
            console.print(Text(f"{done:<9} {document_id}", style), soft_wrap=True)
        if (more := len(documents) - NUM_SHOWN) > 0:
            console.print(Text(f"{done:<9} {more} more", style))
    chunks = f"{summary.num_chunks} chunks of {summary.num_tokens} tokens"
    reused = "" if dry_run else f", {summary.num_chunks_reused} with KV already"
    console.print(
        f"{'would be: ' if dry_run else ''}{len(report.added)} added, {len(report.changed)} changed "
        f"({chunks}{reused}), {len(report.unchanged)} unchanged, {len(deleted)} deleted, "
        f"{len(summary.failed)} failed"
    )
    if gone and not delete:
        hint = f"{len(gone)} have vanished from {report.source}; --delete removes them"
        console.print(Text(hint), soft_wrap=True)
    if report.needs_yes:
        console.print(f"deleting {len(deleted)} of {report.num_own} needs --yes")
    if report.unseen:
        console.print(f"{len(report.unseen)} were not found, but may be there: they stay")
    summary.print_warnings(console)
    summary.print_failed(console)
    if report.not_deleted:
        console.print(Text(report.not_deleted, "red"), soft_wrap=True)


def _source_of(source: str, label: str, endpoint: str, config_path: Path | None) -> SyncSource:
    from cluster.cli.object_source import SCHEME, object_prefix
    from cluster.cli.sources import Folder

    if source.startswith(SCHEME):
        return object_prefix(source, endpoint, config_path, label, os.environ)
    if endpoint or config_path:
        raise InvalidRequest(f"--endpoint and --config belong to {SCHEME}BUCKET/PREFIX")
    if "://" in source:
        raise InvalidRequest(f"SOURCE: a folder or {SCHEME}BUCKET/PREFIX, got {source!r}")
    return Folder(Path(source), label)
