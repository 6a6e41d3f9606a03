"""Answers that are kept as they come."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from shared.errors import InvalidRequest, StorageFull
from shared.measuring.answer_file import AnswerFile


def test_it_goes_on_where_a_killed_run_ended(tmp_path: Path) -> None:
    path, settings = tmp_path / "deep" / "answers.jsonl", {"seed": 1, "chars": (1, 2)}
    AnswerFile(path, settings).add([{"text": "a\nb"}])
    with path.open("a") as file:
        file.write('[{"text": "c')
    again = AnswerFile(path, settings)
    assert again.lines == [[{"text": "a\nb"}]]
    again.add(2)
    assert AnswerFile(path, settings).lines == [[{"text": "a\nb"}], 2]


def test_answers_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, {"seed": 1, "ratio": 0.2})
    for settings, says in (
        ({"seed": 1, "ratio": 0.1}, "answers with ratio 0.2, not 0.1"),
        ({"seed": 1}, "answers with ratio 0.2, not None"),
    ):
        with pytest.raises(InvalidRequest, match=re.escape(says)):
            AnswerFile(path, settings)


@pytest.mark.parametrize("written", [b"my thesis\n", b"[1]\n", b'{"seed": 1}\nno json\n', b"\xff\n", b"mine"])
def test_another_file_is_not_overwritten(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "thesis.txt"
    path.write_bytes(written)
    with pytest.raises(InvalidRequest, match=r"thesis\.txt is no file of answers"):
        AnswerFile(path, {"seed": 1})
    assert path.read_bytes() == written


@pytest.mark.parametrize("behind", ["", '[{"text": "c'])
def test_what_is_kept_is_not_written_again(tmp_path: Path, behind: str) -> None:
    """Whoever is killed while a run begins would lose it, and whoever has no room left."""
    path = tmp_path / "answers.jsonl"
    AnswerFile(path, {"seed": 1}).add("long ago")
    kept = path.read_text()
    path.write_text(kept + behind)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        again = AnswerFile(path, {"seed": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert again.lines == ["long ago"]
    assert path.read_text() == kept


def test_a_first_line_that_was_not_finished_is_written(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"see')
    AnswerFile(path, {"seed": 1}).add(2)
    assert path.read_text() == '{"seed": 1}\n2\n'


def test_a_disk_that_is_full_and_a_file_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"--answers: /dev/full cannot be used: No space left on device"):
        AnswerFile(Path("/dev/full"), {"seed": 1})
    path = tmp_path / "answers.jsonl"
    kept = AnswerFile(path, {"seed": 1})
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(StorageFull, match="cannot be written: No space left on device; make room"):
        kept.add(1)


def test_without_a_file_answers_are_kept_in_memory_alone() -> None:
    kept = AnswerFile(None, {})
    kept.add(1)
    assert kept.lines == [1]
