"""Brings a collection in step with a source: what is new or changed goes in, then what has vanished goes out.

Documents belong to the source that they say they came from (``SOURCE_KEY`` in their metadata, as `kvquilt
ingest` and `kvquilt sync` write it). Those of others, and those that name none, are neither replaced nor
deleted. Vanished is what is not there any more by certain knowledge: not what lies in a folder that cannot be
searched, and never everything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console

from cluster.cli.ingest_command import Summary, ingest_files, progress_bar
from cluster.cli.sources import Readable, Sources
from shared.documents import DeletedDocuments, DocumentInfo, SourceDocument, Stage, UpsertProgress
from shared.errors import InvalidRequest, KvquiltError, UnreadableDocument
from shared.readers import EVERYBODY, Readers

MANY, MANY_SHARE = 10, 0.5
"""Deleting more documents than the first, and more than this share of the source's, needs consent."""
_DELETED_AT_ONCE = 16


class SyncSource(Protocol):
    """``name``: as documents remember it. ``id_prefix``: how their ids begin."""

    name: str
    id_prefix: str

    def find(self) -> Sources[Readable]:
        """
        Raises:
            KvquiltError: it cannot be reached, or holds no documents.
        """
        ...

    def has(self, document_id: str) -> bool:
        """Whether the document is there, or nobody can tell."""
        ...


class SyncedCollection(Protocol):
    """The documents of one collection, which need not exist."""

    def documents(self) -> AsyncIterator[DocumentInfo]: ...

    def upsert(
        self, documents: Sequence[SourceDocument], dry_run: bool
    ) -> AsyncGenerator[UpsertProgress, None]: ...

    async def delete(self, document_ids: Sequence[str]) -> DeletedDocuments: ...


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """``files``: to be compared, and stored where they differ. ``own``: documents of the source in the
    collection; ``vanished``: those that are not there any more; ``unseen``: those that were not found, though
    they may be there. ``taken``: names that are other documents' already, with the reason."""

    files: tuple[Readable, ...]
    own: frozenset[str]
    vanished: tuple[str, ...]
    unseen: tuple[str, ...]
    taken: Mapping[str, str]

    @property
    def deletes_many(self) -> bool:
        return len(self.vanished) > max(MANY, MANY_SHARE * len(self.own))


@dataclass(slots=True)
class SyncReport:
    """Document ids in order, by what became of them; in a dry run, by what would. ``vanished``: those that
    are in the collection still. ``num_own``: documents of the source before the run; ``needs_yes``: the dry
    run would delete too many of them for a run without consent. ``not_deleted``: why vanished ones stay
    though they were to go."""

    source: str
    num_own: int = 0
    needs_yes: bool = False
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    summary: Summary = field(default_factory=Summary)
    not_deleted: str = ""

    @property
    def complete(self) -> bool:
        return not self.summary.failed and not self.not_deleted


def plan_of(source: SyncSource, found: Sources[Readable], documents: Iterable[DocumentInfo]) -> SyncPlan:
    """Plans what there is to do, by names alone."""
    in_source = {file.document_id: file for file in found.files}
    own: set[str] = set()
    taken: dict[str, str] = {}
    for document in documents:
        if document.source == source.name and document.document_id.startswith(source.id_prefix):
            own.add(document.document_id)
        elif document.document_id in in_source:
            taken[document.document_id] = _taken(document)
    missing = sorted(own - in_source.keys())
    return SyncPlan(
        files=tuple(file for document_id, file in in_source.items() if document_id not in taken),
        own=frozenset(own),
        vanished=tuple(d for d in missing if not source.has(d)),
        unseen=tuple(d for d in missing if source.has(d)),
        taken=taken,
    )


@dataclass(frozen=True, slots=True)
class Sync:
    """One run. ``delete``: vanished documents go; ``yes``: however many they are. ``dry_run``: only tell.
    ``readers``: of documents about which no file says who may read them."""

    source: SyncSource
    collection: SyncedCollection
    delete: bool = False
    yes: bool = False
    dry_run: bool = False
    readers: Readers = EVERYBODY

    async def run(self, console: Console, found: Sources[Readable]) -> SyncReport:
        """``found``: by the source's ``find``.

        Raises:
            InvalidRequest: more would be deleted than goes without consent; nothing was done.
            KvquiltError: service or source cannot be reached; what was stored stays, nothing was deleted.
        """
        plan = plan_of(self.source, found, [d async for d in self.collection.documents()])
        needs_yes = self.delete and not self.yes and plan.deletes_many
        if needs_yes and not self.dry_run:
            raise InvalidRequest(
                f"{len(plan.vanished)} of the {len(plan.own)} documents that came from {self.source.name} "
                "have vanished: nothing was done. Is all of it there? `--dry-run` lists them; if they shall "
                "go, add --yes"
            )
        report = SyncReport(self.source.name, len(plan.own), needs_yes, unseen=list(plan.unseen))
        report.skipped = {str(path): reason for path, reason in found.skipped.items()}
        await self._upsert(console, plan, report)
        report.summary.failed |= plan.taken
        report.vanished = list(plan.vanished)
        if self.delete and plan.vanished and not self.dry_run and not report.not_deleted:
            await self._delete(console, plan, report)
        return report

    async def _upsert(self, console: Console, plan: SyncPlan, report: SyncReport) -> None:
        unfinished: list[str] = []  # documents that the next run may well bring in

        async def upsert(documents: Sequence[SourceDocument]) -> AsyncGenerator[UpsertProgress, None]:
            async with aclosing(self.collection.upsert(documents, self.dry_run)) as updates:
                async for progress in updates:
                    match progress.stage:
                        case Stage.STORED | Stage.WOULD_STORE if progress.document_id in plan.own:
                            report.changed.append(progress.document_id)
                        case Stage.STORED | Stage.WOULD_STORE:
                            report.added.append(progress.document_id)
                        case Stage.UNCHANGED:
                            report.unchanged.append(progress.document_id)
                        case Stage.FAILED if progress.error_code != UnreadableDocument.code:
                            unfinished.append(progress.document_id)
                    yield progress

        report.summary = await ingest_files(console, upsert, plan.files, self.readers)
        for documents in (report.added, report.changed, report.unchanged):
            documents.sort()  # they came as they were done
        if unfinished and self.delete and plan.vanished:
            report.not_deleted = (
                f"nothing was deleted, because {len(unfinished)} documents could not be stored; run it again "
                "when they can"
            )

    async def _delete(self, console: Console, plan: SyncPlan, report: SyncReport) -> None:
        """Looks again, as storing may have taken hours: only what is still not there, and still belongs to
        the source, goes."""
        try:
            found = self.source.find()
            now = plan_of(self.source, found, [d async for d in self.collection.documents()])
            doomed = sorted(set(plan.vanished) & set(now.vanished))
            with progress_bar(console) as bar:
                task = bar.add_task("", total=len(doomed), document="deleting")
                for begin in range(0, len(doomed), _DELETED_AT_ONCE):
                    batch = doomed[begin : begin + _DELETED_AT_ONCE]
                    await self.collection.delete(batch)
                    report.deleted += batch
                    bar.update(task, advance=len(batch))
        except KvquiltError as error:
            what = "not all that has vanished" if report.deleted else "nothing"
            report.not_deleted = f"{what} was deleted: {error.detail}"
        report.vanished = [d for d in report.vanished if d not in set(report.deleted)]


def _taken(document: DocumentInfo) -> str:
    came = f"came from {document.source}" if document.source else "does not say where it came from"
    return (
        f"the collection has a document of this name that {came}: it stays as it is. `kvquilt ingest` "
        "replaces it, `--as NAME` gives the documents of this source names of their own"
    )
