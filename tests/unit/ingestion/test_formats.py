import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfReader, PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.parse import parse
from shared.documents import SourceDocument
from shared.errors import UnreadableDocument


def _parse(name: str, content: bytes, media_type: str = "") -> ParsedDocument:
    return parse(SourceDocument(name, content, media_type))


def make_pdf(*pages: str, title: str = "", password: str = "") -> bytes:
    """A PDF with a text layer, one line per line of each page."""
    writer = PdfWriter()
    for text in pages:
        page = writer.add_blank_page(300, 300)
        font = DictionaryObject(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
        stream = DecodedStreamObject()
        lines = " T* ".join(f"({line}) Tj" for line in text.split("\n"))
        stream.set_data(f"BT /F1 12 Tf 14 TL 20 250 Td {lines} ET".encode("latin-1"))
        page[NameObject("/Contents")] = writer._add_object(stream)
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_plain_text_keeps_its_words_and_gets_its_name_as_title() -> None:
    assert _parse("notes/day_one.txt", b"first\r\nsecond") == ParsedDocument("first\nsecond", "day one")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_is_recognised(encoding: str) -> None:
    assert _parse("a.txt", "Žluťoučký kůň – 日本 😀".encode(encoding)).text == "Žluťoučký kůň – 日本 😀"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "naïve façade"),
        ("cp1251", "Привет, как дела? Это обычный русский текст."),
        ("koi8_r", "Привет, как дела? Это обычный русский текст."),
        ("cp932", "これは日本語のテキストです。東京に行きました。"),
    ],
)
def test_older_encodings_are_guessed(encoding: str, text: str) -> None:
    assert _parse("a.txt", text.encode(encoding)).text == text


def test_a_charset_in_the_media_type_is_obeyed() -> None:
    assert _parse("a", "ķ".encode("cp775"), "text/plain; charset=cp775").text == "ķ"
    with pytest.raises(UnreadableDocument, match="not utf-8 text"):
        _parse("a", b"\xff\xfe\xfd", 'text/plain; charset="utf-8"')
    with pytest.raises(UnreadableDocument, match="not undefined text"):
        _parse("a", b"text", "text/plain; charset=undefined")


def test_markdown_stays_as_it_is_and_its_headings_are_known() -> None:
    text = "# The *one* `x`\n\nbody\n\nTwo\n---\n\n```\n# no heading\n```\n\n- # in a list\n"
    parsed = _parse("a.md", text.encode())
    assert parsed.text == text
    assert [(h.level, h.title) for h in parsed.headings] == [(1, "The one x"), (2, "Two")]
    assert [text[h.start :].split("\n")[0] for h in parsed.headings] == ["# The *one* `x`", "Two"]
    assert parsed.title == "The one x"


def test_front_matter_gives_the_title_and_is_no_text() -> None:
    parsed = _parse("a.md", b"---\ntitle: Named\n---\n# Heading\n")
    assert (parsed.title, parsed.text) == ("Named", "# Heading\n")


@pytest.mark.parametrize(
    "value", ["date: 2024-13-45", "n: 0x", "title: &a [*a]", "? [1, 2]\n: x", "b: !!int x"]
)
def test_of_front_matter_nothing_but_the_title_is_read(value: str) -> None:
    parsed = _parse("a.md", f"---\n{value}\nname: x\n---\n# Heading\n".encode())
    assert (parsed.title, parsed.text.strip()) == ("Heading", "# Heading")


def test_front_matter_that_would_grow_without_end_is_read_at_once() -> None:
    lines = ["a: &a {title: deep}"]
    for above, name in pairwise("abcdefghijklmnop"):
        lines.append(f"{name}: &{name} {{<<: [{', '.join([f'*{above}'] * 9)}]}}")
    parsed = _parse("a.md", "\n".join(["---", *lines, "title: Named", "---", "text"]).encode())
    assert (parsed.title, parsed.text) == ("Named", "text")


def test_a_title_has_no_control_characters() -> None:
    assert _parse("a.md", b'---\ntitle: "a\\0b\\nc"\n---\ntext').title == "a b c"


@pytest.mark.parametrize(
    "charset", ["unicode_escape", "raw_unicode_escape", "utf-7", "zip", "idna", "punycode", "x" * 200]
)
def test_a_charset_that_makes_no_text_is_named(charset: str) -> None:
    content = b"\\ud800 +2AA- \xff"
    with pytest.raises(UnreadableDocument, match=f"the bytes are not {charset[:40]} text"):
        parse(SourceDocument("a", content, f"text/plain; charset={charset}"))


class _Unforeseen(bytes):
    def decode(self, *_: object) -> str:
        raise IndexError("/srv/secret")


def test_what_a_parser_does_not_cope_with_is_the_documents_fault() -> None:
    with pytest.raises(UnreadableDocument) as refusal:
        parse(SourceDocument("a.txt", _Unforeseen(b"text")))
    assert refusal.value.detail.startswith("its parser failed over the document (IndexError)")
    assert "secret" not in refusal.value.detail


@pytest.mark.parametrize("text", ["---\njust text\n---\nmore", "---\n: : [\n---\nmore", "--- no header\n"])
def test_what_only_looks_like_front_matter_stays_text(text: str) -> None:
    assert _parse("a.md", text.encode()).text == text


def test_html_becomes_readable_text_with_headings() -> None:
    page = b"""<html><head><title>My  Page</title><style>x{}</style></head><body><nav>menu</nav>
    <h1>Top <b>one</b></h1><p>Some <i>text</i> &amp; more<br>next line</p><script>alert(1)</script><!-- hidden -->
    <ul><li>first<li>second</ul><table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2</td></tr></table>
    <pre>def f():
    return 1</pre><h2>Sub</h2><div>outer<div>inner</div>after</div></body></html>"""  # noqa: E501
    parsed = _parse("a.html", page)
    assert parsed.text == (
        "# Top one\n\nSome text & more\nnext line\n\n- first\n- second\n\nA | B\n1 | 2\n\ndef f():\n   "
        " return 1\n\n"
        "## Sub\n\nouter\n\ninner\n\nafter"
    )
    assert parsed.title == "My Page"
    assert [parsed.text[h.start :].split("\n")[0] for h in parsed.headings] == ["# Top one", "## Sub"]


def test_a_page_says_its_own_encoding() -> None:
    assert _parse("a.html", '<meta charset="iso-8859-1"><p>café</p>'.encode("latin-1")).text == "café"
    assert _parse("a.html", "<p>café</p>".encode()).text == "café"


def test_a_page_that_names_a_wrong_encoding_is_read_by_another() -> None:
    assert _parse("a.html", '<meta charset="ascii"><p>café</p>'.encode()).text == "café"
    assert _parse("a.html", '<meta charset="punycode"><p>café</p>'.encode()).text == "café"


@pytest.mark.parametrize("begun", ["<a ", "<!--", "<!", "<?", "</a ", "<![CDATA[", "<meta ", "&", "<p a='"])
def test_what_never_ends_in_a_page_is_read_in_one_pass(begun: str) -> None:
    page = b"<p>before</p>" + begun.encode() * (600_000 // len(begun))
    assert _parse("a.html", page).text.startswith("before")


def test_what_never_ends_in_markdown_is_read_in_one_pass() -> None:
    text = "# Title\n\n" + "[" * 100_000 + "\n\n" + "*a_" * 30_000
    assert _parse("a.md", text.encode()).title == "Title"


def test_a_header_longer_than_any_stays_text() -> None:
    text = f"---\ntitle: {'x' * 70_000}\n---\ntext"
    assert _parse("a.md", text.encode()).text == text


def test_markup_that_is_none_is_left_out() -> None:
    assert _parse("a.html", b"text <![1").text == "text"


def test_no_nesting_is_too_deep() -> None:
    assert _parse("a.html", b"<div>" * 20_000 + b"deep").text == "deep"


def test_pdf_pages_become_paragraphs_and_broken_words_whole() -> None:
    parsed = _parse("a.pdf", make_pdf("First page, divi-\nded word", "Second page", title="Report"))
    assert parsed == ParsedDocument("First page, divided word\n\nSecond page", "Report")


def test_a_pdf_encrypted_without_a_password_is_read() -> None:
    writer = PdfWriter(PdfReader(io.BytesIO(make_pdf("Text"))))
    writer.encrypt("", "owner", algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    assert _parse("a.pdf", out.getvalue()).text == "Text"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n\t ", "is empty"),
        ("a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary"),
        ("a.txt", bytes(range(1, 256)) * 8, "binary"),
        ("a.md", b"\0\1\2\3" * 100, "binary"),
        ("a.html", b"<script>only()</script>", "holds no text"),
        ("a.pdf", b"hello", "not a PDF"),
        ("a.pdf", b"%PDF-1.7\nrubbish", "damaged"),
        ("a.pdf", make_pdf("Some text")[:200], "damaged"),
        ("a.pdf", make_pdf(""), "no text layer"),
        ("a.pdf", make_pdf("secret", password="pw"), "password-protected"),
        ("a.odt", b"PK\3\4", r"format '\.odt' is not supported"),
        ("README", b"text", "no ending"),
    ],
)
def test_what_cannot_be_read_says_why(name: str, content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument, match=reason):
        _parse(name, content)


def test_an_unknown_media_type_is_refused_whatever_the_name_says() -> None:
    with pytest.raises(UnreadableDocument, match="application/zip"):
        _parse("a.txt", b"text", "application/zip")


@given(
    st.binary(max_size=300),
    st.sampled_from(["a.txt", "a.md", "a.html", "a.pdf", "a.csv", "a.tsv", "a.eml", "a.docx"]),
)
def test_no_bytes_raise_anything_else(content: bytes, name: str) -> None:
    try:
        parsed = _parse(name, content)
    except UnreadableDocument:
        return
    parsed.text.encode()
    assert all(0 <= h.start < len(parsed.text) for h in parsed.headings)


@given(st.text(st.sampled_from("<>/ahdivpre&;#1 \n!-[]'\""), max_size=80))
def test_no_markup_raises_anything_else(text: str) -> None:
    for name in ("a.md", "a.html"):
        try:
            _parse(name, text.encode())
        except UnreadableDocument:
            continue
