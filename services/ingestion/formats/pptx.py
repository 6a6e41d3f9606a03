"""Presentations (.pptx): a section per slide, with lists, tables and the speaker's notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pptx import Presentation
from pptx.enum.shapes import PP_PLACEHOLDER
from pptx.oxml.ns import qn
from pptx.shapes.base import BaseShape
from pptx.shapes.group import GroupShape
from pptx.slide import Slide
from pptx.text.text import TextFrame

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.office import opening
from services.ingestion.formats.reading import DocumentReading
from services.ingestion.formats.writer import MarkdownWriter, ranges, squeeze

_MAX_TAGS = 4_000_000
_MADE_UP_TITLES = ("powerpoint presentation", "presentation")  # what programs write where nobody did
_FURNITURE = (PP_PLACEHOLDER.SLIDE_NUMBER, PP_PLACEHOLDER.DATE, PP_PLACEHOLDER.FOOTER, PP_PLACEHOLDER.HEADER)
_LISTS = (PP_PLACEHOLDER.BODY, PP_PLACEHOLDER.OBJECT)


def parse_pptx(content: bytes, reading: DocumentReading) -> ParsedDocument:
    with opening(content, "presentation", ".pptx", _MAX_TAGS, reading) as file:
        presentation = Presentation(file)
        out = MarkdownWriter(reading.settings.table_chars)
        silent = []
        for number, slide in enumerate(presentation.slides, 1):
            reading.check()
            title = slide.shapes.title
            heading = squeeze(title.text_frame.text) if title is not None else ""
            body = _body(slide, reading)
            if heading or body.text:
                out.heading(2, heading or f"Slide {number}")
                out.document(body, below=0)
            else:
                silent.append(number)
        title_of_all = squeeze(presentation.core_properties.title)
        return out.finish(
            "" if title_of_all.lower() in _MADE_UP_TITLES else title_of_all,
            [f"no text on slides {ranges(silent)}"] if silent else [],
        )


def _body(slide: Slide, reading: DocumentReading) -> ParsedDocument:
    """All but the title."""
    out = MarkdownWriter(reading.settings.table_chars)
    title = slide.shapes.title
    for shape in _shapes(slide.shapes):
        if title is None or shape.shape_id != title.shape_id:
            _write_shape(shape, out)
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    if notes is not None and notes.text.strip():
        out.heading(3, "Notes")
        _write_text(notes, False, out)
    return out.finish("")


def _shapes(shapes: Any) -> Iterator[BaseShape]:
    for shape in shapes:
        if isinstance(shape, GroupShape):
            yield from _shapes(shape.shapes)
        else:
            yield shape


def _write_shape(shape: Any, out: MarkdownWriter) -> None:
    kind = shape.placeholder_format.type if shape.is_placeholder else None
    if kind in _FURNITURE:
        return
    if shape.has_text_frame:
        _write_text(shape.text_frame, kind in _LISTS, out)
    elif shape.has_table:
        out.table([[cell.text_frame.text for cell in row.cells] for row in shape.table.rows])


def _write_text(frame: TextFrame, is_list: bool, out: MarkdownWriter) -> None:
    """``is_list``: the layout puts bullets in front of paragraphs, unless one says otherwise."""
    paragraphs = [p for p in frame.paragraphs if p.text.strip()]
    for paragraph in paragraphs:
        text = paragraph.text.replace("\v", "\n")
        properties = paragraph._p.pPr
        says = {child.tag for child in properties} if properties is not None else set()
        bullet = bool(says & {qn("a:buChar"), qn("a:buAutoNum"), qn("a:buBlip")})
        if bullet or (is_list and len(paragraphs) > 1 and qn("a:buNone") not in says):
            out.item(text, paragraph.level)
        else:
            out.paragraph(text)
