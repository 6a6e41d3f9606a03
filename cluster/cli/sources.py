"""Files to ingest: what `kvquilt ingest PATHS…` finds, and under which identity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import InvalidRequest

ENDINGS = (".txt", ".md", ".html", ".htm", ".pdf")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """``document_id``: the path relative to the folder that was named, or the name of a file that was."""

    path: Path
    document_id: str


def find_sources(paths: Sequence[Path]) -> list[SourceFile]:
    """Files in a stable order; folders are searched for ``ENDINGS``, hidden ones left out. A file that is
    named itself is taken whatever its ending: the service says what is wrong with it.

    Raises:
        InvalidRequest: a path does not exist, nothing was found, or two files would get the same identity.
    """
    sources: dict[str, SourceFile] = {}
    for path in paths:
        for source in _in_path(path):
            other = sources.setdefault(source.document_id, source)
            if other.path.resolve() != source.path.resolve():
                raise InvalidRequest(
                    f"{other.path} and {source.path} would both be {source.document_id!r}; ingest them "
                    "one by one"
                )
    if not sources:
        raise InvalidRequest(f"no documents in {', '.join(map(str, paths))} (looked for {' '.join(ENDINGS)})")
    return list(sources.values())


def _in_path(path: Path) -> Iterator[SourceFile]:
    if not path.exists():
        raise InvalidRequest(f"{path}: no such file or folder")
    if path.is_file():
        yield SourceFile(path, path.name)
        return
    for file in sorted(path.rglob("*")):
        relative = file.relative_to(path)
        hidden = any(part.startswith(".") for part in relative.parts)
        if file.is_file() and file.suffix.lower() in ENDINGS and not hidden:
            yield SourceFile(file, relative.as_posix())
