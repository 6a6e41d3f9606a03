"""Reads, writes and watches the file of keys: JSON, with hashes of keys and no key.

Whoever watches it looks at most every half second whether it is another one, when somebody calls. One that is
damaged or gone changes nothing for those who read a whole one before; they say so until it is whole again.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.principals.keys import KeyKind, KeyRecord
from shared.principals.principal import Role
from shared.private_files import FILE_MODE, make_private_directory, open_private
from shared.whole_files import replacing

log = logging.getLogger(__name__)

_VERSION = 1
_POLL_S = 0.5
_TIMES = ("created", "expires", "revoked")


@dataclass(frozen=True)
class Keys:
    """The records of a file, in its order."""

    records: tuple[KeyRecord, ...]

    @cached_property
    def by_id(self) -> Mapping[str, KeyRecord]:
        return {record.key_id: record for record in self.records}

    @cached_property
    def by_certificate(self) -> Mapping[str, KeyRecord]:
        """Of several for one name, the last one that is not revoked: it was made to follow the others."""
        named = [record for record in self.records if record.kind is KeyKind.CERTIFICATE]
        return {r.certificate: r for r in sorted(named, key=lambda record: record.revoked is None)}


def read_keys(path: Path) -> Keys:
    """
    Raises:
        FileNotFoundError: there is none.
        ConfigError: it is damaged, or cannot be read; says where.
    """
    try:
        stored = json.loads(path.read_bytes())
        if not isinstance(stored, dict) or stored.get("version") != _VERSION:
            raise ValueError(f"no file of keys of version {_VERSION}")
        records = tuple(_record_of(record) for record in stored["keys"])
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"auth.keys_file: {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"auth.keys_file: {path} is damaged: {error}") from None
    if len({record.key_id for record in records}) != len(records):
        raise ConfigError(f"auth.keys_file: {path} is damaged: an id is there twice")
    return Keys(records)


@contextlib.contextmanager
def changing(path: Path) -> Iterator[list[KeyRecord]]:
    """Its records, to be changed by one process at a time; they are stored whole when the block ends well.

    Raises:
        ConfigError: as ``read_keys``, or it cannot be written.
    """
    try:
        if not path.parent.exists():
            make_private_directory(path.parent)
        with open(path.with_name(f".{path.name}.lock"), "a", opener=open_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                records = list(read_keys(path).records)
            except FileNotFoundError:
                records = []
            yield records
            _write(path, records)
    except OSError as error:
        raise ConfigError(f"auth.keys_file: {path} cannot be written: {error.strerror}") from None


def _write(path: Path, records: Iterable[KeyRecord]) -> None:
    """Another file in its place, durable before it is there."""
    text = json.dumps({"version": _VERSION, "keys": [_stored(r) for r in records]}, indent=1) + "\n"
    with replacing(path, FILE_MODE) as file:
        file.write(text.encode())


class WatchedKeys:
    """``clock``: seconds that only grow."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._keys: Keys | None = None
        self._seen: object = None
        self._look_again_s = clock()
        self.trouble = ""
        """What is wrong with the file now; empty: nothing."""

    @property
    def current(self) -> Keys | None:
        """The last that were whole; None: there has been no file yet, or none that was whole."""
        if (now := self._clock()) >= self._look_again_s:
            self._look_again_s = now + _POLL_S
            self._look()
        return self._keys

    def _look(self) -> None:
        seen = _looks_of(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._keys = read_keys(self._path)
            self.trouble = ""
            log.info("%d keys in %s", len(self._keys.records), self._path)
        except FileNotFoundError:
            self._complain(f"auth.keys_file: {self._path} is gone" if self._keys is not None else "")
        except ConfigError as error:
            self._seen = None  # the disk may have failed, not the file
            self._complain(error.detail)

    def _complain(self, trouble: str) -> None:
        held = "those that were read before hold" if self._keys is not None else "nobody has a key"
        trouble = trouble and f"{trouble}; {held}"
        if trouble and trouble != self.trouble:
            log.error(trouble)
        self.trouble = trouble


def _looks_of(path: Path) -> object:
    """Another one than before: the file is another one."""
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _stored(record: KeyRecord) -> dict[str, Any]:
    values = {
        "id": record.key_id,
        "name": record.name,
        "kind": record.kind.value,
        "tenant": record.tenant,
        "roles": sorted(record.roles),
        "groups": sorted(record.groups),
        "hash": record.hash,
        "certificate": record.certificate,
        **{name: _text_of(getattr(record, name)) for name in _TIMES},
    }
    return {name: value for name, value in values.items() if value not in ("", None)}


def _record_of(stored: Mapping[str, Any]) -> KeyRecord:
    """
    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    known = {"id", "name", "kind", "tenant", "roles", "groups", "hash", "certificate", *_TIMES}
    if unknown := sorted(set(stored) - known):
        raise ValueError(f"{unknown[0]!r} is not known; a later version wrote it")
    created, expires, revoked = (_time_of(stored[name]) if name in stored else None for name in _TIMES)
    return KeyRecord(
        key_id=stored["id"],
        name=stored["name"],
        kind=KeyKind(stored["kind"]),
        tenant=stored["tenant"],
        roles=frozenset(map(Role, _listed(stored["roles"]))),
        groups=frozenset(_listed(stored.get("groups", []))),
        hash=str(stored.get("hash", "")),
        certificate=str(stored.get("certificate", "")),
        created=created,
        expires=expires,
        revoked=revoked,
    )


def _listed(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("roles and groups are lists of names")
    return value


def _text_of(instant: datetime.datetime | None) -> str | None:
    return instant.isoformat(timespec="seconds") if instant is not None else None


def _time_of(text: str) -> datetime.datetime:
    instant = datetime.datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return instant
