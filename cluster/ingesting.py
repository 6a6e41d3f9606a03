"""`kvquilt ingest`: files into the Ingest service, one document per call, with progress."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text
from shared.clients.ingest import IngestClient
from shared.documents import DocumentInfo, SourceDocument, Stage, UpsertProgress

from cluster.sources import SourceFile
from shared.request import RequestContext

Upsert = Callable[[Sequence[SourceDocument]], AsyncGenerator[UpsertProgress, None]]


@dataclass(slots=True)
class Summary:
    """What became of the documents. ``failed``: document → reason."""

    num_stored: int = 0
    num_unchanged: int = 0
    num_chunks: int = 0
    num_chunks_reused: int = 0
    num_tokens: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, progress: UpsertProgress) -> bool:
        """Counts the end of a document; False while it goes on."""
        match progress.stage:
            case Stage.STORED:
                self.num_stored += 1
                self.num_chunks += progress.num_chunks
                self.num_chunks_reused += progress.num_chunks_reused
                self.num_tokens += progress.num_tokens
            case Stage.UNCHANGED:
                self.num_unchanged += 1
            case Stage.FAILED:
                self.failed[progress.document_id] = progress.error
            case _:
                return False
        return True

    def print(self, console: Console) -> None:
        chunks = f"{self.num_chunks} chunks of {self.num_tokens} tokens, {self.num_chunks_reused} with KV already"
        console.print(f"{self.num_stored} stored ({chunks}), {self.num_unchanged} unchanged, {len(self.failed)} failed")
        for document_id, reason in sorted(self.failed.items()):
            console.print(Text(f"  {document_id}: {reason}", "red"), soft_wrap=True)


async def ingest_files(console: Console, upsert: Upsert, sources: Sequence[SourceFile]) -> Summary:
    """One document per call, so that an interruption costs at most the document at hand. A file that cannot be read is a failed
    document, like one that cannot be parsed; the others go on."""
    summary = Summary()
    with _bar(console) as bar:
        task = bar.add_task("", total=len(sources), document="")
        for source in sources:
            bar.update(task, document=source.document_id)
            try:
                content = source.path.read_bytes()
            except OSError as error:
                summary.failed[source.document_id] = f"cannot be read: {error.strerror}"
            else:
                await _follow(upsert([SourceDocument(source.document_id, content)]), summary)
            bar.advance(task)
    return summary


async def follow_all(console: Console, updates: AsyncGenerator[UpsertProgress, None]) -> Summary:
    """Progress of documents whose number is not known beforehand (re-encoding)."""
    summary = Summary()
    with _bar(console) as bar:
        task = bar.add_task("", total=None, document="")
        async with aclosing(updates):
            async for progress in updates:
                bar.update(task, document=progress.document_id, advance=int(summary.add(progress)))
    return summary


async def all_documents(client: IngestClient, ctx: RequestContext, collection: str) -> AsyncGenerator[DocumentInfo, None]:
    """Page by page. Empty ``collection``: all of the tenant's."""
    start_after = ""
    while True:
        page = await client.list(ctx, collection, start_after)
        for document in page.documents:
            yield document
        if not page.truncated or not page.documents:
            return
        start_after = page.documents[-1].document_id


async def _follow(updates: AsyncGenerator[UpsertProgress, None], summary: Summary) -> None:
    async with aclosing(updates):
        async for progress in updates:
            summary.add(progress)


def _bar(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[document]}"),
        console=console,
        transient=True,
    )
