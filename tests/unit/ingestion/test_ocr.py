"""Pages without text: what is said of them, and the command that recognises them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from services.ingestion.config import IngestionConfig
from services.ingestion.formats.ocr import OcrCommand, OcrFailed
from services.ingestion.formats.parse import parse
from services.ingestion.formats.reading import ParserSettings
from services.ingestion.recipe import Recipe
from shared.documents import SourceDocument, Stage
from shared.errors import ConfigError, UnreadableDocument
from tests.ingestion_world import WordTokenizer, World, outcome, upsert
from tests.unit.ingestion.test_formats import make_pdf

SCAN = SourceDocument("a.pdf", make_pdf("Cover page", "", "Middle page", "", ""))
READS_STDIN = "import sys; data = sys.stdin.buffer.read(); print('seen', data[:5].decode(), end='')"


def python(code: str, *arguments: str, timeout_s: float = 60.0) -> OcrCommand:
    return OcrCommand([sys.executable, "-c", code, *arguments], timeout_s)


def test_pages_without_text_are_named_and_the_others_are_read() -> None:
    parsed = parse(SCAN)
    assert parsed.text == "Cover page\n\nMiddle page"
    assert parsed.warnings == ("no text on pages 2, 4-5 of 5 (if they are scans, set ingestion.ocr_command)",)
    assert not parsed.incomplete


def test_only_pages_without_text_are_recognised_each_by_itself() -> None:
    given: list[bytes] = []

    def ocr(pdf: bytes) -> str:
        given.append(pdf)
        return "" if len(given) == 2 else f"recog-\nnised {len(given)}\n"

    parsed = parse(SCAN, ParserSettings(ocr))
    assert parsed.text == "Cover page\n\nrecognised 1\n\nMiddle page\n\nrecognised 3"
    assert parsed.warnings == ("no text on page 4 of 5",)
    assert [pdf[:5] for pdf in given] == [b"%PDF-"] * 3


def test_a_page_that_the_command_fails_on_is_named_with_the_reason() -> None:
    def ocr(pdf: bytes) -> str:
        raise OcrFailed("it ended with 1: no such language")

    parsed = parse(SCAN, ParserSettings(ocr))
    assert parsed.warnings[0] == "page 2: ocr_command failed: it ended with 1: no such language"
    assert parsed.incomplete
    with pytest.raises(UnreadableDocument, match=r"ocr_command failed on page 1: it ended with 1"):
        parse(SourceDocument("a.pdf", make_pdf("")), ParserSettings(ocr))


def test_without_any_text_the_document_is_unreadable() -> None:
    with pytest.raises(UnreadableDocument, match=r"no text layer .*set ingestion\.ocr_command"):
        parse(SourceDocument("a.pdf", make_pdf("", "")))
    with pytest.raises(UnreadableDocument, match="ocr_command found no text"):
        parse(SourceDocument("a.pdf", make_pdf("", "")), ParserSettings(lambda pdf: " "))


def test_the_page_is_on_standard_input_and_the_text_on_standard_output() -> None:
    assert python(READS_STDIN)(make_pdf("x")) == "seen %PDF-"


def test_the_page_and_the_text_may_be_files() -> None:
    code = "import sys; p, t = sys.argv[1:]; open(t, 'w').write(p[-4:] + open(p, 'rb').read(5).decode())"
    assert python(code, "{pdf}", "{text}")(make_pdf("x")) == ".pdf%PDF-"


def test_arguments_go_through_no_shell(tmp_path: Path) -> None:
    argument = f"; touch {tmp_path}/made"
    assert python("import sys; print(sys.argv[1], end='')", argument)(b"") == argument
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "timeout_s", "reason"),
    [
        ("import sys; sys.exit('no language')", 60.0, "ended with 1: no language"),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", 60.0, "not UTF-8"),
        ("import signal; signal.pause()", 0.3, "more than 0.3 s"),
        # a child that holds the pipes open goes as well
        ("import os, signal; os.fork(); signal.pause()", 0.3, "more than 0.3 s"),
    ],
)
def test_a_failing_command_says_what_it_did(code: str, timeout_s: float, reason: str) -> None:
    with pytest.raises(OcrFailed, match=reason):
        python(code, timeout_s=timeout_s)(b"")


def test_a_text_file_that_was_not_written_is_a_failure() -> None:
    with pytest.raises(OcrFailed, match="wrote no text file"):
        python("", "{text}")(b"")


def test_a_program_that_is_not_there_is_named_when_the_service_starts() -> None:
    with pytest.raises(ConfigError, match=r"ingestion\.ocr_command: there is no program 'no-such-ocr'"):
        OcrCommand(["no-such-ocr"], 1.0)


@pytest.mark.parametrize(
    "values", [{"ocr_command": (" ",)}, {"ocr_timeout_s": 0.0}, {"max_unpacked_bytes": 0}]
)
def test_settings_out_of_range_are_named(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        IngestionConfig("m", **values)  # type: ignore[arg-type]


async def test_warnings_come_with_the_end_of_a_document() -> None:
    events = await upsert(World().service(), SCAN)
    assert [bool(e.warnings) for e in events] == [e.stage is Stage.STORED for e in events]


def test_a_command_makes_documents_with_pages_new_and_no_others() -> None:
    before = Recipe(WordTokenizer(), 16)
    after = Recipe(WordTokenizer(), 16, ParserSettings(lambda pdf: "", "ocr --fast"))
    text = SourceDocument("a.txt", b"text")
    assert before.source_hash(text) == after.source_hash(text)
    assert before.source_hash(SCAN) != after.source_hash(SCAN)


async def test_a_document_that_the_command_failed_on_is_tried_again() -> None:
    failing = [True]

    def ocr(pdf: bytes) -> str:
        if failing[0]:
            raise OcrFailed("it took more than 60 s")
        return "recognised"

    world = World()
    service = world.service(parsers=ParserSettings(ocr, "ocr"))
    for fails, ended in ((True, Stage.STORED), (False, Stage.STORED), (False, Stage.UNCHANGED)):
        failing[0] = fails
        assert outcome(await upsert(service, SCAN)) == {"a.pdf": ended}
    assert "recognised" in world.texts()["a.pdf"]
