"""Word documents, presentations and spreadsheets, made by the libraries and by hand."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from datetime import date, datetime

import pytest
from docx import Document
from docx.oxml import OxmlElement, parse_xml
from docx.oxml.ns import nsdecls, qn
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import Workbook
from pptx import Presentation
from pptx.util import Inches

from services.ingestion.formats import xlsx
from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.parse import parse
from services.ingestion.formats.reading import ParserSettings
from shared.documents import SourceDocument
from shared.errors import UnreadableDocument

OLE = bytes.fromhex("d0cf11e0a1b11ae1") + b"rest"


def read(name: str, content: bytes, table_chars: int = 1024) -> ParsedDocument:
    return parse(SourceDocument(name, content), ParserSettings(table_chars=table_chars))


def saved(made: object) -> bytes:
    out = io.BytesIO()
    made.save(out)  # type: ignore[attr-defined]
    return out.getvalue()


def repacked(content: bytes, parts: Mapping[str, bytes]) -> bytes:
    """The package with these parts instead of its own."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in dict.fromkeys([*old.namelist(), *parts]):
            new.writestr(name, parts[name] if name in parts else old.read(name))
    return out.getvalue()


def word() -> bytes:
    document = Document()
    document.add_heading("Lease", 0)
    document.add_heading("Rent", 1)
    document.add_paragraph("The rent is due monthly.")
    document.add_paragraph("by transfer", "List Bullet")
    document.add_paragraph("in cash", "List Bullet")
    document.add_paragraph("sign", "List Number")
    document.add_paragraph("pay", "List Number")
    table = document.add_table(0, 2)
    for row in (("month", "sum"), ("May", "100|5"), ("", ""), ("June", "200")):
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text
    document.add_heading("Notice", 2)
    document.add_paragraph("Three months.")
    return saved(document)


def test_a_word_document_keeps_headings_lists_and_tables_in_their_order() -> None:
    parsed = read("a.docx", word())
    assert parsed.text == (
        "# Lease\n\n# Rent\n\nThe rent is due monthly.\n\n- by transfer\n- in cash\n1. sign\n2. pay\n\n"
        "| month | sum |\n| --- | --- |\n| May | 100\\|5 |\n| June | 200 |\n\n## Notice\n\nThree months."
    )
    assert [(h.level, h.title) for h in parsed.headings] == [(1, "Lease"), (1, "Rent"), (2, "Notice")]
    assert [parsed.text[h.start :].split("\n")[0] for h in parsed.headings] == [
        "# Lease",
        "# Rent",
        "## Notice",
    ]
    assert (parsed.title, parsed.markdown) == ("Lease", True)


def test_words_in_insertions_controls_and_text_boxes_are_read_and_deleted_ones_are_not() -> None:
    document = Document()
    for inner in (
        "<w:ins><w:r><w:t>inserted</w:t></w:r></w:ins><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>",
        "<w:sdt><w:sdtContent><w:r><w:t>controlled</w:t></w:r></w:sdtContent></w:sdt>",
        "<w:r><w:pict><w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent></w:pict></w:r>",
        '<w:hyperlink><w:r><w:t xml:space="preserve">linked </w:t><w:br/><w:t>on</w:t></w:r></w:hyperlink>',
    ):
        document.element.body.append(parse_xml(f"<w:p {nsdecls('w')}>{inner}</w:p>"))
    block = "<w:sdtContent><w:p><w:r><w:t>a whole block</w:t></w:r></w:p></w:sdtContent>"
    document.element.body.append(parse_xml(f"<w:sdt {nsdecls('w')}>{block}</w:sdt>"))
    text = read("a.docx", saved(document)).text
    assert text == "inserted\n\ncontrolled\n\nboxed\n\nlinked\non\n\na whole block"


def test_a_style_that_is_based_on_a_heading_is_one_and_styles_in_a_circle_end() -> None:
    document = Document()
    mine = document.styles.add_style("Chapter", 1)
    mine.base_style = document.styles["Heading 2"]
    for name, other in (("Round", "About"), ("About", "Round")):
        document.styles.add_style(name, 1) if name not in document.styles else None
        document.styles.add_style(other, 1) if other not in document.styles else None
        document.styles[name].base_style = document.styles[other]
    document.add_paragraph("One", "Chapter")
    document.add_paragraph("text", "Round")
    assert read("a.docx", saved(document)).text == "## One\n\ntext"


def test_lists_are_counted_at_every_depth() -> None:
    document = Document()
    for text, depth in (("a", 0), ("b", 0), ("inner", 1), ("c", 0), ("inner again", 1)):
        numbering = OxmlElement("w:numPr")
        for name, value in (("w:ilvl", depth), ("w:numId", 1)):
            child = OxmlElement(name)
            child.set(qn("w:val"), str(value))
            numbering.append(child)
        document.add_paragraph(text)._p.get_or_add_pPr().append(numbering)
    lines = read("a.docx", saved(document)).text.split("\n")
    assert [line.lstrip().partition(" ")[2] for line in lines] == ["a", "b", "inner", "c", "inner again"]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 0, 3, 0, 3]


def test_a_frame_around_text_is_no_table() -> None:
    document = Document()
    document.add_table(1, 1).cell(0, 0).text = "framed"
    assert read("a.docx", saved(document)).text == "framed"


def test_slides_have_titles_lists_tables_and_notes() -> None:
    deck = Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Plan"
    frame = slide.placeholders[1].text_frame
    frame.text = "first"
    deeper = frame.add_paragraph()
    deeper.text, deeper.level = "second", 1
    slide.notes_slide.notes_text_frame.text = "Speak slowly."
    untitled = deck.slides.add_slide(deck.slide_layouts[6])
    table = untitled.shapes.add_table(2, 2, Inches(1), Inches(1), Inches(3), Inches(1)).table
    for i, text in enumerate(("year", "sales", "2026", "7")):
        table.cell(i // 2, i % 2).text = text
    group = untitled.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.text = "in a group"
    deck.slides.add_slide(deck.slide_layouts[6])
    parsed = read("a.pptx", saved(deck))
    assert parsed.text == (
        "## Plan\n\n- first\n   - second\n\n### Notes\n\nSpeak slowly.\n\n"
        "## Slide 2\n\n| year | sales |\n| --- | --- |\n| 2026 | 7 |\n\nin a group"
    )
    assert [(h.level, h.title) for h in parsed.headings] == [(2, "Plan"), (3, "Notes"), (2, "Slide 2")]
    assert [parsed.text[h.start :].split("\n")[0] for h in parsed.headings][1] == "### Notes"
    assert (parsed.title, parsed.warnings) == ("Plan", ("no text on slides 3",))


def spreadsheet() -> Workbook:
    book = Workbook()
    sheet = book.active
    sheet.title = "Prices"
    for row in (["what", "price", "since"], ["pen", 0.1 + 0.2, date(2026, 5, 1)], [], ["ink", 7, True]):
        sheet.append(row)
    other = book.create_sheet("Notes")
    other["C3"] = "only\nthis"
    book.create_sheet("Nothing")
    book.properties.title = "Price list"
    return book


def test_sheets_become_tables_under_their_names() -> None:
    parsed = read("a.xlsx", saved(spreadsheet()))
    assert parsed.text == (
        "## Prices\n\n| what | price | since |\n| --- | --- | --- |\n| pen | 0.3 | 2026-05-01 |\n"
        "| ink | 7 | TRUE |\n\n## Notes\n\n| only this |\n| --- |"
    )
    assert parsed.title == "Price list"


def test_times_are_shown_as_people_write_them() -> None:
    book = Workbook()
    book.active.append([datetime(2026, 5, 1, 12, 30), 3.0, 1e20])
    assert "| 2026-05-01 12:30:00 | 3 | 1e+20 |" in read("a.xlsx", saved(book)).text


def test_formulas_that_were_never_computed_are_a_warning() -> None:
    workbook = spreadsheet()
    for row in range(1, 31):
        workbook.worksheets[0].cell(row, 9).value = f"=A{row}&B{row}"
    assert read("a.xlsx", saved(workbook)).warnings == (
        "30 formulas without a value: open it in a spreadsheet program and save it",
    )


@pytest.mark.parametrize(
    ("cell", "counts"),
    [
        (b'<c r="A1"><f>1+1</f><v>2</v></c>', False),
        (b'<c r="A1" t="str"><f>""</f><v></v></c>', False),
        (b'<c r="A1"><v></v></c>', False),
        (b'<c r="A1" t="inlineStr"><is><t>&lt;f&gt;&lt;/f&gt;</t></is></c>', False),
        (b'<c r="A1"><f t="shared" si="0"/></c>', True),
        (b'<c r="A1" s="1">\n<f>1+1</f>\n<v />\n</c>', True),
    ],
)
def test_a_formula_has_a_value_if_the_file_says_one(cell: bytes, counts: bool) -> None:
    namespace = b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    row = b'<row r="1"><c r="B1"><v>7</v></c>%s</row>' % cell
    part = b'<worksheet xmlns="%s"><sheetData>%s</sheetData></worksheet>' % (namespace, row)
    content = repacked(saved(spreadsheet()), {"xl/worksheets/sheet1.xml": part})
    assert bool(read("a.xlsx", content).warnings) is counts


def test_formulas_are_counted_wherever_a_part_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "_PIECE_BYTES", 7)
    workbook = Workbook()
    for row in range(1, 21):
        workbook.worksheets[0].cell(row, 1).value = f"={row}+{row}"
    workbook.worksheets[0].cell(1, 2).value = "words"
    assert read("a.xlsx", saved(workbook)).warnings[0].startswith("20 formulas")


def test_the_pieces_of_a_long_table_keep_its_header() -> None:
    book = Workbook()
    for row in [["name", "number"], *([f"name {i}", i] for i in range(80))]:
        book.active.append(row)
    _, *pieces = read("a.xlsx", saved(book), table_chars=200).text.split("\n\n")
    assert len(pieces) > 7
    assert all(piece.startswith("| name | number |\n| --- | --- |\n| name ") for piece in pieces)
    assert all(len(piece) <= 200 for piece in pieces)
    assert [line for piece in pieces for line in piece.split("\n")[2:]] == [
        f"| name {i} | {i} |" for i in range(80)
    ]


def test_a_header_that_is_longer_than_its_rows_is_not_repeated() -> None:
    content = ("x" * 300 + ",b\n" + "1,2\n" * 100).encode()
    assert read("a.csv", content, table_chars=200).text.count("xxx,") == 0
    assert read("a.csv", content, table_chars=200).text.count("x" * 300) == 1


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_values_are_separated_by_whatever_separates_them(separator: str) -> None:
    rows = [["name", "sum, net"], ["Öl", "1;5"], ["short"]]
    content = "\n".join(separator.join(f'"{cell}"' for cell in row) for row in rows)
    for encoding in ("utf-8-sig", "cp1252"):
        assert read("a.csv", content.encode(encoding)).text == (
            "| name | sum, net |\n| --- | --- |\n| Öl | 1;5 |\n| short |"
        )


def test_tab_separated_values_may_hold_commas() -> None:
    assert read("a.tsv", b"a,b\tc\n1,2\t3\n").text == "| a,b | c |\n| --- | --- |\n| 1,2 | 3 |"


@pytest.mark.parametrize(("first", "separator"), [("sep=;", ";"), ('"sep=^"', "^"), ("SEP=,", ",")])
def test_the_separator_that_a_spreadsheet_program_wrote_in_front_is_no_row(
    first: str, separator: str
) -> None:
    content = f"\ufeff{first}\r\nname{separator}sum\r\nOil{separator}1\r\n"
    assert read("a.csv", content.encode()).text == "| name | sum |\n| --- | --- |\n| Oil | 1 |"


def test_a_field_without_end_is_named() -> None:
    with pytest.raises(UnreadableDocument, match="quotation mark"):
        read("a.csv", b'a,b\n"' + b"x" * 200_000)


BILLION = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.docx", OLE, "older format; remove the password, or save it as .docx"),
        ("a.xlsx", OLE, "save it as .xlsx"),
        ("a.pptx", b"hello", "not a .pptx file although"),
        ("a.docx", word()[:-200], "not a .docx file"),
        ("a.docx", repacked(word(), {"word/document.xml": b"<broken"}), "Word document is damaged"),
        ("a.docx", saved(spreadsheet()), "Word document is damaged"),
        ("a.xlsx", word(), "spreadsheet is damaged"),
        ("a.docx", saved(Document()), "holds no text"),
        ("a.pptx", saved(Presentation()), "holds no text"),
        ("a.xlsx", saved(Workbook()), "holds no text"),
        ("a.docx", repacked(word(), {"word/document.xml": BILLION + b"<x>&b;</x>"}), "declares a document"),
        (
            "a.docx",
            repacked(word(), {"word/document.xml": (BILLION + b"<x>&b;</x>").decode().encode("utf-16")}),
            "declares a document",
        ),
        ("a.xlsx", repacked(saved(spreadsheet()), {"xl/x.bin": BILLION + b"<x/>"}), "xl/x.bin in the doc"),
        (
            "a.docx",
            repacked(word(), {"word/media/a.bin": bytes(257 << 20)}),
            "unpacks to more than 268435456",
        ),
        ("a.docx", repacked(word(), {"word/x.xml": b"<a/>" * 4_000_001}), "more than 4000000 tags"),
        ("a.docx", repacked(word(), {f"x{i}": b"" for i in range(10_001)}), "more than 10000 parts"),
    ],
)
def test_what_cannot_be_read_says_why(name: str, content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument, match=reason):
        read(name, content)


def test_a_sheet_that_claims_to_go_on_for_ever_ends() -> None:
    sheet = (
        b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
        b'<row r="9999999999"><c r="A9999999999"><v>1</v></c></row></sheetData></worksheet>'
    )
    content = repacked(saved(spreadsheet()), {"xl/worksheets/sheet1.xml": sheet})
    with pytest.raises(UnreadableDocument, match=r"more than 4000000 cells|damaged"):
        read("a.xlsx", content)


def test_packed_parts_that_are_encrypted_or_packed_otherwise_are_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as package:
        package.writestr("word/document.xml", "<a/>")
    with pytest.raises(UnreadableDocument, match="packed in a way"):
        read("a.docx", out.getvalue())
    content = bytearray(word())
    for sign, flags in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        at = content.index(sign)
        content[at + flags] |= 1
    with pytest.raises(UnreadableDocument, match="password-protected"):
        read("a.docx", bytes(content))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**9), st.binary(min_size=1, max_size=4), st.sampled_from(["docx", "pptx", "xlsx"]))
def test_no_damage_raises_anything_else(position: int, written: bytes, kind: str) -> None:
    content = bytearray(GOOD[kind])
    at = position % len(content)
    content[at : at + len(written)] = written
    try:
        parsed = read(f"a.{kind}", bytes(content))
    except UnreadableDocument:
        return
    parsed.text.encode()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**9), st.text("<>/w:val0-9 \"='", min_size=1, max_size=6))
def test_no_damaged_xml_raises_anything_else(position: int, written: str) -> None:
    with zipfile.ZipFile(io.BytesIO(GOOD["docx"])) as package:
        part = package.read("word/document.xml")
    at = position % len(part)
    damaged = part[:at] + written.encode() + part[at + len(written) :]
    try:
        read("a.docx", repacked(GOOD["docx"], {"word/document.xml": damaged}))
    except UnreadableDocument:
        return


def _deck() -> bytes:
    deck = Presentation()
    deck.slides.add_slide(deck.slide_layouts[0]).shapes.title.text = "Plan"
    return saved(deck)


GOOD = {"docx": word(), "pptx": _deck(), "xlsx": saved(spreadsheet())}
