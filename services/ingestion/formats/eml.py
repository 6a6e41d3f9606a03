"""Mails (.eml): the headers that matter, the body, and what is attached, by its own format."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message

from services.ingestion.formats.document import Heading, ParsedDocument
from services.ingestion.formats.html import parse_html
from services.ingestion.formats.plain import decode
from services.ingestion.formats.reading import DocumentReading
from services.ingestion.formats.writer import MarkdownWriter, squeeze
from shared.documents import SourceDocument
from shared.errors import KvquiltError, UnreadableDocument

_HEADERS = ("Subject", "From", "To", "Cc", "Date")
_MARKS = (*_HEADERS, "Received", "Message-ID", "Reply-To", "Sender")
_DEEPEST = 5
_MAX_PARTS = 1_000
_MAIL = "message/rfc822"

ParseAttached = Callable[[SourceDocument, DocumentReading], ParsedDocument]
"""Reads an attachment; its media type is the sender's, who often says only that it is bytes."""

log = logging.getLogger(__name__)


def parse_eml(content: bytes, reading: DocumentReading, parse_attached: ParseAttached) -> ParsedDocument:
    """
    Raises:
        UnreadableDocument: it is no mail, or one that is damaged.
    """
    try:
        return _Mail(reading, parse_attached).read(message_from_bytes(content.lstrip()))
    except (KvquiltError, RecursionError):
        raise
    except Exception as error:  # broken mails get through the parser, and fail wherever one looks at them
        log.info("damaged mail: %r", error)
        raise UnreadableDocument("the mail is damaged") from None


@dataclass(slots=True)
class _Mail:
    reading: DocumentReading
    parse_attached: ParseAttached
    warnings: list[str] = field(default_factory=list)
    incomplete: bool = False

    def read(self, message: Message) -> ParsedDocument:
        if not any(name in message for name in _MARKS):
            raise UnreadableDocument("the document is not a mail although it is called one")
        out = MarkdownWriter(self.reading.settings.table_chars)
        shown = [(name, _header(message, name)) for name in _HEADERS]
        out.paragraph("\n".join(f"{name}: {value}" for name, value in shown if value))
        parts = list(_parts(message))
        if len(parts) > _MAX_PARTS:
            raise UnreadableDocument(f"the mail has more than {_MAX_PARTS} parts")
        for part in parts:
            if not _is_attached(part):
                out.document(_body(part), below=1)
        for number, part in enumerate((p for p in parts if _is_attached(p)), 1):
            self.reading.check()
            self._attach(part, number, out)
        subject = shown[0][1]
        parsed = out.finish(subject, self.warnings, self.incomplete)
        if not subject:
            return parsed
        headings = (Heading(0, 1, subject), *parsed.headings)
        return ParsedDocument(parsed.text, subject, headings, True, parsed.warnings, self.incomplete)

    def _attach(self, part: Message, number: int, out: MarkdownWriter) -> None:
        media_type = part.get_content_type()
        name = _clean(part.get_filename() or "") or (
            f"mail {number}.eml" if media_type == _MAIL else f"attachment {number}"
        )
        out.heading(2, f"Attachment: {name}")
        try:
            attached = self._parsed(part, name, media_type)
            if not attached.text.strip():
                raise UnreadableDocument("it holds no text")
        except UnreadableDocument as error:
            self.warnings.append(f"attachment {name!r} was not read: {error.detail}")
            out.paragraph("(not read)")
            return
        self.warnings += [f"attachment {name!r}: {warning}" for warning in attached.warnings]
        self.incomplete |= attached.incomplete
        out.document(attached, below=2)

    def _parsed(self, part: Message, name: str, media_type: str) -> ParsedDocument:
        if media_type != _MAIL:
            charset = part.get_content_charset()
            media_type += f"; charset={charset}" if charset else ""
            return self.parse_attached(SourceDocument(name, _content(part), media_type), self.reading)
        if self.reading.depth == _DEEPEST:
            raise UnreadableDocument(f"more than {_DEEPEST} mails are inside each other")
        inner = part.get_payload()
        if not isinstance(inner, list) or not isinstance(inner[0], Message):
            raise UnreadableDocument("the mail is damaged")
        self.reading.depth += 1
        try:
            return _Mail(self.reading, self.parse_attached).read(inner[0])
        finally:
            self.reading.depth -= 1


def _parts(message: Message) -> Iterator[Message]:
    """Bodies and attachments in order; of alternatives the first that is plain text, else the last."""
    if message.get_content_type() == _MAIL or not message.is_multipart():
        yield message
        return
    inner = [part for part in message.get_payload() if isinstance(part, Message)]
    if message.get_content_type() == "multipart/alternative":
        plain = [p for p in inner if p.get_content_type() == "text/plain" and _content(p).strip()]
        inner = plain[:1] or inner[-1:]
    for part in inner:
        yield from _parts(part)


def _is_attached(part: Message) -> bool:
    return (
        part.get_content_disposition() == "attachment"
        or part.get_filename() is not None
        or part.get_content_type() not in ("text/plain", "text/html")
    )


def _body(part: Message) -> ParsedDocument:
    content, charset = _content(part), part.get_content_charset() or ""
    if part.get_content_type() == "text/html":
        return _in(charset, lambda name: parse_html(content, name))
    return _in(charset, lambda name: ParsedDocument(decode(content, name).strip()))


def _in(charset: str, read: Callable[[str], ParsedDocument]) -> ParsedDocument:
    """By the charset that the mail names, or by guessing where that is wrong."""
    try:
        return read(charset)
    except UnreadableDocument:
        return read("")


def _content(part: Message) -> bytes:
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _header(message: Message, name: str) -> str:
    """As it was sent: what is not ASCII in it is UTF-8, whatever the library makes of it."""
    values = [value for key, value in message.raw_items() if key.lower() == name.lower()]
    return ", ".join(
        _clean(str(v).encode("utf-8", "surrogateescape").decode("utf-8", "replace")) for v in values
    )


def _clean(value: str) -> str:
    """On one line, without its encoding and what no text has."""
    with contextlib.suppress(HeaderParseError, ValueError, LookupError):
        value = str(make_header(decode_header(value)))
    return squeeze("".join(ch if ch.isprintable() else " " for ch in value))
