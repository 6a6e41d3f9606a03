"""Checks what is said of documents, before any of them is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shared.documents import SourceDocument
from shared.errors import InvalidRequest
from shared.readers import checked_readers, checked_sections

MAX_ID_LEN = 1024


def checked(documents: Sequence[SourceDocument]) -> list[SourceDocument]:
    """With every group of readers once.

    Raises:
        InvalidRequest: no documents, an empty id, or one that comes twice, or readers that cannot be.
    """
    _check_ids([d.document_id for d in documents])
    return [_with_checked_readers(f"documents[{i}]", d) for i, d in enumerate(documents)]


def _with_checked_readers(where: str, source: SourceDocument) -> SourceDocument:
    readers = checked_readers(f"{where}.readers", source.readers)
    sections = checked_sections(f"{where}.sections", readers, source.sections)
    return replace(source, readers=readers, sections=sections)


def _check_ids(document_ids: list[str]) -> None:
    if not document_ids:
        raise InvalidRequest("documents: none given")
    for i, document_id in enumerate(document_ids):
        if not document_id.strip() or len(document_id) > MAX_ID_LEN or not document_id.isprintable():
            raise InvalidRequest(
                f"documents[{i}].document_id: must be 1 to {MAX_ID_LEN} printable characters"
            )
    twice = [document_id for document_id, count in Counter(document_ids).items() if count > 1]
    if twice:
        raise InvalidRequest(f"documents: {twice[0]!r} comes more than once")
