"""Finds the format of a document, and its parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.html import parse_html
from services.ingestion.formats.markdown import parse_markdown
from services.ingestion.formats.pdf import parse_pdf
from services.ingestion.formats.plain import parse_plain
from shared.documents import SourceDocument
from shared.errors import UnreadableDocument

# Goes into a document's source hash: raise it when a parser makes another text of the same bytes.
PARSERS_VERSION = 1

_Parser = Callable[[bytes, str], ParsedDocument]
_BY_MEDIA_TYPE: dict[str, _Parser] = {
    "text/plain": parse_plain,
    "text/markdown": parse_markdown,
    "text/x-markdown": parse_markdown,
    "text/html": parse_html,
    "application/xhtml+xml": parse_html,
    "application/pdf": parse_pdf,
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
}


def parse(document: SourceDocument) -> ParsedDocument:
    """Text, title and headings; where the document names no title, its file's name is one.

    Raises:
        UnreadableDocument: says what is wrong with the document and what to do about it.
    """
    media_type, charset = media_type_of(document)
    if not document.content.strip():
        raise UnreadableDocument("the document is empty")
    try:
        parsed = _BY_MEDIA_TYPE[media_type](document.content, charset)
    except RecursionError:
        raise UnreadableDocument("the document is nested too deeply") from None
    if not parsed.text.strip():
        raise UnreadableDocument("the document holds no text")
    return replace(parsed, title=parsed.title or _title_of_name(document.document_id))


def _title_of_name(document_id: str) -> str:
    stem = PurePosixPath(document_id).stem
    return " ".join(re.split(r"[\s_-]+", stem)).strip() or stem


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
