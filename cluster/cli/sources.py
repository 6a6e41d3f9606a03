"""Documents in folders: what `kvquilt ingest` and `kvquilt sync` find, and under which identity."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from cluster.cli.readers_file import READERS_FILE, UNSAID, Access, ReadersFile, ReadersRules
from shared.errors import InvalidRequest, UnreadableDocument
from shared.request import check_name

ENDINGS = (
    *(".txt", ".text", ".md", ".markdown", ".html", ".htm", ".xhtml", ".pdf"),
    *(".docx", ".pptx", ".xlsx", ".csv", ".tsv", ".eml"),
)
LONGEST_ID = 1024
LARGEST_BYTES = 1 << 30
"""More does not go into a message; what the service takes (``ingestion.max_document_bytes``) is less."""
_LOCK_PREFIX = "~$"  # what Office puts beside a document that is open


class Readable(Protocol):
    """A document before it is read. ``source``: the folder or bucket it comes from, as documents remember
    it."""

    @property
    def document_id(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def num_bytes(self) -> int:
        """As far as is known before it is read."""
        ...

    @property
    def access(self) -> Access:
        """Says who may read it, by a file beside it; ``UNSAID``: no file says so."""
        ...

    def read(self) -> bytes:
        """
        Raises:
            UnreadableDocument: it cannot be read; the others may.
            KvquiltError: where it lies cannot be reached.
        """
        ...


@dataclass(frozen=True, slots=True)
class SourceFile:
    """``document_id``: the path relative to the folder that was named, or the name of a file that was.
    ``source``: that folder, as a URI."""

    path: Path
    document_id: str
    source: str = ""
    access: Access = UNSAID

    @property
    def num_bytes(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:  # which reading it tells
            return 0

    def read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise UnreadableDocument(f"cannot be read: {error.strerror}") from error


ReadableT = TypeVar("ReadableT", bound=Readable, covariant=True)


@dataclass(frozen=True, slots=True)
class Sources(Generic[ReadableT]):
    """``skipped``: what lies there and is not taken, with the reason."""

    files: Sequence[ReadableT]
    skipped: Mapping[Path | str, str]


class Folder:
    """A folder to be kept in step with. Its name is its absolute path as it was given, links and all, so that
    a link that is moved on stays the same source; with ``label`` it is that, wherever the folder lies, and
    documents are named ``label/path``."""

    def __init__(self, path: Path, label: str = "") -> None:
        """
        Raises:
            InvalidRequest: there is no such folder, or ``label`` is no name.
        """
        if not stat.S_ISDIR(_mode(path)):
            raise InvalidRequest(f"{path}: is no folder; `kvquilt ingest` takes files")
        self.path = path
        self.name, self.id_prefix = named(_uri(path), label)

    def find(self) -> Sources[SourceFile]:
        """
        Raises:
            InvalidRequest: it cannot be searched, or holds no documents.
        """
        skipped: dict[Path | str, str] = {}
        files = [
            SourceFile(file.path, self.id_prefix + file.document_id, self.name, file.access)
            for file in _in_folder(self.path, skipped)
        ]
        if not files:
            raise nothing_in(str(self.path))
        return Sources(files, skipped)

    def has(self, document_id: str) -> bool:
        """Whether the file of a document is there, or nobody can tell."""
        try:
            found = os.lstat(self.path / document_id.removeprefix(self.id_prefix))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return not stat.S_ISDIR(found.st_mode)


def find_sources(paths: Sequence[Path]) -> Sources[SourceFile]:
    """Files in a stable order; folders are searched for ``ENDINGS``, hidden ones left out. A file that is
    named itself is taken whatever its ending: the service says what is wrong with it.

    Raises:
        InvalidRequest: a path does not exist or cannot be searched, nothing was found, or two files would get
        the same identity.
    """
    sources: dict[str, SourceFile] = {}
    skipped: dict[Path | str, str] = {}
    for path in paths:
        for source in _in_path(path, skipped):
            other = sources.setdefault(source.document_id, source)
            if other.path.resolve() != source.path.resolve():
                raise InvalidRequest(
                    f"{other.path} and {source.path} would both be {source.document_id!r}; ingest them "
                    "one by one"
                )
    if not sources:
        raise nothing_in(", ".join(map(str, paths)))
    return Sources(list(sources.values()), skipped)


def named(uri: str, label: str) -> tuple[str, str]:
    """Returns what documents call the source they come from, and how their ids begin.

    Raises:
        InvalidRequest: ``label`` is neither empty nor a name.
    """
    return (f"name:{check_name('--as', label)}", f"{label}/") if label else (uri, "")


def nothing_in(where: str) -> InvalidRequest:
    return InvalidRequest(f"no documents in {where} (looked for {' '.join(ENDINGS)})")


def unfit(path: str, num_bytes: int) -> str:
    """Says why what lies at ``path``, ``/``-separated and relative to its source, is no document by name or
    size; empty if it may be one."""
    name = path.rpartition("/")[2]
    if name.startswith(_LOCK_PREFIX):
        return "tells that a document is open"
    if not path.isprintable():
        return "its name cannot be printed"
    if len(path) > LONGEST_ID:
        return f"its path has more than {LONGEST_ID} characters"
    if os.path.splitext(name)[1].lower() not in ENDINGS:
        return f"is none of {' '.join(ENDINGS)}"
    return f"has {num_bytes} bytes, more than any document may; split it" if num_bytes > LARGEST_BYTES else ""


def hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _in_path(path: Path, skipped: dict[Path | str, str]) -> Iterator[SourceFile]:
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        yield from _in_folder(path, skipped)
    elif stat.S_ISREG(mode):
        rules = ReadersRules([_readers_file(path.parent / READERS_FILE)])
        yield SourceFile(path, path.name, _uri(path.parent), rules.access_to(path.name))
    else:
        raise InvalidRequest(f"{path}: is neither a file nor a folder")


def _in_folder(folder: Path, skipped: dict[Path | str, str]) -> Iterator[SourceFile]:
    """Links to files of the folder are followed; links to folders are not, nor what leads out of this one."""

    def cannot_be_searched(error: OSError) -> None:
        if Path(error.filename) == folder:
            raise InvalidRequest(f"{folder}: cannot be searched: {error.strerror}") from error
        skipped[Path(error.filename)] = f"cannot be searched: {error.strerror}"

    found: list[Path] = []
    readers_files: list[ReadersFile] = []
    for parent, folders, names in os.walk(folder, onerror=cannot_be_searched):
        folders[:] = [name for name in folders if not hidden(name)]
        found += [Path(parent, name) for name in names if not hidden(name)]
        if READERS_FILE in names:
            below = Path(parent).relative_to(folder).as_posix()
            readers_files.append(_readers_file(Path(parent, READERS_FILE), "" if below == "." else below))
    source, inside = _uri(folder), folder.resolve()
    rules = ReadersRules(readers_files)
    rules.check_named(file.relative_to(folder).as_posix() for file in found)
    for file in sorted(found):
        relative = file.relative_to(folder).as_posix()
        if reason := _unfit_file(file, relative, inside):
            skipped[file] = reason
        else:
            yield SourceFile(file, relative, source, rules.access_to(relative))


def _readers_file(path: Path, below: str = "") -> ReadersFile:
    """One that is not there says nothing."""
    try:
        return ReadersFile(str(path), below, path.read_bytes())
    except FileNotFoundError:
        return ReadersFile(str(path), below, b"")
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read: {error.strerror}; it says who may read") from error


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        what = "the link leads nowhere" if path.is_symlink() else "no such file or folder"
        raise InvalidRequest(f"{path}: {what}") from None
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read: {error.strerror}") from error


def _unfit_file(file: Path, relative: str, inside: Path) -> str:
    try:
        found = file.stat()
        if file.is_symlink() and not file.resolve().is_relative_to(inside):
            return "the link leads out of the folder; name the file itself"
    except (FileNotFoundError, NotADirectoryError):
        return "the link leads nowhere"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return unfit(relative, found.st_size) if stat.S_ISREG(found.st_mode) else "is no file"


def _uri(folder: Path) -> str:
    return Path(os.path.abspath(folder)).as_uri()
