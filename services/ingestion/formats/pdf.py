"""PDF: the text layer of its pages; pages that have none are recognised, if there is a command for that."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import dataclass, field

from pypdf import PageObject, PasswordType, PdfReader, PdfWriter
from pypdf.errors import DependencyError

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.ocr import OcrFailed
from services.ingestion.formats.plain import normalize_newlines
from services.ingestion.formats.reading import DocumentReading
from services.ingestion.formats.writer import ranges
from shared.errors import KvquiltError, UnreadableDocument

log = logging.getLogger(__name__)
logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns about every blemish that it copes with

_HEADER_BYTES = 1024  # a reader looks for the header within the first of them
_WORD_BROKEN_AT_LINE_END = re.compile(r"(?<=[^\W\d_])-\n(?=[a-z\u00df-\u00ff])")


def parse_pdf(content: bytes, reading: DocumentReading) -> ParsedDocument:
    if b"%PDF-" not in content[:_HEADER_BYTES]:
        raise UnreadableDocument("the document is not a PDF although it is called one")
    try:
        pages, title = _read(content, reading)
    except KvquiltError:
        raise
    except DependencyError as error:
        log.error("pypdf lacks a library: %s", error)
        raise UnreadableDocument("the PDF is encrypted in a way that cannot be read here") from None
    except Exception as error:  # pypdf meets damaged files with nearly any exception there is
        log.info("damaged PDF: %r", error)
        raise UnreadableDocument("the PDF is damaged") from None
    if not any(pages.texts):
        raise UnreadableDocument(_no_text(pages, reading))
    text = "\n\n".join(page for page in pages.texts if page)
    return ParsedDocument(text, title, warnings=pages.warnings(reading), incomplete=bool(pages.failed))


@dataclass(slots=True)
class _Pages:
    """``failed``: why a page was not recognised, by its number."""

    texts: list[str] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def warnings(self, reading: DocumentReading) -> tuple[str, ...]:
        silent = [i for i, text in enumerate(self.texts, 1) if not text and i not in self.failed]
        found = [f"page {number}: ocr_command failed: {why}" for number, why in self.failed.items()]
        if silent:
            pages = f"{'page' if len(silent) == 1 else 'pages'} {ranges(silent)} of {len(self.texts)}"
            remedy = "" if reading.settings.ocr else " (if they are scans, set ingestion.ocr_command)"
            found.append(f"no text on {pages}{remedy}")
        return tuple(found)


def _no_text(pages: _Pages, reading: DocumentReading) -> str:
    if pages.failed:
        number, why = next(iter(pages.failed.items()))
        return f"the PDF has no text layer, and ocr_command failed on page {number}: {why}"
    if reading.settings.ocr:
        return "the PDF has no text layer, and ocr_command found no text on its pages"
    return "the PDF has no text layer (scanned pages need OCR first; or set ingestion.ocr_command)"


def _read(content: bytes, reading: DocumentReading) -> tuple[_Pages, str]:
    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED:
        raise UnreadableDocument("the PDF is password-protected; remove the password first")
    pages = _Pages()
    for number, page in enumerate(reader.pages, 1):
        reading.check()
        text = _clean(page.extract_text())
        if not text and reading.settings.ocr is not None:
            try:
                text = _clean(reading.settings.ocr(_alone(page)))
            except OcrFailed as error:
                pages.failed[number] = str(error)
        pages.texts.append(text)
    title = reader.metadata.title if reader.metadata else None
    return pages, _clean(str(title or ""))


def _alone(page: PageObject) -> bytes:
    """A PDF of this page only."""
    writer, out = PdfWriter(), io.BytesIO()
    writer.add_page(page)
    writer.write(out)
    return out.getvalue()


def _clean(text: str) -> str:
    text = _WORD_BROKEN_AT_LINE_END.sub("", normalize_newlines(text))
    # Lone surrogates come out of broken font tables and cannot be encoded; the rest is what no text has.
    return "".join(ch for ch in text if ch in "\n\t" or (ch.isprintable() or ch.isspace())).strip()
