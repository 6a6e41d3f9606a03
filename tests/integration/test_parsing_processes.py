"""Documents are read in processes that may take so much of the machine and no more."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, NameObject, NumberObject

from services.ingestion.config import ParsingConfig
from services.ingestion.formats.ocr import OcrFailed
from services.ingestion.formats.parse import parse
from services.ingestion.formats.reading import ParserSettings
from services.ingestion.parsing.processes import ParserProcesses
from shared.documents import SourceDocument, Stage
from shared.errors import Cancelled, UnreadableDocument
from tests.ingestion_world import World, text, upsert
from tests.unit.ingestion.test_formats import make_pdf


def one_page_again_and_again(times: int) -> bytes:
    """A PDF of little more than the page itself."""
    writer = PdfWriter(PdfReader(io.BytesIO(make_pdf("page"))))
    pages = writer.root_object["/Pages"]
    pages[NameObject("/Kids")] = ArrayObject([pages["/Kids"][0]] * times)
    pages[NameObject("/Count")] = NumberObject(times)
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


SETTINGS = ParserSettings()
FOR_EVER = SourceDocument("long.pdf", one_page_again_and_again(50_000))
GOOD = [
    SourceDocument("a.md", "---\ntitle: Näme\n---\n# One\n\ntext\n\n## Two\n\nmore".encode()),
    SourceDocument("a.html", b"<title>T</title><h1>One</h1><p>text<ul><li>x<li>y</ul>"),
    SourceDocument("a.csv", b"a,b\n1,2\n"),
    SourceDocument("b", "größer".encode("utf-16"), "text/plain; charset=utf-16"),
    SourceDocument("a.pdf", make_pdf("Cover page", "", title="Of a PDF")),
]


def waits_on() -> None:
    """Somebody does."""


@pytest.fixture(scope="module")
def processes() -> Iterator[ParserProcesses]:
    parsers = ParserProcesses(ParsingConfig(256 << 20, cpu_s=1, cpu_s_per_mib=0, text_bytes=10_000))
    parsers(GOOD[0], SETTINGS, waits_on)
    yield parsers
    parsers.close()


def refused(processes: ParserProcesses, document: SourceDocument) -> str:
    with pytest.raises(UnreadableDocument) as refusal:
        processes(document, SETTINGS, waits_on)
    return refusal.value.detail


def process_ids(processes: ParserProcesses) -> set[int]:
    return {process.process_id for process in processes.idle}


@pytest.mark.parametrize("document", GOOD, ids=lambda document: document.document_id)
def test_a_document_is_read_there_as_here_and_the_process_stays(
    processes: ParserProcesses, document: SourceDocument
) -> None:
    before = process_ids(processes)
    assert processes(document, SETTINGS, waits_on) == parse(document, SETTINGS)
    assert process_ids(processes) == before
    assert len(before) == 1


def test_what_is_wrong_with_a_document_is_told_as_here(processes: ParserProcesses) -> None:
    assert refused(processes, SourceDocument("a.pdf", b"none")) == (
        "the document is not a PDF although it is called one"
    )
    assert refused(processes, SourceDocument("a.xyz", b"none")).startswith("format '.xyz' is not supported")


def test_a_document_that_computes_for_ever_is_refused_and_the_next_is_read(
    processes: ParserProcesses,
) -> None:
    assert refused(processes, FOR_EVER).startswith("reading the document took more than 1 s of computing")
    assert processes(GOOD[0], SETTINGS, waits_on).title == "Näme"


def test_a_document_that_needs_too_much_memory_is_refused_and_the_next_is_read(
    processes: ParserProcesses,
) -> None:
    large = SourceDocument("a.txt", bytes(150 << 20))
    assert refused(processes, large).startswith(
        f"reading the document took more than {256 << 20} bytes of memory (ingestion.parsing.memory_bytes)"
    )
    assert processes(GOOD[0], SETTINGS, waits_on).title == "Näme"


def test_a_document_of_too_much_text_is_refused(processes: ParserProcesses) -> None:
    assert refused(processes, SourceDocument("a.txt", b"word " * 2001)).startswith(
        "the document's text has 10005 bytes, more than the 10000 that ingestion.parsing.text_bytes allows"
    )


def test_a_process_that_does_not_answer_is_given_up_by_the_clock(processes: ParserProcesses) -> None:
    (stopped,) = process_ids(processes)
    os.kill(stopped, signal.SIGSTOP)
    assert "or 4 s by the clock" in refused(processes, GOOD[0])
    assert processes(GOOD[0], SETTINGS, waits_on).title == "Näme"


def test_a_document_that_nobody_waits_for_is_read_no_further(processes: ParserProcesses) -> None:
    def nobody_waits() -> None:
        raise Cancelled("the run was ended")

    (reading,) = process_ids(processes)
    with pytest.raises(Cancelled):
        processes(FOR_EVER, SETTINGS, nobody_waits)
    assert not Path(f"/proc/{reading}").exists()
    assert processes.idle == []
    assert processes(GOOD[0], SETTINGS, waits_on).title == "Näme"


def test_a_process_that_somebody_killed_is_replaced(processes: ParserProcesses) -> None:
    (killed,) = process_ids(processes)
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert processes(GOOD[0], SETTINGS, waits_on).title == "Näme"
    assert process_ids(processes).isdisjoint({killed})


def test_pages_that_are_pictures_are_recognised_by_whoever_asks(processes: ParserProcesses) -> None:
    given: list[bytes] = []

    def ocr(pdf: bytes) -> str:
        given.append(pdf[:5])
        if len(given) == 2:
            raise OcrFailed("no such language")
        return "recognised"

    parsed = processes(SourceDocument("a.pdf", make_pdf("", "", "Last")), ParserSettings(ocr), waits_on)
    assert parsed.text == "recognised\n\nLast"
    assert parsed.warnings == ("page 2: ocr_command failed: no such language",)
    assert parsed.incomplete
    assert given == [b"%PDF-"] * 2


def test_the_processes_know_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    parsers = ParserProcesses(ParsingConfig())
    parsers(GOOD[0], SETTINGS, waits_on)
    (one,) = process_ids(parsers)
    assert b"hidden" not in Path(f"/proc/{one}/environ").read_bytes()
    parsers.close()
    assert not Path(f"/proc/{one}").exists()


async def test_a_document_that_exceeds_its_limits_fails_by_name_and_the_others_are_stored(
    processes: ParserProcesses,
) -> None:
    service = World().service(parse=processes)
    ends = {
        event.document_id: event
        for event in await upsert(service, text("before.txt", "one"), FOR_EVER, text("behind.txt", "two"))
    }
    service.close()
    assert [ends[name].stage for name in ("before.txt", "behind.txt")] == [Stage.STORED] * 2
    failed = ends[FOR_EVER.document_id]
    assert (failed.stage, failed.error_code) == (Stage.FAILED, "DOCUMENT_UNREADABLE")
    assert failed.error.startswith("reading the document took more than 1 s of computing")
