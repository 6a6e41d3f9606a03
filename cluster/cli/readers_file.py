"""Reads `.readers.yaml`, which says who may read the documents of the folder it lies in and of those below:

    "*.md": [staff]
    hr/*: [hr, board]
    board/minutes.md:
      readers: [staff, board]
      sections:
        Salaries: [board]

A name or pattern without a slash is of files in any folder, others are of paths from this folder; ``*``,
``?`` and ``[…]`` stand for any characters, slashes included. Of several entries the last one counts that a
document matches, and files in deeper folders come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import yaml

from shared.config import read_yaml
from shared.errors import ConfigError, InvalidRequest
from shared.readers import EVERYBODY, Readers, SectionReaders, checked_readers, checked_sections

READERS_FILE = ".readers.yaml"
_LARGEST_BYTES = 1 << 20
_WILD = frozenset("*?[")
_KEYS = frozenset({"readers", "sections"})


@dataclass(frozen=True, slots=True)
class Access:
    """Groups that may read a document."""

    readers: Readers = EVERYBODY
    sections: tuple[SectionReaders, ...] = ()


UNSAID = Access()


@dataclass(frozen=True, slots=True)
class ReadersFile:
    """``where``: for errors; ``folder``: that it lies in, relative to the source, empty for the source
    itself."""

    where: str
    folder: str
    content: bytes


@dataclass(frozen=True, slots=True)
class _ReadersRule:
    where: str
    folder: str
    pattern: str
    access: Access

    def matches(self, path: str) -> bool:
        folder = f"{self.folder}/" if self.folder else ""
        if not path.startswith(folder):
            return False
        below = path.removeprefix(folder)
        return fnmatchcase(below if "/" in self.pattern else below.rpartition("/")[2], self.pattern)


class ReadersRules:
    """Rules that the files of one source give.

    Raises:
        InvalidRequest: names the file and what is wrong with it.
    """

    def __init__(self, files: Iterable[ReadersFile]) -> None:
        in_order = sorted(files, key=lambda file: (file.folder.count("/") + bool(file.folder), file.folder))
        self._rules = [rule for file in in_order for rule in _rules_of(file)]

    def access_to(self, path: str) -> Access:
        """``path``: relative to the source."""
        return next((rule.access for rule in reversed(self._rules) if rule.matches(path)), UNSAID)

    def check_named(self, paths: Iterable[str]) -> None:
        """
        Raises:
            InvalidRequest: an entry names a file that is not there, so another one may go unprotected.
        """
        known = list(paths)
        for rule in self._rules:
            if _WILD.isdisjoint(rule.pattern) and not any(map(rule.matches, known)):
                raise InvalidRequest(
                    f"{rule.where}: {rule.pattern!r} names no file; correct the entry, or take it out"
                )


def _rules_of(file: ReadersFile) -> list[_ReadersRule]:
    if len(file.content) > _LARGEST_BYTES:
        raise InvalidRequest(f"{file.where}: has more than {_LARGEST_BYTES} bytes; use patterns")
    try:
        text = file.content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file.where}: is no UTF-8 text: {error}") from None
    entries = _read(text, file.where)
    return [_ReadersRule(file.where, file.folder, *_entry(file.where, *entry)) for entry in entries.items()]


def _read(text: str, where: str) -> dict[str, Any]:
    """Without anchors and aliases, by which a small file can say very much."""
    try:
        if any(isinstance(token, yaml.AnchorToken | yaml.AliasToken) for token in yaml.scan(text)):
            raise ConfigError(f"{where}: has an anchor or an alias")
        return read_yaml(text, where)
    except yaml.YAMLError as error:
        detail = f"{where}: not valid YAML: {error}"
    except ConfigError as error:
        detail = error.detail
    raise InvalidRequest(f"{detail}; patterns that begin with * stand in quotes")


def _entry(where: str, pattern: object, said: object) -> tuple[str, Access]:
    if not isinstance(pattern, str) or not pattern:
        raise InvalidRequest(f"{where}: {pattern!r} is no name or pattern; put it in quotes")
    where = f"{where}: {pattern}"
    values = said if isinstance(said, dict) else {"readers": said}
    if unknown := values.keys() - _KEYS:
        raise InvalidRequest(f"{where}: {sorted(map(str, unknown))[0]!r} is neither readers nor sections")
    readers = _groups(where, values["readers"]) if "readers" in values else EVERYBODY
    sections = values.get("sections", {})
    if not isinstance(sections, dict) or not values:
        raise InvalidRequest(f"{where}: sections: expected headings with their groups")
    told = [
        SectionReaders(str(heading), _groups(f"{where}: sections: {heading}", groups))
        for heading, groups in sections.items()
    ]
    return pattern, Access(readers, checked_sections(f"{where}: sections", readers, told))


def _groups(where: str, said: object) -> Readers:
    groups: Sequence[object] = [said] if isinstance(said, str) else said if isinstance(said, list) else ()
    if not groups or not all(isinstance(group, str) for group in groups):
        raise InvalidRequest(
            f"{where}: expected groups, as [hr, board]; what is for everybody of the tenant has no entry"
        )
    return checked_readers(where, [str(group) for group in groups])
