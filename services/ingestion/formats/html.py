"""HTML becomes Markdown of the little kind that matters for reading: headings, list items, table rows,
paragraphs.

The parser is libxml2's, which reads every page in time that grows with its length alone. Python's own looks
for the end of a tag or comment that never ends from each of their beginnings.
"""

from __future__ import annotations

import re

from bs4 import BeautifulSoup
from bs4.dammit import EncodingDetector, UnicodeDammit
from bs4.element import NavigableString, Tag
from bs4.exceptions import ParserRejectedMarkup

from services.ingestion.formats.document import Heading, ParsedDocument
from services.ingestion.formats.plain import decode
from shared.errors import UnreadableDocument

_SKIPPED = (
    "script",
    "style",
    "noscript",
    "template",
    "nav",
    "svg",
    "head",
    "iframe",
    "object",
    "button",
    "select",
)
_CELLS = ("td", "th")
_BLOCK = re.compile(
    r"\[document\]|address|article|aside|blockquote|body|caption|d[dlt]|details|div|fieldset|figcaption|figure|footer|form|h[1-6]|"
    r"header|hr|html|li|main|ol|p|pre|section|summary|table|tbody|t[dhr]|tfoot|thead|ul"
)
_HEADING = re.compile(r"h([1-6])")
_PARSER = "lxml"
_DECLARED_BYTES = 4096
"""In which a page declares its charset; HTML says within the first 1024."""


def parse_html(content: bytes, charset: str) -> ParsedDocument:
    """
    Raises:
        UnreadableDocument: it is not HTML, or its charset is not the one it is in.
    """
    try:
        soup = BeautifulSoup(_decode(content, charset), _PARSER)
    except ParserRejectedMarkup as error:
        raise UnreadableDocument(f"the document is not HTML that can be parsed: {error}") from None
    title = _squeeze(soup.title.get_text()) if soup.title else ""
    for tag in soup.find_all(_SKIPPED):
        tag.decompose()
    text, headings = _render(_blocks(soup))
    return ParsedDocument(
        text, title or next((h.title for h in headings if h.level == 1), ""), headings, markdown=True
    )


def _decode(content: bytes, charset: str) -> str:
    """By the given charset, a byte order mark or the page's own declaration; otherwise like plain text."""
    declared = "" if charset or b"\0" in content[:_DECLARED_BYTES] else _declared(content[:_DECLARED_BYTES])
    if declared:
        try:
            return decode(content, declared)
        except UnreadableDocument:
            pass  # it is in another one
    return decode(content, charset)


def _declared(head: bytes) -> str:
    """The charset that a page says to be in, by its name in Python; empty: none, or none that is known."""
    name = EncodingDetector.find_declared_encoding(head, is_html=True, search_entire_document=True)
    return (UnicodeDammit(b"").find_codec(name) or "") if name else ""


def _blocks(soup: BeautifulSoup) -> list[tuple[Tag, str]]:
    """Runs of text that share their innermost block element, in document order.

    Iterates instead of recursing, so that no nesting is too deep for Python's stack.
    """
    block_of: dict[int, Tag] = {id(soup): soup}
    blocks: list[tuple[Tag, list[str]]] = []
    for node in soup.descendants:
        parent = node.parent
        if parent is None:
            raise UnreadableDocument("the page cannot be parsed")
        block = block_of[id(parent)]
        if isinstance(node, Tag):
            block_of[id(node)] = node if _BLOCK.fullmatch(node.name) else block
            if node.name == "br" and blocks:
                blocks[-1][1].append("\n")
        elif type(node) is NavigableString:
            if not blocks or blocks[-1][0] is not block:
                blocks.append((block, []))
            blocks[-1][1].append(str(node) if block.name == "pre" else re.sub(r"\s+", " ", str(node)))
    return [(block, "".join(parts)) for block, parts in blocks]


def _render(blocks: list[tuple[Tag, str]]) -> tuple[str, tuple[Heading, ...]]:
    parts: list[str] = []
    headings: list[Heading] = []
    length = 0
    above: Tag | None = None
    for block, raw in blocks:
        text = (
            raw.strip("\n")
            if block.name == "pre"
            else "\n".join(_squeeze(line) for line in raw.split("\n")).strip()
        )
        if not text.strip():
            continue
        if heading := _HEADING.fullmatch(block.name):
            text = _squeeze(text)
            text, title = f"{'#' * int(heading[1])} {text}", text
        elif block.name == "li":
            text = f"- {text}"
        separator = _separator(above, block) if above else ""
        above = block
        if heading:
            headings.append(Heading(length + len(separator), int(heading[1]), title))
        parts += [separator, text]
        length += len(separator) + len(text)
    return "".join(parts), tuple(headings)


def _separator(above: Tag, block: Tag) -> str:
    """Between neighbours: cells of a row, rows of a table, items of a list, anything else."""
    if above.name in _CELLS and block.name in _CELLS:
        return " | " if above.parent is block.parent else "\n"
    return "\n" if above.name == block.name == "li" else "\n\n"


def _squeeze(text: str) -> str:
    return " ".join(text.split())
