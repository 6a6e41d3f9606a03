"""What a run of `kvquilt sync` changes, reports and leaves alone, against ingestion in memory."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from rich.console import Console

from cluster.cli.ingest_command import ingest_files
from cluster.cli.sources import Folder, find_sources
from cluster.cli.sync_command import as_values, print_report
from cluster.cli.syncing import Sync, SyncReport, plan_of
from services.ingestion.service import IngestionService
from shared.documents import DeletedDocuments, DocumentInfo, SourceDocument, UpsertProgress
from shared.errors import InvalidRequest, NotFound, StorageFull, Unavailable
from shared.kv_types import KvContext
from tests.ingestion_world import Crash, World, context, fail_once, text, upsert

QUIET = Console(file=io.StringIO())
NOBODY = 65534


@dataclass
class InMemory:
    """A collection of a service in memory. ``stored``: called when documents were stored."""

    service: IngestionService
    name: str = "c"
    stored: Callable[[], object] = lambda: None
    deleted: list[str] = field(default_factory=list)

    async def documents(self) -> AsyncIterator[DocumentInfo]:
        after, truncated = "", True
        while truncated:
            try:
                page = await self.service.list_documents(context(), self.name, after, 0)
            except NotFound:
                return
            for document in page.documents:
                yield document
                after = document.document_id
            truncated = page.truncated

    async def upsert(
        self, documents: Sequence[SourceDocument], dry_run: bool
    ) -> AsyncGenerator[UpsertProgress, None]:
        async for progress in self.service.upsert(context(), self.name, documents, dry_run):
            yield progress
        self.stored()

    async def delete(self, document_ids: Sequence[str]) -> DeletedDocuments:
        self.deleted += document_ids
        return await self.service.delete(context(), self.name, document_ids, False)


@pytest.fixture
def world() -> World:
    return World(kv_context=KvContext.NONE)


@pytest.fixture
def collection(world: World) -> InMemory:
    return InMemory(world.service())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return filled(tmp_path / "docs", {"a.txt": "One lamp.", "b/b.md": "Two lamps.", "c.txt": "Three lamps."})


def filled(folder: Path, texts: dict[str, str]) -> Path:
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


async def synced(
    folder: Path, collection: InMemory, label: str = "", source: Folder | None = None, **options: Any
) -> SyncReport:
    source = source or Folder(folder, label)
    return await Sync(source, collection, **options).run(QUIET, source.find())


async def test_new_and_changed_documents_go_in_and_vanished_ones_only_when_they_shall(
    folder: Path, collection: InMemory, world: World
) -> None:
    first = await synced(folder, collection)
    assert (first.added, first.complete) == (["a.txt", "b/b.md", "c.txt"], True)
    (folder / "a.txt").write_text("One blue lamp.", encoding="utf-8")
    (folder / "c.txt").unlink()
    (folder / "d.txt").write_text("Four lamps.", encoding="utf-8")

    kept = await synced(folder, collection)
    assert (kept.added, kept.changed, kept.unchanged) == (["d.txt"], ["a.txt"], ["b/b.md"])
    assert (kept.vanished, kept.deleted, kept.complete) == (["c.txt"], [], True)
    assert world.texts()["c.txt"] == "Three lamps."

    last = await synced(folder, collection, delete=True)
    assert (last.vanished, last.deleted, last.complete) == ([], ["c.txt"], True)
    assert world.texts() == {"a.txt": "One blue lamp.", "b/b.md": "Two lamps.", "d.txt": "Four lamps."}
    world.check_settled()


async def test_what_has_not_changed_is_neither_prefilled_nor_written(
    folder: Path, collection: InMemory, world: World
) -> None:
    await synced(folder, collection)
    world.calls.clear()
    report = await synced(folder, collection, delete=True)
    assert (len(report.unchanged), report.added, report.changed) == (3, [], [])
    assert not world.calls.keys() & {"prefill", "put_manifest", "delete_manifest"}


async def test_documents_that_ingest_brought_from_the_folder_are_its_own(
    folder: Path, collection: InMemory, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ingest(documents: Sequence[SourceDocument]) -> AsyncGenerator[UpsertProgress, None]:
        return collection.upsert(documents, False)

    monkeypatch.chdir(folder.parent)  # named by a relative path here, by an absolute one there
    await ingest_files(QUIET, ingest, find_sources([Path("docs")]).files)
    (folder / "c.txt").unlink()
    (folder / "a.txt").write_text("One blue lamp.", encoding="utf-8")
    await ingest_files(QUIET, ingest, find_sources([folder / "a.txt"]).files)  # one file of it
    report = await synced(folder, collection, delete=True)
    assert (report.unchanged, report.deleted) == (["a.txt", "b/b.md"], ["c.txt"])


async def test_documents_of_others_are_neither_deleted_nor_replaced(
    folder: Path, collection: InMemory, world: World, tmp_path: Path
) -> None:
    other = filled(tmp_path / "other", {"x.txt": "Ten boats.", "c.txt": "Eleven boats."})
    await upsert(collection.service, text("by-hand.txt", "A note."), text("a.txt", "Not from a folder."))
    await synced(other, collection)
    report = await synced(folder, collection, delete=True)
    assert (report.added, report.deleted, report.vanished) == (["b/b.md"], [], [])
    assert not report.complete
    assert "does not say where it came from" in report.summary.failed["a.txt"]
    assert f"came from {other.as_uri()}" in report.summary.failed["c.txt"]
    assert "--as NAME" in report.summary.failed["c.txt"]
    for left in (folder, other):
        shutil.rmtree(left)
        filled(left, {"left.txt" if left == folder else "still.txt": "One is left."})
        await synced(left, collection, delete=True)
    assert set(world.texts()) == {"by-hand.txt", "a.txt", "left.txt", "still.txt"}


async def test_a_name_keeps_sources_apart_and_goes_along_when_the_folder_moves(
    folder: Path, collection: InMemory, tmp_path: Path
) -> None:
    other = filled(tmp_path / "other", {"a.txt": "Ten boats."})
    await synced(folder, collection)
    named = await synced(other, collection, label="boats")
    assert (named.added, named.complete) == (["boats/a.txt"], True)
    moved = other.rename(tmp_path / "elsewhere")
    filled(moved, {"b.txt": "Eleven boats."})
    report = await synced(moved, collection, label="boats", delete=True)
    assert (report.added, report.unchanged, report.deleted) == (["boats/b.txt"], ["boats/a.txt"], [])
    (moved / "a.txt").unlink()
    assert (await synced(moved, collection, label="boats", delete=True)).deleted == ["boats/a.txt"]
    assert len((await synced(folder, collection, delete=True)).unchanged) == 3
    with pytest.raises(InvalidRequest, match="--as"):
        Folder(folder, "no/name")


async def test_what_cannot_be_parsed_keeps_its_old_document_and_stops_no_deletion(
    folder: Path, collection: InMemory, world: World
) -> None:
    await synced(folder, collection)
    (folder / "a.txt").write_bytes(bytes(range(256)) * 8)
    (folder / "c.txt").unlink()
    report = await synced(folder, collection, delete=True)
    assert (set(report.summary.failed), report.deleted, report.complete) == ({"a.txt"}, ["c.txt"], False)
    assert world.texts() == {"a.txt": "One lamp.", "b/b.md": "Two lamps."}


async def test_nothing_is_deleted_when_something_could_not_be_stored(
    folder: Path, collection: InMemory, world: World
) -> None:
    await synced(folder, collection)
    (folder / "c.txt").rename(folder / "d.txt")
    world.step = fail_once("prefill", StorageFull("no space"))
    report = await synced(folder, collection, delete=True)
    assert (report.vanished, report.deleted, report.complete) == (["c.txt"], [], False)
    assert "1 documents could not be stored" in report.not_deleted
    assert "c.txt" in world.texts()
    assert (await synced(folder, collection, delete=True)).deleted == ["c.txt"]
    assert set(world.texts()) == {"a.txt", "b/b.md", "d.txt"}


@pytest.mark.parametrize(("gone", "left", "needs"), [(11, 10, True), (11, 11, False), (10, 1, False)])
async def test_deleting_many_and_most_needs_consent(
    gone: int, left: int, needs: bool, tmp_path: Path, collection: InMemory, world: World
) -> None:
    names = [f"{i:02}.txt" for i in range(gone + left)]
    folder = filled(tmp_path / "many", {name: f"Lamp {name}." for name in names})
    await synced(folder, collection)
    for name in names[:gone]:
        (folder / name).unlink()
    filled(folder, {"new.txt": "New."})
    told = await synced(folder, collection, delete=True, dry_run=True)
    assert (told.needs_yes, len(told.vanished)) == (needs, gone)
    if needs:
        before = dict(world.manifests)
        with pytest.raises(InvalidRequest, match=r"11 of the 21 documents.*nothing was done.*--yes"):
            await synced(folder, collection, delete=True)
        assert world.manifests == before
    report = await synced(folder, collection, delete=True, yes=needs)
    assert (report.deleted, report.needs_yes) == (names[:gone], False)


async def test_a_dry_run_tells_everything_and_changes_nothing(
    folder: Path, collection: InMemory, world: World
) -> None:
    await synced(folder, collection)
    filled(folder, {"a.txt": "One blue lamp.", "d.txt": "Four lamps.", "e.pdf": "no PDF", "f.png": "-"})
    (folder / "c.txt").unlink()
    before = dict(world.manifests)
    report = await synced(folder, collection, delete=True, dry_run=True)
    assert (report.added, report.changed, report.unchanged) == (["d.txt"], ["a.txt"], ["b/b.md"])
    assert (report.vanished, report.deleted) == (["c.txt"], [])
    assert set(report.summary.failed) == {"e.pdf"}
    assert list(report.skipped) == [str(folder / "f.png")]
    assert world.manifests == before
    assert collection.deleted == []


async def test_nothing_is_deleted_when_the_source_went_away_during_the_run(
    folder: Path, collection: InMemory, world: World
) -> None:
    await synced(folder, collection)
    (folder / "c.txt").unlink()
    (folder / "a.txt").write_text("One blue lamp.", encoding="utf-8")
    collection.stored = lambda: shutil.rmtree(folder, ignore_errors=True)
    report = await synced(folder, collection, delete=True)
    assert (report.changed, report.vanished, report.deleted) == (["a.txt"], ["c.txt"], [])
    assert report.not_deleted.startswith("nothing was deleted: ")
    assert "cannot be searched" in report.not_deleted
    assert len(world.manifests) == 3


async def test_an_empty_or_missing_source_is_an_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    filled(tmp_path / "others", {"a.png": "-", ".hidden.md": "Hidden."})
    for empty in ("empty", "others"):
        with pytest.raises(InvalidRequest, match="no documents in"):
            Folder(tmp_path / empty).find()
    with pytest.raises(InvalidRequest, match="no such file or folder"):
        Folder(tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="is no folder"):
        Folder(folder / "a.txt")


async def test_only_what_is_still_gone_and_still_the_sources_is_deleted(
    folder: Path, collection: InMemory
) -> None:
    await synced(folder, collection)
    for name in ("a.txt", "b/b.md"):
        (folder / name).unlink()

    collection.stored = lambda: filled(folder, {"a.txt": "One lamp."})
    assert (await synced(folder, collection, delete=True)).deleted == ["b/b.md"]

    collection.stored = lambda: None
    (folder / "a.txt").unlink()
    plan = plan_of(source := Folder(folder), source.find(), [d async for d in collection.documents()])
    assert plan.vanished == ("a.txt",)
    await upsert(collection.service, text("a.txt", "One lamp.", source="file:///elsewhere"))
    assert (await synced(folder, collection, delete=True)).deleted == []


async def test_a_run_that_was_interrupted_goes_on_where_it_stopped(
    folder: Path, collection: InMemory, world: World
) -> None:
    written: list[str] = []

    def die_at_the_third(step: str) -> None:
        if step == "put_manifest":
            written.append(step)
            if len(written) == 3:
                raise Crash

    world.step = die_at_the_third
    with pytest.raises(BaseException):  # noqa: B017, PT011 (a group of them, by the tasks' own rules)
        await synced(folder, InMemory(world.service(parallel_documents=1)))
    assert len(world.manifests) == 2
    world.step = lambda name: None
    prefilled = world.num_prefilled
    report = await synced(folder, InMemory(world.service()))
    assert (len(report.added), len(report.changed) + len(report.unchanged)) == (1, 2)
    assert world.num_prefilled == prefilled
    world.check_settled()


async def test_what_lies_where_nobody_can_look_has_not_vanished(collection: InMemory) -> None:
    folder = Path(mkdtemp(prefix="kvquilt-sync-"))
    try:
        folder.chmod(0o755)
        filled(folder, {"a.txt": "One lamp.", "b/b.txt": "Two lamps.", "c.txt": "Three.", "b/d.txt": "Four."})
        await synced(folder, collection)
        (folder / "b" / "d.txt").unlink()
        (folder / "c.txt").unlink()
        (folder / "b").chmod(0)
        with as_nobody():
            report = await synced(folder, collection, delete=True)
        assert (report.deleted, report.unseen, report.complete) == (["c.txt"], ["b/b.txt", "b/d.txt"], True)
        assert report.skipped == {str(folder / "b"): "cannot be searched: Permission denied"}
        (folder / "b").chmod(0o755)
        assert (await synced(folder, collection, delete=True)).deleted == ["b/d.txt"]
        folder.chmod(0)
        with as_nobody(), pytest.raises(InvalidRequest, match="cannot be searched: Permission denied"):
            Folder(folder).find()
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


async def test_hidden_files_stay_when_they_were_brought_by_name_and_files_that_became_folders_go(
    folder: Path, collection: InMemory
) -> None:
    await synced(folder, collection)
    hidden = filled(folder, {".hidden.txt": "Hidden."}) / ".hidden.txt"
    await ingest_files(QUIET, lambda d: collection.upsert(d, False), find_sources([hidden]).files)
    (folder / "a.txt").unlink()
    filled(folder, {"a.txt/inner.txt": "Inner."})
    report = await synced(folder, collection, delete=True)
    assert (report.added, report.deleted, report.unseen) == (["a.txt/inner.txt"], ["a.txt"], [".hidden.txt"])


@pytest.mark.parametrize(
    ("kv_context", "content", "num_computed"),
    [
        (KvContext.NONE, "Three lamps.", 0),
        (KvContext.DOCUMENT, "# Lamps\n\nThree of them.", 0),
        (KvContext.DOCUMENT, "Three lamps.", 1),
    ],
    ids=["none", "titled by its text", "titled by its name"],
)
async def test_a_renamed_file_shares_its_kv_unless_its_name_is_its_title(
    kv_context: KvContext, content: str, num_computed: int, folder: Path
) -> None:
    world = World(kv_context=kv_context)
    collection = InMemory(world.service())
    (folder / "c.txt").unlink()
    filled(folder, {"c.md": content})
    await synced(folder, collection)
    before = world.num_prefilled
    (folder / "c.md").rename(folder / "z.md")
    report = await synced(folder, collection, delete=True)
    assert (report.added, report.deleted) == (["z.md"], ["c.md"])
    assert world.num_prefilled - before == num_computed
    world.check_settled()


async def test_a_service_that_goes_away_ends_the_run_with_what_was_stored(
    folder: Path, collection: InMemory, world: World
) -> None:
    await synced(folder, collection)
    (folder / "c.txt").unlink()
    world.step = fail_once("describe", Unavailable("away"))
    with pytest.raises(Unavailable):
        await synced(folder, collection, delete=True)
    assert len(world.manifests) == 3


def report_of_everything() -> SyncReport:
    report = SyncReport("file:///docs", 30, added=["new [1].txt"], changed=["b.txt"], unchanged=["c.txt"])
    report.vanished = [f"{i}.txt" for i in range(25)]
    report.unseen = ["locked/e.txt"]
    report.summary.failed = {"f.pdf": "no PDF"}
    report.summary.warnings = {"b.txt": ("no text on page 2 of 3",)}
    return report


def printed(report: SyncReport, delete: bool, dry_run: bool) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=60), report, delete, dry_run)
    return out.getvalue()


def test_a_report_names_a_few_documents_and_counts_them_all() -> None:
    shown = printed(report_of_everything(), delete=False, dry_run=False)
    for line in ("added     new [1].txt", "vanished  0.txt", "vanished  5 more", "unseen    locked/e.txt"):
        assert f"{line}\n" in shown
    assert "1 added, 1 changed" in shown
    assert "0 deleted, 1 failed" in shown.replace("\n", " ")
    assert "25 have vanished from file:///docs; --delete removes them" in shown
    assert "f.pdf: no PDF" in shown
    assert "b.txt: no text on page 2 of 3" in shown


def test_a_dry_run_shows_what_would_be_deleted_and_that_it_needs_consent() -> None:
    report = report_of_everything()
    report.needs_yes = True
    shown = printed(report, delete=True, dry_run=True)
    assert "would be: 1 added" in shown
    assert "deleted   0.txt" in shown
    assert "25 deleted, 1 failed" in shown.replace("\n", " ")
    assert "deleting 25 of 30 needs --yes" in shown


def test_json_has_every_document() -> None:
    values = json.loads(json.dumps(as_values(report_of_everything(), "handbook", True)))
    assert (values["source"], values["collection"], values["dry_run"]) == ("file:///docs", "handbook", True)
    assert (values["added"], len(values["vanished"]), values["deleted"]) == (["new [1].txt"], 25, [])
    assert values["failed"] == {"f.pdf": "no PDF"}
    assert values["warnings"] == {"b.txt": ["no text on page 2 of 3"]}


async def test_a_file_beside_documents_says_who_may_read_them_and_its_changes_are_changes(
    folder: Path, collection: InMemory, world: World
) -> None:
    def readers() -> dict[str, tuple[str, ...]]:
        return {document_id: m.readers for (_, _, document_id), m in world.manifests.items()}

    (folder / "b" / ".readers.yaml").write_text("b.md: [hr, board]")
    first = await synced(folder, collection, readers=("staff",))
    assert (first.complete, len(first.added)) == (True, 3)
    assert readers() == {"a.txt": ("staff",), "b/b.md": ("board", "hr"), "c.txt": ("staff",)}
    prefilled = world.calls["prefill"]
    (folder / "b" / ".readers.yaml").write_text("b.md: [hr]")
    again = await synced(folder, collection, readers=("staff",))
    assert (again.changed, again.unchanged) == (["b/b.md"], ["a.txt", "c.txt"])
    assert readers()["b/b.md"] == ("hr",)
    assert world.calls["prefill"] == prefilled
    (folder / "b" / ".readers.yaml").write_text("b.md: [")
    with pytest.raises(InvalidRequest, match=r"\.readers\.yaml: not valid YAML"):
        await synced(folder, collection)
    assert readers()["b/b.md"] == ("hr",)
