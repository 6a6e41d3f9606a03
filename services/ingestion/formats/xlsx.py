"""Spreadsheets (.xlsx): a section and a table per sheet, with the values that formulas had when the file was
saved. A program that writes spreadsheets without computing them saves none: that is a warning."""

from __future__ import annotations

import io
import re
import zipfile
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
_SHEET_PART = re.compile(r"xl/worksheets/[^/]+\.xml")
_WITHOUT_VALUE = re.compile(  # an empty text is a value
    rb'<c\b(?![^<>]*\bt="str")[^<>]*>\s{0,9}<f\b[^<>]*(?:/>|>[^<]*</f>)\s{0,9}'
    rb"(?:<v\s{0,9}/>|<v>\s{0,9}</v>)?\s{0,9}</c>"
)
_LONGEST_CELL = 32_768  # bytes of one that holds a formula; a formula has at most 8,192 characters
_PIECE_BYTES = 1 << 20


def parse_xlsx(content: bytes, reading: DocumentReading) -> ParsedDocument:
    with opening(content, "spreadsheet", ".xlsx", _MAX_TAGS, reading) as file:
        workbook = load_workbook(file, read_only=True, data_only=True, keep_links=False)
        out = MarkdownWriter(reading.settings.table_chars)
        for sheet in workbook.worksheets:
            if rows := list(_rows(sheet, reading)):
                out.heading(2, sheet.title)
                out.table(rows)
        unsaved = _num_without_value(content)
        warnings = [f"{unsaved} formulas without a value: open it in a spreadsheet program and save it"]
        return out.finish(workbook.properties.title or "", warnings if unsaved else [])


def _rows(sheet: Any, reading: DocumentReading) -> Iterator[list[str]]:
    """Rows with anything in them. Counts cells that are not there as well: a sheet may claim that it goes on
    for ever."""
    for row in sheet.iter_rows(values_only=True):
        reading.num_cells += len(row) or 1
        if reading.num_cells > _MAX_CELLS:
            raise UnreadableDocument(f"the document's sheets have more than {_MAX_CELLS} cells; split it")
        if any(value is not None for value in row):
            yield [_shown(value) for value in row]


def _num_without_value(content: bytes) -> int:
    """Counts formulas of which the package holds no value."""
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        return sum(_count_in(package, name) for name in package.namelist() if _SHEET_PART.fullmatch(name))


def _count_in(package: zipfile.ZipFile, name: str) -> int:
    num, rest = 0, b""
    with package.open(name) as part:
        while piece := part.read(_PIECE_BYTES):
            rest += piece
            end = max(len(rest) - _LONGEST_CELL, 0)
            for found in _WITHOUT_VALUE.finditer(rest):
                num, end = num + 1, max(end, found.end())
            rest = rest[end:]
    return num


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
