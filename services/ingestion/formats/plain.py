"""Plain text, in whatever encoding."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate

from charset_normalizer import from_bytes

from services.ingestion.formats.document import Heading, ParsedDocument
from shared.errors import UnreadableDocument

_BOMS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What text that is not Unicode comes in; where nothing else decides, the first.
_LEGACY = (
    *("cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255", "cp1256"),
    *("cp932", "euc_jp", "euc_kr", "gb18030", "big5"),
)
# Python's other text encodings are for names and literals; the time of two of them grows with the square.
_NO_DOCUMENTS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")
_MAX_CONTROL_SHARE = 0.01
_GUESS_BYTES = 64 * 1024
_SHOWN = 40
_MAX_HEADING_WORDS = 12
_TITLE = re.compile(r"[^\W_].{0,78}(?<![.,;!?…。、！？])")
_UNDERLINE = re.compile(r"={3,}|-{3,}|~{3,}")


def parse_plain(content: bytes, charset: str) -> ParsedDocument:
    text = decode(content, charset)
    return ParsedDocument(text, headings=headings_of(text))


def headings_of(text: str) -> tuple[Heading, ...]:
    """Short lines between blank ones that are no sentences, underlined or not. How deep one is cannot be
    seen."""
    lines = [line.strip() for line in text.split("\n")]
    starts = accumulate((len(line) + 1 for line in text.split("\n")), initial=0)
    return tuple(
        Heading(start, 1, line)
        for i, (start, line) in enumerate(zip(starts, lines, strict=False))
        if _is_title(line) and not any(lines[max(i - 1, 0) : i]) and _ends_block(lines[i + 1 : i + 3])
    )


def _is_title(line: str) -> bool:
    return _TITLE.fullmatch(line) is not None and len(line.split()) <= _MAX_HEADING_WORDS


def _ends_block(below: Sequence[str]) -> bool:
    """Says whether a blank line follows, or an underline and a blank line."""
    after = below[1:] if below and _UNDERLINE.fullmatch(below[0]) else below
    return bool(after) and not after[0]


def decode(content: bytes, charset: str = "") -> str:
    """Text with ``\\n`` line ends.

    Raises:
        UnreadableDocument: the bytes are no text, or not in the encoding they claim.
    """
    encoding = charset or next((name for mark, name in _BOMS if content.startswith(mark)), "")
    if encoding:
        try:
            if codecs.lookup(encoding).name in _NO_DOCUMENTS:
                raise LookupError(encoding)
            text = content.decode(encoding)
            text.encode()  # some encodings can spell halves of characters
        except (ValueError, LookupError):
            raise UnreadableDocument(f"the bytes are not {encoding[:_SHOWN]} text") from None
    else:
        text = _guess(content)
    text = normalize_newlines(text)
    if _control_share(text) > _MAX_CONTROL_SHARE:
        raise UnreadableDocument("the document is binary, not text")
    return "".join(ch for ch in text if ch == "\n" or ch == "\t" or unicodedata.category(ch) != "Cc")


def normalize_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")


def _guess(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        pass
    if b"\0" in content:
        raise UnreadableDocument("the document is binary, not text")
    candidates = list(from_bytes(content[:_GUESS_BYTES], cp_isolation=list(_LEGACY)))
    if not candidates:
        raise UnreadableDocument(
            "the document is binary, or text in an unknown encoding; convert it to UTF-8"
        )
    best = min(candidates, key=lambda found: (found.chaos, -found.coherence, _LEGACY.index(found.encoding)))
    try:
        return content.decode(best.encoding)
    except UnicodeDecodeError:
        raise UnreadableDocument("the document mixes encodings; convert it to UTF-8") from None


def _control_share(text: str) -> float:
    bad = sum(1 for ch in text if ch not in "\n\t" and unicodedata.category(ch) == "Cc")
    return bad / max(len(text), 1)
