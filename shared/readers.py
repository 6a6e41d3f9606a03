"""Says who may read a document: members of the groups that it names as its readers, or, if it names none,
everybody of its tenant. A section of a document may have fewer readers than the rest of it.

The operator of an installation without keys and what the services do by themselves read everything, and so
does a key with the group ``*``. An administrator's key reads no more than its groups may.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.errors import DocumentTaken, InvalidRequest, PermissionDenied
from shared.principals.names import check_group
from shared.principals.principal import Principal, Role

EVERY_GROUP = "*"
MAX_READERS = 256
MAX_SECTIONS = 256
SECTION_SEPARATOR = " > "

Readers = tuple[str, ...]
"""Groups, sorted; empty: everybody of the tenant."""
EVERYBODY: Readers = ()
NOBODY: Readers = ("",)
"""No principal is in it: no group has this name."""


@dataclass(frozen=True, slots=True)
class SectionReaders:
    """Groups that read what stands below a heading. ``heading``: of the section, or several of headings that
    stand below each other, outermost first, joined by " > "."""

    heading: str
    readers: Readers

    def covers(self, heading: str) -> bool:
        """Whether a chunk below ``heading`` (all above it, outermost first) is in the section."""
        path = f"{SECTION_SEPARATOR}{heading}{SECTION_SEPARATOR}"
        return f"{SECTION_SEPARATOR}{self.heading}{SECTION_SEPARATOR}" in path


def reads_everything(principal: Principal) -> bool:
    return EVERY_GROUP in principal.groups or principal.may(Role.INTERNAL)


def check_reads_everything(principal: Principal, doing: str) -> None:
    """
    Raises:
        PermissionDenied: there may be documents that ``principal`` does not read.
    """
    if not reads_everything(principal):
        raise PermissionDenied(f"{doing} takes a key that reads every document: one with the group *")


def taken(document_id: str) -> DocumentTaken:
    """Of a document that is there, and not to be replaced or removed by who may not read all of it."""
    return DocumentTaken(
        f"document_id: {document_id[:80]!r} is taken; choose another one, or use a key whose groups read all "
        "of that document"
    )


def may_read(principal: Principal, readers: Readers) -> bool:
    return not readers or reads_everything(principal) or not principal.groups.isdisjoint(readers)


def both(one: Readers, other: Readers) -> Readers:
    """Those who are among either's readers."""
    if not one or not other:
        return one or other
    return tuple(sorted(set(one) & set(other))) or NOBODY


def readers_below(heading: str, readers: Readers, sections: Iterable[SectionReaders]) -> Readers:
    """Of what stands below ``heading``, in a document with these readers and sections."""
    for section in sections:
        if section.covers(heading):
            readers = both(readers, section.readers)
    return readers


def checked_readers(field: str, readers: Sequence[str]) -> Readers:
    """Each group once, sorted.

    Raises:
        InvalidRequest: names what is no group, or that there are too many.
    """
    if len(readers) > MAX_READERS:
        raise InvalidRequest(
            f"{field}: {len(readers)} groups, more than {MAX_READERS}; name a group that they have in common"
        )
    for i, group in enumerate(readers):
        if group == EVERY_GROUP:
            raise InvalidRequest(f"{field}[{i}]: '*' is no group; without readers it is everybody's")
        try:
            check_group(f"{field}[{i}]", group)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
    return tuple(sorted(set(readers)))


def checked_sections(
    field: str, readers: Readers, sections: Sequence[SectionReaders]
) -> tuple[SectionReaders, ...]:
    """Sections of a document with these readers.

    Raises:
        InvalidRequest: names the section that has no heading or no readers, or is twice there, or the group
        that may not read the document.
    """
    if len(sections) > MAX_SECTIONS:
        raise InvalidRequest(f"{field}: {len(sections)}, more than {MAX_SECTIONS}; give them a heading above")
    checked: dict[str, SectionReaders] = {}
    for i, section in enumerate(sections):
        where = f"{field}[{i}]"
        heading = section.heading.strip()
        if not heading:
            raise InvalidRequest(f"{where}.heading: is empty; name the heading of the section")
        if heading in checked:
            raise InvalidRequest(f"{where}.heading: {heading[:80]!r} comes more than once")
        if not section.readers:
            raise InvalidRequest(
                f"{where}.readers: names nobody; name its groups, or leave the section out for those who "
                "read the document"
            )
        groups = checked_readers(f"{where}.readers", section.readers)
        others = [group for group in groups if readers and group not in readers]
        if others:
            raise InvalidRequest(
                f"{where}.readers: {others[0]!r} is not among the document's readers; name it there too: "
                "who reads a section is told the document's title"
            )
        checked[heading] = SectionReaders(heading, groups)
    return tuple(checked[heading] for heading in sorted(checked))
