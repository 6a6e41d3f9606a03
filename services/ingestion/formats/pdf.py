"""PDF: the text layer of its pages."""

from __future__ import annotations

import io
import logging
import re

from pypdf import PasswordType, PdfReader
from pypdf.errors import DependencyError

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.plain import normalize_newlines
from shared.errors import UnreadableDocument

log = logging.getLogger(__name__)
logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns about every blemish that it copes with

_HEADER_BYTES = 1024  # a reader looks for the header within the first of them
_WORD_BROKEN_AT_LINE_END = re.compile(r"(?<=[^\W\d_])-\n(?=[a-z\u00df-\u00ff])")


def parse_pdf(content: bytes, charset: str) -> ParsedDocument:
    del charset  # a PDF says itself
    if b"%PDF-" not in content[:_HEADER_BYTES]:
        raise UnreadableDocument("the document is not a PDF although it is called one")
    try:
        text, title = _read(content)
    except UnreadableDocument:
        raise
    except DependencyError as error:
        log.error("pypdf lacks a library: %s", error)
        raise UnreadableDocument("the PDF is encrypted in a way that cannot be read here") from None
    except Exception as error:  # pypdf meets damaged files with nearly any exception there is
        log.info("damaged PDF: %r", error)
        raise UnreadableDocument("the PDF is damaged") from None
    if not text.strip():
        raise UnreadableDocument("the PDF has no text layer (scanned pages need OCR first)")
    return ParsedDocument(text, title)


def _read(content: bytes) -> tuple[str, str]:
    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise UnreadableDocument("the PDF is password-protected; remove the password first")
    pages = [_clean(page.extract_text()) for page in reader.pages]
    title = reader.metadata.title if reader.metadata else None
    return "\n\n".join(page for page in pages if page), _clean(str(title or ""))


def _clean(text: str) -> str:
    text = _WORD_BROKEN_AT_LINE_END.sub("", normalize_newlines(text))
    # Lone surrogates come out of broken font tables and cannot be encoded; the rest is what no text has.
    return "".join(ch for ch in text if ch in "\n\t" or (ch.isprintable() or ch.isspace())).strip()
