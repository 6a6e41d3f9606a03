"""Writes Markdown block by block and remembers where its headings are."""

from __future__ import annotations

from collections.abc import Sequence

from services.ingestion.formats.document import Heading, ParsedDocument

_DEEPEST = 6
_INDENT = "   "  # stands below the text of "- " as of "1. "


class MarkdownWriter:
    """``table_chars``: a table that is longer is written as several, each under the header row, so that a
    chunk of some of its rows knows what they mean."""

    def __init__(self, table_chars: int) -> None:
        self._table_chars = table_chars
        self._parts: list[str] = []
        self._length = 0
        self._in_list = False
        self._headings: list[Heading] = []

    def heading(self, level: int, title: str) -> None:
        title = squeeze(title)
        if title:
            level = min(max(level, 1), _DEEPEST)
            start = self._write(f"{'#' * level} {title}")
            self._headings.append(Heading(start, level, title))

    def paragraph(self, text: str) -> None:
        lines = (squeeze(line) for line in text.split("\n"))
        if written := "\n".join(line for line in lines if line):
            self._write(written)

    def item(self, text: str, depth: int = 0, marker: str = "-") -> None:
        """An element of a list; neighbours stand on lines of their own."""
        if text := squeeze(text):
            self._write(f"{_INDENT * depth}{marker} {text}", item=True)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """The first row is the header. Rows and outer columns without any text are left out."""
        filled = _trimmed([[_cell(cell) for cell in row] for row in rows])
        if not filled:
            return
        width = max(map(len, filled))
        top = f"{_line([*filled[0], *[''] * (width - len(filled[0]))])}\n|{' --- |' * width}"
        # A header that is most of a piece would not be worth repeating.
        room = self._table_chars - len(top) if len(top) <= self._table_chars // 2 else 0
        piece: list[str] = [top]
        size = 0
        for row in filled[1:]:
            line = _line(row)
            if room and size and size + len(line) + 1 > room:
                self._write("\n".join(piece))
                piece, size = [top], 0
            piece.append(line)
            size += len(line) + 1
        self._write("\n".join(piece))

    def document(self, parsed: ParsedDocument, below: int) -> None:
        """Another document's text, its headings ``below`` levels deeper."""
        if not parsed.text:
            return
        start = self._write(parsed.text)
        self._headings += [Heading(start + h.start, h.level + below, h.title) for h in parsed.headings]

    def finish(self, title: str, warnings: Sequence[str] = (), incomplete: bool = False) -> ParsedDocument:
        """Without a ``title``, that of the first heading."""
        title = squeeze(title) or next((h.title for h in self._headings), "")
        return ParsedDocument(
            "".join(self._parts), title, tuple(self._headings), True, tuple(warnings), incomplete
        )

    def _write(self, block: str, item: bool = False) -> int:
        """Returns where the block begins."""
        separator = "" if not self._parts else "\n" if item and self._in_list else "\n\n"
        self._in_list = item
        start = self._length + len(separator)
        self._parts += [separator, block]
        self._length = start + len(block)
        return start


def squeeze(text: str) -> str:
    return " ".join(text.split())


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as people write them: 1, 3-5."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _cell(text: str) -> str:
    return squeeze(text).replace("|", "\\|")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _trimmed(rows: list[list[str]]) -> list[list[str]]:
    """Without empty rows, without columns that are empty in all rows on the left, without empty cells at the
    right end of a row."""
    spans = [(row, [i for i, cell in enumerate(row) if cell]) for row in rows]
    left = min((there[0] for _, there in spans if there), default=0)
    return [row[left : there[-1] + 1] for row, there in spans if there]
