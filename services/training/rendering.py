"""A document as a file: Markdown, plain text, HTML or PDF (with fpdf2, needed by nothing but this)."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from services.training.corpus import CorpusDocument, Section


def _prose(section: Section) -> str:
    return " ".join(sentence.text for sentence in section.sentences)


def to_markdown(document: CorpusDocument) -> bytes:
    return to_text(document, "# ", "## ")


def to_text(document: CorpusDocument, title_mark: str = "", heading_mark: str = "") -> bytes:
    parts = [title_mark + document.title]
    for section in document.sections:
        parts += [heading_mark + section.heading, _prose(section)]
    return ("\n\n".join(parts) + "\n").encode()


def to_html(document: CorpusDocument) -> bytes:
    title = html.escape(document.title)
    body = [f"<h1>{title}</h1>"]
    for section in document.sections:
        body += [f"<h2>{html.escape(section.heading)}</h2>", f"<p>{html.escape(_prose(section))}</p>"]
    head = f'<head>\n<meta charset="utf-8">\n<title>{title}</title>\n</head>'
    return f'<!doctype html>\n<html lang="en">\n{head}\n<body>\n{chr(10).join(body)}\n</body>\n</html>\n'.encode()  # noqa: E501


def to_pdf(document: CorpusDocument) -> bytes:
    from fpdf import FPDF

    pdf = FPDF(format=(148, 210))
    pdf.set_creation_date(datetime(2026, 1, 1, tzinfo=UTC))
    pdf.set_title(document.title)
    pdf.add_page()
    pdf.set_font("Times", "B", 18)
    pdf.multi_cell(0, 10, document.title, new_x="LMARGIN", new_y="NEXT")
    for section in document.sections:
        pdf.ln(4)
        pdf.set_font("Times", "B", 13)
        pdf.multi_cell(0, 8, section.heading, new_x="LMARGIN", new_y="NEXT")
        pdf.set_font("Times", "", 11)
        pdf.multi_cell(0, 6, _prose(section), align="L", new_x="LMARGIN", new_y="NEXT")
    return bytes(pdf.output())


RENDERERS: Mapping[str, Callable[[CorpusDocument], bytes]] = {
    "md": to_markdown,
    "txt": to_text,
    "html": to_html,
    "pdf": to_pdf,
}
