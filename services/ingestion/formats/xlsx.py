"""Spreadsheets (.xlsx): a section and a table per sheet, with the values that formulas had when the file was
saved."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time
from typing import Any

from openpyxl import load_workbook

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.office import opening
from services.ingestion.formats.reading import DocumentReading
from services.ingestion.formats.writer import MarkdownWriter
from shared.errors import UnreadableDocument

_MAX_TAGS = 40_000_000  # sheets are read as a stream, without a tree
_MAX_CELLS = 4_000_000
_DIGITS = 15  # of a number, as spreadsheets have them


def parse_xlsx(content: bytes, reading: DocumentReading) -> ParsedDocument:
    with opening(content, "spreadsheet", ".xlsx", _MAX_TAGS, reading) as file:
        workbook = load_workbook(file, read_only=True, data_only=True, keep_links=False)
        out = MarkdownWriter(reading.settings.table_chars)
        for sheet in workbook.worksheets:
            if rows := list(_rows(sheet, reading)):
                out.heading(2, sheet.title)
                out.table(rows)
        return out.finish(workbook.properties.title or "")


def _rows(sheet: Any, reading: DocumentReading) -> Iterator[list[str]]:
    """Rows with anything in them. Counts cells that are not there as well: a sheet may claim that it goes on
    for ever."""
    for row in sheet.iter_rows(values_only=True):
        reading.num_cells += len(row) or 1
        if reading.num_cells > _MAX_CELLS:
            raise UnreadableDocument(f"the document's sheets have more than {_MAX_CELLS} cells; split it")
        if any(value is not None for value in row):
            yield [_shown(value) for value in row]


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).upper()
        case float():
            return f"{value:.{_DIGITS}g}"
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case datetime():
            return value.isoformat(" ", "seconds")
    return str(value)
