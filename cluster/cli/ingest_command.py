"""Brings documents to the Ingest service, a handful per call, with progress: `kvquilt ingest` and `kvquilt
sync`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from cluster.cli.read_ahead import ReadAhead
from cluster.cli.sources import Readable
from shared.documents import SOURCE_KEY, SourceDocument, Stage, UpsertProgress
from shared.errors import UnreadableDocument
from shared.readers import EVERYBODY, Readers

GROUP_LEN, GROUP_BYTES = 8, 16 * 2**20
NUM_SHOWN = 20
Upsert = Callable[[Sequence[SourceDocument]], AsyncGenerator[UpsertProgress, None]]


@dataclass(slots=True)
class Summary:
    """Counts of what became of the documents; in a dry run, of what would become of them. ``failed``:
    document → reason. ``warnings``: document → what of it was not read."""

    num_stored: int = 0
    num_unchanged: int = 0
    num_removed: int = 0
    num_chunks: int = 0
    num_chunks_reused: int = 0
    num_tokens: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, progress: UpsertProgress) -> bool:
        """Counts the end of a document; False while it goes on."""
        if progress.warnings:
            self.warnings[progress.document_id] = progress.warnings
        match progress.stage:
            case Stage.STORED | Stage.WOULD_STORE:
                self.num_stored += 1
                self.num_chunks += progress.num_chunks
                self.num_chunks_reused += progress.num_chunks_reused
                self.num_tokens += progress.num_tokens
            case Stage.UNCHANGED:
                self.num_unchanged += 1
            case Stage.REMOVED:
                self.num_removed += 1
            case Stage.FAILED:
                self.failed[progress.document_id] = progress.error
            case _:
                return False
        return True

    @property
    def num_done(self) -> int:
        return self.num_stored + self.num_unchanged + self.num_removed + len(self.failed)

    def print(self, console: Console) -> None:
        chunks = (
            f"{self.num_chunks} chunks of {self.num_tokens} tokens, {self.num_chunks_reused} with KV already"
        )
        removed = f", {self.num_removed} removed" if self.num_removed else ""
        console.print(
            f"{self.num_stored} stored ({chunks}), {self.num_unchanged} unchanged{removed}, "
            f"{len(self.failed)} failed"
        )
        self.print_warnings(console)
        self.print_failed(console)

    def print_warnings(self, console: Console) -> None:
        """One by one as long as they are few, then by their number."""
        lines = [f"  {d}: {warning}" for d, warnings in sorted(self.warnings.items()) for warning in warnings]
        for line in lines[:NUM_SHOWN]:
            console.print(Text(line, "yellow"), soft_wrap=True)
        if (more := len(lines) - NUM_SHOWN) > 0:
            console.print(Text(f"  {more} more warnings", "yellow"))

    def print_failed(self, console: Console) -> None:
        for document_id, reason in sorted(self.failed.items()):
            console.print(Text(f"  {document_id}: {reason}", "red"), soft_wrap=True)


def print_skipped(console: Console, skipped: Mapping[Path | str, str]) -> None:
    """Files one by one as long as they are few, then by their number."""
    for path, reason in list(skipped.items())[:NUM_SHOWN]:
        shown = str(path).encode("utf-8", "backslashreplace").decode()  # names may be any bytes
        console.print(Text(f"skipped {shown}: {reason}", "yellow"), soft_wrap=True)
    if (more := len(skipped) - NUM_SHOWN) > 0:
        console.print(Text(f"skipped {more} more", "yellow"))


def skipped_values(skipped: Mapping[Path | str, str]) -> dict[str, str]:
    """Path → reason, for programs."""
    return {str(path).encode("utf-8", "backslashreplace").decode(): why for path, why in skipped.items()}


async def ingest_files(
    console: Console, upsert: Upsert, sources: Sequence[Readable], readers: Readers = EVERYBODY
) -> Summary:
    """A few documents per call, so that the service works on several at once and an interruption costs
    little. A file that cannot be read is a failed document, like one that cannot be parsed; the others go
    on. While the service works on some, the next ones are read (``ReadAhead``). ``readers``: of documents
    about which no file says who may read them.

    Raises:
        KvquiltError: the service, or where the documents lie, cannot be reached; what was stored stays.
    """
    summary = Summary()
    with ReadAhead(sources) as documents, progress_bar(console) as bar:
        groups = _groups(documents, summary, readers)
        task = bar.add_task("", total=len(sources), document="")
        while group := await asyncio.to_thread(next, groups, None):
            async with aclosing(upsert(group)) as updates:
                async for progress in updates:
                    summary.add(progress)
                    bar.update(task, document=progress.document_id, completed=summary.num_done)
        bar.update(task, completed=summary.num_done)
    return summary


async def follow_all(console: Console, updates: AsyncGenerator[UpsertProgress, None]) -> Summary:
    """Progress of documents whose number is not known beforehand (re-encoding, rebuilding, refreshing)."""
    summary = Summary()
    with progress_bar(console) as bar:
        task = bar.add_task("", total=None, document="")
        async with aclosing(updates):
            async for progress in updates:
                bar.update(task, document=progress.document_id, advance=int(summary.add(progress)))
    return summary


def _groups(documents: ReadAhead, summary: Summary, readers: Readers) -> Iterator[list[SourceDocument]]:
    """Documents by the handful, at most ``GROUP_BYTES`` together unless one alone is larger; unreadable ones
    go to the summary."""
    group: list[SourceDocument] = []
    size = 0
    for source, read in documents:
        try:
            content = read.result()
        except UnreadableDocument as error:
            summary.failed[source.document_id] = error.detail
            continue
        if group and (len(group) == GROUP_LEN or size + len(content) > GROUP_BYTES):
            yield group
            group, size = [], 0
        metadata = {SOURCE_KEY: source.source} if source.source else {}
        group.append(
            SourceDocument(
                source.document_id,
                content,
                metadata=metadata,
                readers=source.access.readers or readers,
                sections=source.access.sections,
            )
        )
        size += len(content)
    if group:
        yield group


def progress_bar(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[document]}"),
        console=console,
        transient=True,
    )
