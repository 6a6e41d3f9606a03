"""Carries what the parsers of one document share: settings, and how much of the limits is used up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import UnreadableDocument


@dataclass(frozen=True, slots=True)
class ParserSettings:
    """
    ocr: gives the text of a PDF of one page; None: pages without text stay without. ``ocr_name`` identifies
    it.
    max_unpacked_bytes: what the packages (.docx, .pptx, .xlsx) of one document may unpack to, together.
    table_chars: a longer table is written as several, each under the header row.
    """

    ocr: Callable[[bytes], str] | None = None
    ocr_name: str = ""
    max_unpacked_bytes: int = 256 << 20
    table_chars: int = 1024


@dataclass(slots=True)
class DocumentReading:
    """One document and all that is attached to it. ``check`` raises when nobody waits for it any more."""

    settings: ParserSettings
    check: Callable[[], None] = lambda: None
    depth: int = 0
    unpacked_bytes: int = 0
    num_cells: int = 0

    def unpack(self, num_bytes: int) -> None:
        """Counts bytes that are about to be unpacked.

        Raises:
            UnreadableDocument: they are too many.
        """
        self.unpacked_bytes += num_bytes
        if self.unpacked_bytes > self.settings.max_unpacked_bytes:
            raise UnreadableDocument(
                f"the document unpacks to more than {self.settings.max_unpacked_bytes} bytes; split it, or "
                "raise ingestion.max_unpacked_bytes"
            )
