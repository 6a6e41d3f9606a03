"""`.readers.yaml`: which document is whose, and what is wrong with such a file."""

from pathlib import Path

import pytest

from cluster.cli.readers_file import Access, ReadersFile, ReadersRules
from cluster.cli.sources import Folder, find_sources
from shared.errors import InvalidRequest
from shared.readers import SectionReaders


def rules(**files: str) -> ReadersRules:
    return ReadersRules(
        ReadersFile(f"{folder}/.readers.yaml", folder.strip("_").replace("__", "/"), text.encode())
        for folder, text in files.items()
    )


def test_the_last_entry_that_matches_counts_and_deeper_files_come_later() -> None:
    said = rules(
        hr='"*": [hr]\npublic.md: [hr, staff]',
        _='"*.md": [staff]\n"hr/*": [board]\nhr/deep/*.txt: [board]',
        hr__deep="own.txt: [owner]",
    )
    assert [
        said.access_to(path).readers
        for path in (
            "a.md",
            "x/a.md",
            "a.txt",
            "hr/a.txt",
            "hr/public.md",
            "hr/deep/b.txt",
            "hr/deep/own.txt",
        )
    ] == [("staff",), ("staff",), (), ("hr",), ("hr", "staff"), ("hr",), ("owner",)]


def test_an_entry_may_say_more_of_sections() -> None:
    said = rules(_="m.md:\n  readers: [staff, board]\n  sections:\n    Salaries: board\n")
    assert said.access_to("m.md") == Access(("board", "staff"), (SectionReaders("Salaries", ("board",)),))
    assert rules(_="m.md:\n  sections:\n    S: [a]\n").access_to("m.md").readers == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m.md: []", "expected groups"),
        ("m.md:", "expected groups"),
        ("m.md: {}", "expected headings"),
        ("m.md: [1]", "expected groups"),
        ("m.md: [a b]", "is no word"),
        ("m.md: {readers: [a], writers: [b]}", "'writers' is neither readers nor sections"),
        ("m.md: {readers: [a], sections: [b]}", "expected headings"),
        ("m.md: {readers: [a], sections: {S: [b]}}", "'b' is not among the document's readers"),
        ("m.md: {readers: [a], sections: {S: []}}", "sections: S: expected groups"),
        ("- m.md", "expected a mapping"),
        ("m.md: [a", "not valid YAML"),
        ("*.md: [a]", "begin with \\* stand in quotes"),
        ("a: &x [a]\nb: *x", "has an anchor or an alias"),
        ("3: [a]", "3 is no name or pattern"),
        ("m.md: [a]\n" + "#" * (1 << 20), "more than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        rules(_=text)
    assert refused.value.detail.startswith("_/.readers.yaml: ")


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"\.readers\.yaml: is no UTF-8 text"):
        ReadersRules([ReadersFile(".readers.yaml", "", b"\xff\xfe")])


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_md", ".md").replace("dot_readers", ".readers.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_documents_of_a_folder_have_the_readers_that_its_files_say(tmp_path: Path) -> None:
    _write(tmp_path, a_md="x", hr__b_md="x", dot_readers='"hr/*": [hr]', hr__dot_readers="b.md: [board]")
    for found in (find_sources([tmp_path]), Folder(tmp_path, "label").find()):
        assert {f.document_id.removeprefix("label/"): f.access.readers for f in found.files} == {
            "a.md": (),
            "hr/b.md": ("board",),
        }


def test_a_file_that_is_named_itself_has_the_readers_that_its_folder_says(tmp_path: Path) -> None:
    _write(tmp_path, a_md="x", other_md="x", dot_readers="a.md: [hr]\nother.md: [staff]")
    assert [f.access.readers for f in find_sources([tmp_path / "a.md"]).files] == [("hr",)]


def test_an_entry_that_names_no_file_is_refused_one_that_matches_none_is_not(tmp_path: Path) -> None:
    _write(tmp_path, a_md="x", dot_readers='"gone/*": [hr]')
    assert len(find_sources([tmp_path]).files) == 1
    _write(tmp_path, dot_readers="A.md: [hr]")
    with pytest.raises(InvalidRequest, match=r"\.readers\.yaml: 'A\.md' names no file"):
        find_sources([tmp_path])


def test_a_file_that_cannot_be_read_stops_before_anything_is_ingested(tmp_path: Path) -> None:
    _write(tmp_path, a_md="x")
    (tmp_path / ".readers.yaml").mkdir()
    with pytest.raises(InvalidRequest, match=r"\.readers\.yaml: cannot be read: .*; it says who may read"):
        find_sources([tmp_path / "a.md"])
