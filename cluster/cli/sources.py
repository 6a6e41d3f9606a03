"""Files to ingest: what `kvquilt ingest PATHS…` finds, and under which identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import InvalidRequest

ENDINGS = (
    *(".txt", ".text", ".md", ".markdown", ".html", ".htm", ".xhtml", ".pdf"),
    *(".docx", ".pptx", ".xlsx", ".csv", ".tsv", ".eml"),
)
_LOCK_PREFIX = "~$"  # what Office puts beside a document that is open


@dataclass(frozen=True, slots=True)
class SourceFile:
    """``document_id``: the path relative to the folder that was named, or the name of a file that was."""

    path: Path
    document_id: str


@dataclass(frozen=True, slots=True)
class Sources:
    """``skipped``: what lies in the folders and is not taken, with the reason."""

    files: Sequence[SourceFile]
    skipped: Mapping[Path, str]


def find_sources(paths: Sequence[Path]) -> Sources:
    """Files in a stable order; folders are searched for ``ENDINGS``, hidden ones left out. A file that is
    named itself is taken whatever its ending: the service says what is wrong with it.

    Raises:
        InvalidRequest: a path does not exist, nothing was found, or two files would get the same identity.
    """
    sources: dict[str, SourceFile] = {}
    skipped: dict[Path, str] = {}
    for path in paths:
        for source in _in_path(path, skipped):
            other = sources.setdefault(source.document_id, source)
            if other.path.resolve() != source.path.resolve():
                raise InvalidRequest(
                    f"{other.path} and {source.path} would both be {source.document_id!r}; ingest them "
                    "one by one"
                )
    if not sources:
        raise InvalidRequest(f"no documents in {', '.join(map(str, paths))} (looked for {' '.join(ENDINGS)})")
    return Sources(list(sources.values()), skipped)


def _in_path(path: Path, skipped: dict[Path, str]) -> Iterator[SourceFile]:
    if not path.exists():
        what = "the link leads nowhere" if path.is_symlink() else "no such file or folder"
        raise InvalidRequest(f"{path}: {what}")
    if path.is_file():
        yield SourceFile(path, path.name)
        return
    for file in sorted(path.rglob("*")):
        relative = file.relative_to(path)
        if file.is_dir() or any(part.startswith(".") for part in relative.parts):
            continue
        if reason := _unfit(file):
            skipped[file] = reason
        else:
            yield SourceFile(file, relative.as_posix())


def _unfit(file: Path) -> str:
    """Says why it cannot be a document; empty if it can."""
    if not file.exists():
        return "the link leads nowhere"
    if not file.is_file():
        return "is no file"
    if file.name.startswith(_LOCK_PREFIX):
        return "tells that a document is open"
    if not str(file).isprintable():
        return "its name cannot be printed"
    return "" if file.suffix.lower() in ENDINGS else f"is none of {' '.join(ENDINGS)}"
