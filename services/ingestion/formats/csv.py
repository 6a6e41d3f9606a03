"""Comma-separated values, in whatever encoding and with whatever separator, as a table."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.plain import decode
from services.ingestion.formats.reading import DocumentReading
from services.ingestion.formats.writer import MarkdownWriter
from shared.errors import UnreadableDocument

_SEPARATORS = ",;\t|"
_LOOKED_AT = 50
# what Excel reads, and writes for others, in front of the first row
_SEPARATOR_LINE = re.compile(r'\s*"?sep=(.)"?[ \t]*\n', re.IGNORECASE)


def parse_csv(content: bytes, charset: str, reading: DocumentReading) -> ParsedDocument:
    text = decode(content, charset)
    if said := _SEPARATOR_LINE.match(text):
        return _table(text[said.end() :], said[1], reading)
    return _table(text, max(_SEPARATORS, key=lambda separator: _fits(text, separator)), reading)


def parse_tsv(content: bytes, charset: str, reading: DocumentReading) -> ParsedDocument:
    return _table(decode(content, charset), "\t", reading)


def _table(text: str, separator: str, reading: DocumentReading) -> ParsedDocument:
    out = MarkdownWriter(reading.settings.table_chars)
    try:
        out.table(list(_rows(text, separator)))
    except csv.Error as error:
        raise UnreadableDocument(
            f"the document is no table of values ({error}); is a quotation mark missing?"
        ) from None
    return out.finish("")


def _rows(text: str, separator: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator)


def _fits(text: str, separator: str) -> tuple[int, int]:
    """Measures how well the first rows agree on a number of columns, and that number."""
    try:
        widths = Counter(len(row) for row in islice(_rows(text, separator), _LOOKED_AT) if row)
    except csv.Error:
        return 0, 0
    width, num_rows = max(widths.items(), key=lambda found: (found[0] > 1, found[1]), default=(0, 0))
    return (num_rows, width) if width > 1 else (0, 0)
