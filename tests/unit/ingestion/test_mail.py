"""Mails: headers, bodies of several kinds, attachments."""

from __future__ import annotations

import io
import zipfile
from email.message import EmailMessage
from email.policy import SMTP

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.parse import parse
from services.ingestion.formats.reading import ParserSettings
from shared.documents import SourceDocument
from shared.errors import UnreadableDocument
from tests.unit.ingestion.test_formats import make_pdf
from tests.unit.ingestion.test_office import word


def mail(subject: str = "Rent for May", body: str = "It is due.\n") -> EmailMessage:
    message = EmailMessage(SMTP)
    message["From"] = "Orla Venn <orla@example.com>"
    message["To"] = "Bo <bo@example.com>"
    message["Date"] = "Fri, 01 May 2026 10:00:00 +0200"
    message["Subject"] = subject
    message.set_content(body)
    return message


def read(content: bytes, settings: ParserSettings | None = None) -> ParsedDocument:
    return parse(SourceDocument("m.eml", content), settings or ParserSettings())


HEADERS = (
    "From: Orla Venn <orla@example.com>\nTo: Bo <bo@example.com>\nDate: Fri, 01 May 2026 10:00:00 +0200\n\n"
)


def test_a_mail_has_its_headers_and_its_body() -> None:
    parsed = read(mail("Miete für Mai").as_bytes())
    assert parsed.text == "Subject: Miete für Mai\n" + HEADERS + "It is due."
    assert parsed.title == "Miete für Mai"
    assert [(h.start, h.level, h.title) for h in parsed.headings] == [(0, 1, "Miete für Mai")]


def test_headers_may_be_utf8_without_saying_so_and_bodies_in_a_charset_they_deny() -> None:
    content = (
        "From: Jörg\r\nSubject: Grüße\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\nSchön.".encode()
    )
    assert read(content).text == "Subject: Grüße\nFrom: Jörg\n\nSchön."


def test_of_two_forms_of_the_body_the_plain_one_is_read() -> None:
    message = mail(body="plain")
    message.add_alternative("<p>marked up</p>", subtype="html")
    assert read(message.as_bytes()).text.endswith("\n\nplain")


def test_a_body_of_html_keeps_its_structure() -> None:
    message = mail()
    message.set_content("<h1>Sums</h1><ul><li>one<li>two</ul>", subtype="html")
    parsed = read(message.as_bytes())
    assert parsed.text.endswith("# Sums\n\n- one\n- two")
    assert [(h.level, h.title) for h in parsed.headings] == [(1, "Rent for May"), (2, "Sums")]


def test_attachments_are_read_by_their_own_kind_or_named() -> None:
    message = mail()
    message.add_attachment(word(), maintype="application", subtype="octet-stream", filename="lease.docx")
    message.add_attachment("a;b\n1;2\n".encode("utf-16"), maintype="text", subtype="csv", filename="sums")
    message.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="seal.png")
    message.add_attachment(make_pdf("Page one", ""), maintype="application", subtype="pdf", filename="a.pdf")
    parsed = read(message.as_bytes())
    for part in (
        "## Attachment: lease.docx\n\n# Lease\n\n# Rent\n",
        "| month | sum |",
        "## Attachment: sums\n\n| a | b |\n",
        "## Attachment: seal.png\n\n(not read)",
        "## Attachment: a.pdf\n\nPage one",
    ):
        assert part in parsed.text
    assert len(parsed.warnings) == 2
    assert parsed.warnings[0] == "attachment 'seal.png' was not read: media type 'image/png' is not supported"
    assert parsed.warnings[1].startswith("attachment 'a.pdf': no text on page 2 of 2")
    levels = {h.title: h.level for h in parsed.headings}
    assert (levels["Attachment: lease.docx"], levels["Lease"], levels["Notice"]) == (2, 3, 4)
    assert all(h.title in parsed.text[h.start :].split("\n")[0] for h in parsed.headings)


def test_attached_mails_are_read_with_what_is_attached_to_them_unless_they_go_on_for_ever() -> None:
    inner = mail("Inner", "Deep words.\n")
    inner.add_attachment(b"some notes", maintype="text", subtype="plain", filename="notes.txt")
    outer = mail("Outer")
    outer.add_attachment(inner)
    text = read(outer.as_bytes()).text
    for part in ("## Attachment: mail 1.eml\n\nSubject: Inner\n", "Deep words.", "some notes"):
        assert part in text
    for number in range(8):
        wrapped = mail(f"Around {number}")
        wrapped.add_attachment(outer)
        outer = wrapped
    parsed = read(outer.as_bytes())
    assert "Deep words." not in parsed.text
    assert "more than 5 mails are inside each other" in parsed.warnings[0]


def test_all_attachments_together_unpack_to_no_more_than_one_document_may() -> None:
    message = mail()
    for i in range(3):
        message.add_attachment(word(), maintype="application", subtype="x", filename=f"{i}.docx")
    alone = mail()
    alone.add_attachment(word(), maintype="application", subtype="x", filename="0.docx")
    with zipfile.ZipFile(io.BytesIO(word())) as package:
        one = sum(part.file_size for part in package.infolist())
    settings = ParserSettings(max_unpacked_bytes=2 * one)
    assert not read(alone.as_bytes(), settings).warnings
    (warning,) = read(message.as_bytes(), settings).warnings
    assert warning.startswith(
        f"attachment '2.docx' was not read: the document unpacks to more than {2 * one}"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"just some words", "not a mail although"),
        (b"\x00\x01\x02", "not a mail although"),
        (b"Subject: \r\nFrom:\r\n\r\n", "holds no text"),
    ],
)
def test_what_is_no_mail_says_so(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument, match=reason):
        read(content)


WHOLE = mail()
WHOLE.add_alternative("<p>x</p>", subtype="html")
WHOLE.add_attachment(b"a,b", maintype="text", subtype="csv", filename="ä.csv")
WHOLE.add_attachment(mail("Inner"))
BYTES = WHOLE.as_bytes()


@settings(deadline=None)
@given(st.integers(0, len(BYTES) - 1), st.binary(min_size=1, max_size=6))
def test_no_damage_raises_anything_else(at: int, written: bytes) -> None:
    try:
        parsed = read(BYTES[:at] + written + BYTES[at + len(written) :])
    except UnreadableDocument:
        return
    parsed.text.encode()
    assert all(0 <= h.start < len(parsed.text) for h in parsed.headings)
