"""Word documents (.docx): headings, lists, tables, text boxes and notes as Markdown.

Walks the XML itself, because python-docx passes over what stands in content controls, insertions and text
boxes; text that was deleted with changes being tracked is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from docx import Document
from docx.document import Document as WordDocument
from docx.opc.constants import RELATIONSHIP_TYPE as RELATION
from docx.oxml import parse_xml
from docx.oxml.ns import qn

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.office import opening
from services.ingestion.formats.reading import DocumentReading
from services.ingestion.formats.writer import MarkdownWriter, squeeze

_MAX_TAGS = 4_000_000
_MAX_STYLES_ABOVE = 20
_MAX_SPAN = 64
_DEEPEST_ITEM = 8
_BODY_TEXT = 9  # as an outline level
_HEADING = re.compile(r"heading ([1-9])")
_P, _TABLE, _ROW, _CELL, _BOX = map(qn, ("w:p", "w:tbl", "w:tr", "w:tc", "w:txbxContent"))
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_UNSEEN = {
    *map(qn, ("w:pPr", "w:rPr", "w:tblPr", "w:trPr", "w:tcPr", "w:sectPr", "w:sdtPr", "w:del", "w:moveFrom")),
    _FALLBACK,
}
_TEXT = {qn("w:t"), _MATH}
_SIGNS = {qn("w:tab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
_NOTES = {qn("w:footnoteReference"): "", qn("w:endnoteReference"): "e"}


def parse_docx(content: bytes, reading: DocumentReading) -> ParsedDocument:
    with opening(content, "Word document", ".docx", _MAX_TAGS, reading) as file:
        document = Document(file)
        out = MarkdownWriter(reading.settings.table_chars)
        walk = _Walk(out, _Styles(document), _list_formats(document))
        walk.blocks(document.element.body)
        for relation, mark in ((RELATION.FOOTNOTES, ""), (RELATION.ENDNOTES, "e")):
            _write_notes(document, relation, mark, out)
        return out.finish(_title(document) or walk.title)


@dataclass(frozen=True, slots=True)
class _Style:
    name: str
    above: str
    properties: Any


class _Styles:
    """Knows what a paragraph's style, and those that it is based on, say of it."""

    def __init__(self, document: WordDocument) -> None:
        self._styles = {
            style.get(qn("w:styleId"), ""): _Style(
                _value(style, "w:name").lower(), _value(style, "w:basedOn"), style.find(qn("w:pPr"))
            )
            for style in document.styles.element.iter(qn("w:style"))
        }

    def chain(self, style_id: str) -> Iterator[_Style]:
        for _ in range(_MAX_STYLES_ABOVE):
            style = self._styles.get(style_id)
            if style is None:
                return
            yield style
            style_id = style.above


@dataclass(slots=True)
class _Walk:
    """``counts``: of each list, how many elements there were at each depth. ``title``: the first paragraph
    that is styled as one."""

    out: MarkdownWriter
    styles: _Styles
    list_formats: dict[tuple[str, int], str]
    counts: dict[str, list[int]] = field(default_factory=dict)
    title: str = ""

    def blocks(self, parent: Any) -> None:
        for element in parent:
            if element.tag == _P:
                self._paragraph(element)
            elif element.tag == _TABLE:
                self._table(element)
            elif element.tag not in _UNSEEN:
                self.blocks(element)

    def _paragraph(self, paragraph: Any) -> None:
        text = "".join(_text(paragraph))
        properties = paragraph.find(qn("w:pPr"))
        styles = list(self.styles.chain(_value(properties, "w:pStyle")))
        above = [properties, *(style.properties for style in styles)]
        is_title = bool(styles) and styles[0].name == "title"
        level = 1 if is_title else _heading_level(above, styles)
        if is_title:
            self.title = self.title or squeeze(text)
        if level:
            self.out.heading(level, text)
        elif item := _list_of(above):
            if text.strip():
                self._item(text, *item)
        else:
            self.out.paragraph(text)
        for box in _found(paragraph, _BOX):
            self.blocks(box)

    def _item(self, text: str, list_id: str, depth: int) -> None:
        counts = self.counts.setdefault(list_id, [])
        del counts[depth + 1 :]
        counts += [0] * (depth + 1 - len(counts))
        counts[depth] += 1
        bullet = self.list_formats.get((list_id, depth), "bullet") in ("bullet", "none")
        self.out.item(text, depth, "-" if bullet else f"{counts[depth]}.")

    def _table(self, table: Any) -> None:
        rows = [list(_found(row, _CELL)) for row in _found(table, _ROW)]
        if all(len(row) <= 1 for row in rows):  # a frame around text, not a table
            for cell in (cell for row in rows for cell in row):
                self.blocks(cell)
            return
        self.out.table([[text for cell in row for text in _cells(cell)] for row in rows])


def _heading_level(above: Sequence[Any], styles: Sequence[_Style]) -> int:
    """0: no heading."""
    for properties in above:
        if outline := _value(properties, "w:outlineLvl"):
            return 0 if int(outline) >= _BODY_TEXT else int(outline) + 1
    found = next(filter(None, (_HEADING.fullmatch(style.name) for style in styles)), None)
    return int(found[1]) if found else 0


def _list_of(above: Sequence[Any]) -> tuple[str, int] | None:
    """The list that a paragraph belongs to, and how deep."""
    for properties in above:
        numbering = None if properties is None else properties.find(qn("w:numPr"))
        if numbering is not None and (list_id := _value(numbering, "w:numId")):
            depth = int(_value(numbering, "w:ilvl") or 0)
            return None if list_id == "0" else (list_id, min(max(depth, 0), _DEEPEST_ITEM))
    return None


def _list_formats(document: WordDocument) -> dict[tuple[str, int], str]:
    """Finds how the elements of each list are marked, at each depth."""
    try:
        root: Any = document.part.part_related_by(RELATION.NUMBERING)
    except KeyError:
        return {}
    element = root.element
    levels = {
        abstract.get(qn("w:abstractNumId")): {
            int(level.get(qn("w:ilvl"), 0)): _value(level, "w:numFmt")
            for level in abstract.iterfind(qn("w:lvl"))
        }
        for abstract in element.iterfind(qn("w:abstractNum"))
    }
    return {
        (number.get(qn("w:numId")), depth): mark
        for number in element.iterfind(qn("w:num"))
        for depth, mark in levels.get(_value(number, "w:abstractNumId"), {}).items()
    }


def _text(element: Any) -> Iterator[str]:
    """Returns the text that is read in it; text boxes stand for themselves."""
    for child in element:
        if child.tag in _TEXT:
            yield child.text or ""
        elif child.tag in _SIGNS:
            yield _SIGNS[child.tag]
        elif child.tag in _NOTES:
            yield f"[^{_NOTES[child.tag]}{child.get(qn('w:id'))}]"
        elif child.tag not in _UNSEEN and child.tag != _BOX:
            yield from _text(child)
            if child.tag == _P:
                yield "\n"


def _cells(cell: Any) -> list[str]:
    """The text of a cell, and empty ones where it covers several columns."""
    span = _value(cell.find(qn("w:tcPr")), "w:gridSpan") or "1"
    return ["".join(_text(cell)), *[""] * (min(int(span), _MAX_SPAN) - 1)]


def _found(parent: Any, tag: str) -> Iterator[Any]:
    """The outermost elements of this kind."""
    for child in parent:
        if child.tag == tag:
            yield child
        elif child.tag not in _UNSEEN:
            yield from _found(child, tag)


def _write_notes(document: WordDocument, relation: str, mark: str, out: MarkdownWriter) -> None:
    try:
        part = document.part.part_related_by(relation)
    except KeyError:
        return
    for note in parse_xml(part.blob):
        text = squeeze("".join(_text(note)))
        if text and note.get(qn("w:type"), "normal") == "normal":
            out.paragraph(f"[^{mark}{note.get(qn('w:id'))}]: {text}")


def _title(document: WordDocument) -> str:
    """Of the properties, if there are any: the library would make some up."""
    package = document.part.package
    if package is None or not any(r.reltype == RELATION.CORE_PROPERTIES for r in package.rels.values()):
        return ""
    return squeeze(document.core_properties.title)


def _value(element: Any, name: str) -> str:
    """``w:val`` of a child; empty where there is none."""
    child = None if element is None else element.find(qn(name))
    return "" if child is None else child.get(qn("w:val"), "")
