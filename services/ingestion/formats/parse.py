"""Finds the format of a document, and its parser."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

from services.ingestion.formats.csv import parse_csv, parse_tsv
from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.docx import parse_docx
from services.ingestion.formats.eml import parse_eml
from services.ingestion.formats.html import parse_html
from services.ingestion.formats.markdown import parse_markdown
from services.ingestion.formats.pdf import parse_pdf
from services.ingestion.formats.plain import parse_plain
from services.ingestion.formats.pptx import parse_pptx
from services.ingestion.formats.reading import DocumentReading, ParserSettings
from services.ingestion.formats.xlsx import parse_xlsx
from shared.documents import SourceDocument
from shared.errors import KvquiltError, UnreadableDocument

log = logging.getLogger(__name__)

# Goes into a document's source hash: raise it when a parser makes another text of the same bytes.
PARSERS_VERSION = 3
LONGEST_TITLE = 500
"""Characters of a title or heading. Both stand in front of every chunk, of its KV and in its row of the
index, which holds no more than 64 KB; the text itself keeps all of them."""
_DEFAULT = ParserSettings()

_Parser = Callable[[bytes, str, DocumentReading], ParsedDocument]
_OPEN_XML = "application/vnd.openxmlformats-officedocument"
_BY_MEDIA_TYPE: dict[str, _Parser] = {
    "text/plain": lambda content, charset, _: parse_plain(content, charset),
    "text/markdown": lambda content, charset, _: parse_markdown(content, charset),
    "text/x-markdown": lambda content, charset, _: parse_markdown(content, charset),
    "text/html": lambda content, charset, _: parse_html(content, charset),
    "application/xhtml+xml": lambda content, charset, _: parse_html(content, charset),
    "application/pdf": lambda content, _, reading: parse_pdf(content, reading),
    f"{_OPEN_XML}.wordprocessingml.document": lambda content, _, reading: parse_docx(content, reading),
    f"{_OPEN_XML}.presentationml.presentation": lambda content, _, reading: parse_pptx(content, reading),
    f"{_OPEN_XML}.spreadsheetml.sheet": lambda content, _, reading: parse_xlsx(content, reading),
    "text/csv": parse_csv,
    "text/tab-separated-values": parse_tsv,
    "message/rfc822": lambda content, _, reading: parse_eml(content, reading, _parse_attached),
}
_MEDIA_TYPE_BY_ENDING = {
    ".txt": "text/plain",
    ".text": "text/plain",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "application/xhtml+xml",
    ".pdf": "application/pdf",
    ".docx": f"{_OPEN_XML}.wordprocessingml.document",
    ".pptx": f"{_OPEN_XML}.presentationml.presentation",
    ".xlsx": f"{_OPEN_XML}.spreadsheetml.sheet",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".eml": "message/rfc822",
}
_WITH_PAGES = ("application/pdf", "message/rfc822")


def parse(
    document: SourceDocument,
    settings: ParserSettings = _DEFAULT,
    check: Callable[[], None] = lambda: None,
) -> ParsedDocument:
    """Text, title and headings; where the document names no title, its file's name is one. ``check`` is
    called now and then, and raises when nobody waits any more.

    Raises:
        UnreadableDocument: says what is wrong with the document and what to do about it.
    """
    if not document.content.strip():
        media_type_of(document)
        raise UnreadableDocument("the document is empty")
    try:
        parsed = _parse(document, DocumentReading(settings, check))
    except (KvquiltError, MemoryError):
        raise
    except RecursionError:
        raise UnreadableDocument("the document is nested too deeply") from None
    except Exception as error:  # parsers are libraries of others, and documents anything at all
        log.warning("a parser failed", exc_info=error)
        raise UnreadableDocument(
            f"its parser failed over the document ({type(error).__name__}); save it anew, or in another "
            "format"
        ) from None
    if not parsed.text.strip():
        raise UnreadableDocument("the document holds no text")
    headings = tuple(replace(heading, title=_clipped(heading.title)) for heading in parsed.headings)
    title = _printable(parsed.title) or _title_of_name(document.document_id)
    return replace(parsed, title=_clipped(title), headings=headings)


def depends_on_ocr(media_type: str) -> bool:
    """Whether a document of this kind may have pages that are pictures."""
    return media_type in _WITH_PAGES


def _parse(document: SourceDocument, reading: DocumentReading) -> ParsedDocument:
    media_type, charset = media_type_of(document)
    return _BY_MEDIA_TYPE[media_type](document.content, charset, reading)


def _parse_attached(document: SourceDocument, reading: DocumentReading) -> ParsedDocument:
    """By the ending of its name, else by the media type, which senders often know less of."""
    if PurePosixPath(document.document_id).suffix.lower() in _MEDIA_TYPE_BY_ENDING:
        return _parse(replace(document, media_type=""), reading)
    name = document.media_type.partition(";")[0]
    if name not in _BY_MEDIA_TYPE:
        raise UnreadableDocument(f"media type {name!r} is not supported")
    return _parse(document, reading)


def _printable(title: str) -> str:
    """Without control characters, which the properties of a document may hold; empty where nothing of it can
    be seen."""
    title = "".join(" " if unicodedata.category(ch) == "Cc" else ch for ch in title).strip()
    return title if any(ch.isprintable() and not ch.isspace() for ch in title) else ""


def _clipped(title: str) -> str:
    return title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1].rstrip() + "…"


def _title_of_name(document_id: str) -> str:
    stem = PurePosixPath(document_id).stem
    return " ".join(re.split(r"[\s_-]+", stem)).strip() or stem.strip() or document_id.strip()


def media_type_of(document: SourceDocument) -> tuple[str, str]:
    """Media type without parameters, and its charset (empty: not said).

    Raises:
        UnreadableDocument: no parser for it.
    """
    known = " ".join(_MEDIA_TYPE_BY_ENDING)
    if document.media_type:
        name, *parameters = [part.strip().lower() for part in document.media_type.split(";")]
        if name not in _BY_MEDIA_TYPE:
            raise UnreadableDocument(
                f"media type {name!r} is not supported (known: {' '.join(_BY_MEDIA_TYPE)})"
            )
        charsets = [p.removeprefix("charset=").strip('"') for p in parameters if p.startswith("charset=")]
        return name, charsets[0] if charsets else ""
    ending = PurePosixPath(document.document_id).suffix.lower()
    if ending not in _MEDIA_TYPE_BY_ENDING:
        what = (
            f"format {ending!r} is not supported"
            if ending
            else "the name has no ending that tells the format"
        )
        raise UnreadableDocument(f"{what} (known: {known}); convert the document or set media_type")
    return _MEDIA_TYPE_BY_ENDING[ending], ""
