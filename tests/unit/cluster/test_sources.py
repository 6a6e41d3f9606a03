"""Which files `kvquilt ingest` takes, and what it calls them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.cli.sources import ENDINGS, find_sources
from services.ingestion.formats.parse import _MEDIA_TYPE_BY_ENDING
from shared.errors import InvalidRequest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a/x.md", "a/y.PDF", "a/z.html", "a/image.png", ".hidden/no.txt", "a/.no.txt"):
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text", encoding="utf-8")
    return tmp_path / "docs"


def test_folders_are_searched_through_for_known_endings_without_hidden_files_in_a_stable_order(
    folder: Path,
) -> None:
    assert [s.document_id for s in find_sources([folder]).files] == ["a/x.md", "a/y.PDF", "a/z.html", "b.txt"]


def test_what_is_left_out_is_named_with_the_reason_unless_it_is_hidden(folder: Path) -> None:
    (folder / "dangling.txt").symlink_to(folder / "nowhere.txt")
    assert find_sources([folder]).skipped == {
        folder / "a" / "image.png": f"is none of {' '.join(ENDINGS)}",
        folder / "dangling.txt": "the link leads nowhere",
    }
    with pytest.raises(InvalidRequest, match=r"dangling\.txt: the link leads nowhere"):
        find_sources([folder / "dangling.txt"])


def test_every_format_that_the_service_reads_is_looked_for() -> None:
    assert list(ENDINGS) == list(_MEDIA_TYPE_BY_ENDING)


def test_what_is_no_document_for_its_name_alone_is_left_out(folder: Path) -> None:
    for name in ("~$x.docx", "two\nlines.txt"):
        (folder / name).write_text("text", encoding="utf-8")
    assert find_sources([folder]).skipped.keys() >= {folder / "~$x.docx", folder / "two\nlines.txt"}


def test_a_named_file_is_taken_whatever_its_ending_and_called_by_its_name(folder: Path) -> None:
    assert [s.document_id for s in find_sources([folder / "a" / "image.png"]).files] == ["image.png"]


def test_documents_remember_the_folder_they_come_from_by_its_absolute_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "a link").symlink_to(folder)
    assert {s.source for s in find_sources([Path("docs")]).files} == {folder.as_uri()}
    assert {s.source for s in find_sources([Path("docs/b.txt")]).files} == {folder.as_uri()}
    assert find_sources([Path("a link")]).files[0].source == f"{folder.parent.as_uri()}/a%20link"


def test_links_to_files_are_followed_and_links_to_folders_are_not(folder: Path) -> None:
    (folder / "again").symlink_to(folder / "a")
    (folder / "c.txt").symlink_to(folder / "b.txt")
    found = [s.document_id for s in find_sources([folder]).files]
    assert found == ["a/x.md", "a/y.PDF", "a/z.html", "b.txt", "c.txt"]


def test_links_that_lead_out_of_the_folder_are_left_out(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a key", encoding="utf-8")
    (folder / "c.txt").symlink_to(secret)
    (folder / "d.txt").symlink_to(Path("..", "secret.txt"))
    found = find_sources([folder])
    assert {"c.txt", "d.txt"}.isdisjoint(s.document_id for s in found.files)
    assert found.skipped[folder / "c.txt"] == "the link leads out of the folder; name the file itself"
    assert found.skipped[folder / "d.txt"] == found.skipped[folder / "c.txt"]
    assert [s.document_id for s in find_sources([folder / "c.txt"]).files] == ["c.txt"]


def test_what_cannot_be_a_document_by_its_path_or_size_is_left_out(folder: Path) -> None:
    deep = folder.joinpath(*["d" * 250] * 4)
    deep.mkdir(parents=True)
    (deep / f"{'e' * 30}.txt").write_text("deep", encoding="utf-8")
    with open(folder / "large.csv", "wb") as file:
        file.truncate((1 << 30) + 1)
    os.mkfifo(folder / "pipe.txt")
    reasons = {
        path.name: reason for path, reason in find_sources([folder]).skipped.items() if isinstance(path, Path)
    }
    assert reasons[f"{'e' * 30}.txt"] == "its path has more than 1024 characters"
    assert reasons["large.csv"] == f"has {(1 << 30) + 1} bytes, more than any document may; split it"
    assert reasons["pipe.txt"] == "is no file"
    with pytest.raises(InvalidRequest, match="neither a file nor a folder"):
        find_sources([folder / "pipe.txt"])


def test_the_same_file_named_twice_is_one_document(folder: Path) -> None:
    assert len(find_sources([folder, folder]).files) == 4


def test_different_files_that_would_be_one_document_are_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.txt"
    other.write_text("other", encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"would both be 'b\.txt'"):
        find_sources([folder, other])


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nowhere: no such file"):
        find_sources([tmp_path / "nowhere"])


def test_a_folder_without_documents_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"looked for \.txt "):
        find_sources([tmp_path])
