"""Markdown stays Markdown: models read it, and the chunker cuts along its structure. Only front matter is
taken off."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise

import yaml
from markdown_it import MarkdownIt

from services.ingestion.formats.document import Heading, ParsedDocument
from services.ingestion.formats.plain import decode

_TEXT = "tag:yaml.org,2002:str"
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_MOST_FRONT_MATTER = 64 << 10
_MOST_HEADING = 4096


def parse_markdown(content: bytes, charset: str) -> ParsedDocument:
    text, title = _without_front_matter(decode(content, charset))
    headings = _headings(text)
    first = next((h.title for h in headings if h.level == 1), "")
    return ParsedDocument(text, title or first, headings, markdown=True)


def _headings(text: str) -> tuple[Heading, ...]:
    """By blocks alone: what is inside of them could take for ever, and only headings are read."""
    line_starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    tokens = MarkdownIt("commonmark").disable("inline").parse(text)
    return tuple(
        Heading(line_starts[token.map[0]], int(token.tag[1:]), _plain(inline.content))
        for token, inline in pairwise(tokens)
        if token.type == "heading_open" and token.level == 0 and token.map and inline.content.strip()
    )


def _plain(markdown: str) -> str:
    """The words of a heading without their markup."""
    inline = MarkdownIt("commonmark").parseInline(markdown[:_MOST_HEADING])[0].children or []
    return " ".join(
        "".join(
            t.content if t.type in ("text", "code_inline") else " " * t.type.endswith("break") for t in inline
        ).split()
    )


def _without_front_matter(text: str) -> tuple[str, str]:
    """The text behind a YAML header, and the header's title. What looks like one but is not YAML, or is
    longer than any header, stays text. Nothing but the title is made of the header: merging keys and reading
    dates could take for ever, or fail."""
    found = _FRONT_MATTER.match(text[:_MOST_FRONT_MATTER])
    if found is None:
        return text, ""
    try:
        header = yaml.compose(found[1], yaml.SafeLoader)
    except (yaml.YAMLError, ValueError):
        return text, ""
    if not isinstance(header, yaml.MappingNode):
        return text, ""
    titles = [value.value for key, value in header.value if key.value == "title" and value.tag == _TEXT]
    return text[found.end() :], titles[-1].strip() if titles else ""
