"""Checks the packages that .docx, .pptx and .xlsx are, zip files of XML, before any of it is taken into
memory."""

from __future__ import annotations

import contextlib
import io
import logging
import zipfile
from collections.abc import Iterator
from typing import IO
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import iterparse

from services.ingestion.formats.reading import DocumentReading
from shared.errors import KvquiltError, UnreadableDocument

log = logging.getLogger(__name__)

_OLE = bytes.fromhex("d0cf11e0a1b11ae1")  # what Office writes before 2007, and around what it encrypts
_MAX_MEMBERS = 10_000
_PIECE_BYTES = 1 << 20
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1


@contextlib.contextmanager
def opening(
    content: bytes, what: str, ending: str, max_tags: int, reading: DocumentReading
) -> Iterator[IO[bytes]]:
    """Gives the package as a file for the library that reads it. ``max_tags`` bounds the XML of all parts by
    the tags in it, because a tree takes many times the memory of its text.

    Raises:
        UnreadableDocument: it is no such package, is encrypted, damaged, larger than allowed, or has parts
            that declare entities; whatever else the library raises counts as damage.
    """
    try:
        _check(content, ending, max_tags, reading)
        yield io.BytesIO(content)
    except KvquiltError:
        raise
    except Exception as error:  # the libraries meet damaged files with nearly any exception there is
        log.info("damaged %s: %r", what, error)
        raise UnreadableDocument(f"the {what} is damaged") from None


def _check(content: bytes, ending: str, max_tags: int, reading: DocumentReading) -> None:
    if content.startswith(_OLE):
        raise UnreadableDocument(
            f"the document is password-protected or of an older format; remove the password, or save it as "
            f"{ending}"
        )
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise UnreadableDocument(f"the document is not a {ending} file although it is called one")
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        members = package.infolist()
        if len(members) > _MAX_MEMBERS:
            raise UnreadableDocument(f"the document has more than {_MAX_MEMBERS} parts; split it")
        reading.unpack(sum(member.file_size for member in members))  # zipfile gives no more than this
        num_tags = 0
        for member in members:
            reading.check()
            if member.flag_bits & _ENCRYPTED:
                raise UnreadableDocument("the document is password-protected; remove the password first")
            if member.compress_type not in _COMPRESSIONS:
                raise UnreadableDocument(f"the document is packed in a way that no {ending} file is")
            num_tags += _num_tags(package, member)
            if num_tags > max_tags:
                raise UnreadableDocument(f"the document has more than {max_tags} tags; split it")
            _refuse_entities(package, member)


def _num_tags(package: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    with package.open(member) as part:
        return sum(piece.count(b"<") for piece in iter(lambda: part.read(_PIECE_BYTES), b""))


def _refuse_entities(package: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Entities can be declared in front of the first element only. What is no XML is none of ours."""
    with package.open(member) as part, contextlib.suppress(ParseError):
        try:
            next(iterparse(part, events=("start",), forbid_dtd=True), None)
        except DefusedXmlException:
            raise UnreadableDocument(
                f"{member.filename} in the document declares a document type or entities, which no Office "
                "program does"
            ) from None
