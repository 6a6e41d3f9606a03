"""Makes documents of every format, and damages them: bytes changed, cut, doubled, and what parsers stumble
over put in between."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Sequence
from email.message import EmailMessage
from functools import cache

from docx import Document
from openpyxl import Workbook
from pptx import Presentation

from shared.documents import SourceDocument
from tests.unit.ingestion.test_formats import make_pdf

_STUMBLING_BLOCKS = (
    *(
        b"<a ",
        b"<!--",
        b"<![CDATA[",
        b"<table><tr><td>",
        b"<div>",
        b"</p>",
        b"&#x110000;",
        b"&amp",
        b"<meta ",
    ),
    *(
        b"<meta ",
        b"[",
        b"![",
        b"*a_",
        b"> ",
        b"- ",
        b"```",
        b"# ",
        b"---\n",
        b"a: &a [*a, *a]\n",
        b"<<: *a\n",
    ),
    *(b"=?utf-8?q?=00?=", b"Content-Type: text/html; charset=", b"\r\n\r\n", b";a=b", b"<(", b'"', b","),
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xf0\x9f", b"\xed\xa0\x80", b"<w:p>", b"1 0 obj<<", b"endobj"),
)
_CHARSETS = ("utf-8", "utf-16", "latin-1", "cp037", "punycode", "unicode_escape", "zip", "x" * 100, "\x00")


@cache
def corpus() -> dict[str, list[bytes]]:
    """Sound documents by the endings of their names."""
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["Date"] = "Sums", "a@b.example", "Mon, 23 Nov 2026 07:00:00 +0000"
    mail.set_content("One and one.")
    mail.add_alternative("<h1>Sums</h1><p>One <b>and</b> one.", subtype="html")
    mail.add_attachment("a,b\n1,2\n", subtype="csv", filename="a.csv")
    page = (
        b"<html><head><title>T</title><meta charset=utf-8></head><body><h1>One</h1><p>text<ul><li>x<li>y</ul>"
        b"<table><tr><th>a<td>b</table><pre> a\n  b</pre><!-- c --><script>d</script></body></html>"
    )
    return {
        ".txt": [b"Title\n\nSome text.\n\nMore\n====\n\ntext", "größer".encode("utf-16"), b"\xe4\xf6 text"],
        ".md": [b"---\ntitle: T\ndate: 2026-13-45\n---\n# One\n\ntext [a](b) *c*\n\n## Two\n\n- x\n- y\n"],
        ".html": [page],
        ".csv": [b'a,b\n1,"2\n3"\n'],
        ".tsv": [b"a\tb\n1\t2\n"],
        ".eml": [mail.as_bytes()],
        ".pdf": [make_pdf("First page", "Second", title="Report")],
        ".docx": [_docx()],
        ".xlsx": [_xlsx()],
        ".pptx": [_pptx()],
    }


class Files:
    def __init__(self, rng: random.Random) -> None:
        self._rng, self._corpus = rng, corpus()

    def document(self) -> SourceDocument:
        """A damaged one, sometimes under a wrong name or charset."""
        ending = self._rng.choice(list(self._corpus))
        content = self._rng.choice(self._corpus[ending])
        if content.startswith(b"PK") and self._rng.random() < 0.7:
            content = self._repacked(content)
        elif self._rng.random() < 0.9:
            content = self.damaged(content)
        if self._rng.random() < 0.05:
            ending = self._rng.choice(list(self._corpus))
        media_type = ""
        if self._rng.random() < 0.2 and ending in (".txt", ".md", ".html"):
            kind = {".txt": "plain", ".md": "markdown", ".html": "html"}[ending]
            media_type = f"text/{kind}; charset={self._rng.choice(_CHARSETS)}"
        return SourceDocument(f"fuzzed{ending}", content, media_type)

    def damaged(self, content: bytes) -> bytes:
        for _ in range(self._rng.randrange(1, 5)):
            at = self._rng.randrange(len(content) + 1)
            match self._rng.randrange(5):
                case 0:
                    content = content[:at] + self._rng.randbytes(3) + content[at + 3 :]
                case 1:
                    content = content[:at]
                case 2:
                    content = content[:at] + content[at // 2 : at] + content[at:]
                case 3:
                    block = self._rng.choice(_STUMBLING_BLOCKS)
                    content = content[:at] + block * self._rng.choice((1, 3, 2000)) + content[at:]
                case 4:
                    content = content[:at] + content[at + self._rng.randrange(40) :]
        return content

    def _repacked(self, content: bytes) -> bytes:
        """A package with one part damaged; the package itself is sound."""
        with zipfile.ZipFile(io.BytesIO(content)) as package:
            parts = {name: package.read(name) for name in package.namelist()}
        chosen = self._rng.choice(list(parts))
        parts[chosen] = self.damaged(parts[chosen])
        return _packed(list(parts.items()))


def _packed(parts: Sequence[tuple[str, bytes]]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts:
            package.writestr(name, content)
    return packed.getvalue()


def _docx() -> bytes:
    document = Document()
    document.add_heading("One", 1)
    document.add_paragraph("text")
    document.add_table(2, 2).cell(0, 0).text = "a"
    return _saved(document)


def _xlsx() -> bytes:
    book = Workbook()
    book.active.append(["a", "b"])
    book.active.append([1, "=A1"])
    return _saved(book)


def _pptx() -> bytes:
    slides = Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text = "One"
    return _saved(slides)


def _saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()
