"""Keeps who did what: a line per action, appended durably, chained so that a changed or missing line shows.

    {"time":"…","service":"ingestion","action":"delete","principal":"key/ci","tenant":"acme","request_id":"…",
     "outcome":"OK","collection":"handbook","document_ids":["lease.pdf"],"chain":"<32 hex digits>"}

``chain`` covers the line before it and the line itself, by a key derived from the installation's secret where
there is one: whoever cannot read the secret cannot change a line, or take one out, and have the rest fit.
That the last lines were cut off shows only against a copy. No text of documents, questions or answers stands
here, and no key.

A service writes one file per machine (its replicas in turn), ``SERVICE.jsonl``; at ``max_bytes`` it becomes
``SERVICE.1.jsonl`` and so on, ``kept`` of them; the chain goes on across files.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.config import check_least
from shared.private_files import make_private_directory, open_private

log = logging.getLogger(__name__)

_CHAIN = re.compile(rb',"chain":"([0-9a-f]{32})"\}\n?\Z')
_START = "0" * 32
_TAIL_BYTES = 64 << 10
OK = "OK"


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """
    directory: where the files lie; empty: `audit` in `data_dir`.
    max_bytes: of a file before the next one begins.
    kept: files of a service, the one being written included; older ones are removed.
    """

    directory: str = ""
    max_bytes: int = 16 << 20
    kept: int = 16

    def __post_init__(self) -> None:
        if self.directory and not Path(self.directory).is_absolute():
            raise ValueError(f"directory: must be an absolute path, got {self.directory!r}")
        check_least(self, 64 << 10, "max_bytes")
        check_least(self, 2, "kept")


@dataclass(frozen=True, slots=True)
class Actor:
    """The one who acts; ``trace_id`` empty: the request is not traced."""

    principal: str
    tenant: str
    request_id: str = ""
    trace_id: str = ""


class AuditLog:
    """Of one service; several processes may have one of the same file. Methods block."""

    def __init__(
        self,
        service: str,
        config: AuditConfig,
        key: bytes = b"",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``key`` empty: the chain shows accidents, and who changes lines without thinking of it."""
        self._service, self._config, self._key, self._clock = service, config, key[:64], clock
        self._path = Path(config.directory) / f"{service}.jsonl"

    def record(self, action: str, actor: Actor, outcome: str = OK, **what: object) -> None:
        """Returns once it is durable. What cannot be written is logged, and the action goes on: a full disk
        must not keep documents from being deleted."""
        fields: dict[str, Any] = {"time": _utc(self._clock()), "service": self._service, "action": action}
        fields |= {"principal": actor.principal, "tenant": actor.tenant, "request_id": actor.request_id}
        fields |= {"trace_id": actor.trace_id} if actor.trace_id else {}
        fields |= {"outcome": outcome} | what
        try:
            self._append(json.dumps(fields, separators=(",", ":")).encode())
        except OSError as error:
            log.error(
                "audit: %s by %s is not on record: %s", action, actor.principal, error.strerror or error
            )

    def _append(self, body: bytes) -> None:
        make_private_directory(self._path.parent)
        with open(self._path, "ab", opener=open_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_ino != self._inode():  # another process began the next file
                self._append(body)
                return
            last = self._last_chain(self._path) or self._last_chain(self._numbered(1)) or _START
            file.write(self._end_of_torn())
            file.write(body[:-1] + f',"chain":"{chain_of(self._key, last, body)}"}}\n'.encode())
            file.flush()
            os.fsync(file.fileno())
            if file.tell() >= self._config.max_bytes:
                self._rotate()

    def _inode(self) -> int:
        try:
            return os.stat(self._path).st_ino
        except FileNotFoundError:
            return -1

    def _last_chain(self, path: Path) -> str:
        """Of the last whole line; empty: there is none."""
        lines = reversed(_tail_of(path).splitlines())
        return next((found[1].decode() for line in lines if (found := _CHAIN.search(line))), "")

    def _end_of_torn(self) -> bytes:
        """Ends a line that a crash cut short: it is no record, and ``verify`` names it."""
        tail = _tail_of(self._path)
        return b"\n" if tail and not tail.endswith(b"\n") else b""

    def _rotate(self) -> None:
        self._numbered(self._config.kept - 1).unlink(missing_ok=True)
        for number in range(self._config.kept - 2, -1, -1):
            if (path := self._numbered(number)).exists():
                path.rename(self._numbered(number + 1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_suffix(f".{number}.jsonl") if number else self._path


def _tail_of(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""


def chain_of(key: bytes, last: str, body: bytes) -> str:
    """``body``: the line without its own chain."""
    return hashlib.blake2b(last.encode() + body, key=key, person=b"kvquilt-audit", digest_size=16).hexdigest()


def files_of(directory: Path) -> dict[str, list[Path]]:
    """By service, the oldest first."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in directory.glob("*.jsonl"):
        service, _, number = path.name.removesuffix(".jsonl").partition(".")
        found.setdefault(service, []).append((-int(number or 0), path))
    return {service: [path for _, path in sorted(paths)] for service, paths in sorted(found.items())}


def read_lines(directory: Path) -> Iterator[Mapping[str, Any]]:
    """Returns the recorded lines, service by service, the oldest first. Lines that are none are left out:
    ``verify`` names them."""
    for paths in files_of(directory).values():
        for path in paths:
            for line in path.read_bytes().splitlines():
                try:
                    fields = json.loads(line)
                except ValueError:
                    continue
                if isinstance(fields, dict):
                    yield fields


def verify(directory: Path, keys: Sequence[bytes] = (b"",)) -> Iterator[str]:
    """Finds what does not fit: a sentence for every line that was changed, or before which some are missing.
    ``keys``: a line fits by any of them, as the installation's secret may have been replaced meanwhile."""
    for service, paths in files_of(directory).items():
        last = _START
        for path in paths:
            # older ones may have been removed
            begins = path is paths[0] and path.name != f"{service}.jsonl"
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
                found = _CHAIN.search(line)
                if found is None:
                    yield f"{path.name}:{number}: is no line that was recorded"
                    continue
                chain, body = found[1].decode(), line[: found.start()] + b"}"
                fits = any(chain == chain_of(key[:64], last, body) for key in keys)
                if not fits and not (begins and number == 1):
                    yield f"{path.name}:{number}: was changed, or lines before it are missing"
                last = chain


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
