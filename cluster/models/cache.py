"""Keeps converted models in a directory, each converted once, whole or not at all.

A model's directory is named after its file and the hash of what is in it; ``conversion.json`` there tells
every file's hash, by which it is checked before each use. It is written beside its place and renamed into it.
A lock per model lets one process convert while others wait; what a killed one left is removed by the next.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from cluster.models.conversion import Progress, num_bytes, write_model
from cluster.models.families import plan_of
from cluster.models.gguf_file import GgufFile
from cluster.models.names import CONVERTED
from shared.errors import ConfigError, StorageFull

VERSION = 6  # of the conversion: raised when the same file becomes another model, or smollm2/ another
FULL = (errno.ENOSPC, errno.EDQUOT)
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelCache:
    directory: Path

    def converted(
        self,
        gguf: Path,
        beside: Path | None = None,
        target: Path | None = None,
        on_progress: Progress = lambda done, total: None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> Path:
        """The directory of the model in ``gguf``, converted if it is not there yet, or no longer whole.

        ``beside``: a folder of files to lay beside it. ``target``: another place than the cache's own.
        ``on_wait``: another process converts it now.

        Raises:
            ConfigError: the file cannot be read, is no GGUF, is damaged; or the cache cannot be written.
            ModelUnsupported: its family, quantisation or tokenizer is not served.
            StorageFull: there is no space for the conversion.
        """
        source = _source_hash(gguf)
        target = target or self.directory / f"{gguf.stem}-{source[:12]}-{VERSION}"
        if is_whole(target, source):
            return target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(target, on_wait):
                if not is_whole(target, source):
                    check_replaceable(target, CONVERTED)
                    self._convert(gguf, source, target, beside, on_progress)
        except OSError as error:
            raise self._unwritable(gguf, error) from error
        return target

    def _convert(
        self, gguf: Path, source: str, target: Path, beside: Path | None, on_progress: Progress
    ) -> None:
        for left in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
            shutil.rmtree(left, ignore_errors=True)
        plan = plan_of(GgufFile.open(gguf))
        needed, free = num_bytes(plan), shutil.disk_usage(target.parent).free
        if needed > free:
            raise StorageFull(
                f"model: converting {gguf.name} takes {needed >> 20} MB in {target.parent}, which has "
                f"{free >> 20} MB left; make room there, or set XDG_CACHE_HOME to a directory on another disk"
            )
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        try:
            write_model(plan, partial, on_progress)
            _record(partial, gguf, source)
            if beside:
                shutil.copytree(beside, partial, dirs_exist_ok=True)
            partial.chmod(0o755)
            shutil.rmtree(target, ignore_errors=True)
            os.rename(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _unwritable(self, gguf: Path, error: OSError) -> StorageFull | ConfigError:
        if error.errno in FULL:
            return StorageFull(
                f"model: no space left in {self.directory} while {gguf.name} was converted; make room there, "
                "or set XDG_CACHE_HOME to another disk"
            )
        return ConfigError(
            f"model: {gguf.name} cannot be converted into {self.directory}: {error.strerror or error}; set "
            "XDG_CACHE_HOME to a directory that can be written"
        )


def is_whole(directory: Path, source: str) -> bool:
    """Whether everything that was made of the file with the hash ``source`` is there as it was written."""
    try:
        record = json.loads((directory / CONVERTED).read_text(encoding="utf-8"))
        return (record["version"], record["source_hash"]) == (VERSION, source) and all(
            (directory / name).stat().st_size == size and _hash(directory / name) == file_hash
            for name, (size, file_hash) in record["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _record(directory: Path, gguf: Path, source: str) -> None:
    files = {
        path.name: (path.stat().st_size, _hash(path))
        for path in sorted(directory.iterdir())
        if path.is_file()
    }
    record = {"version": VERSION, "source": str(gguf), "source_hash": source, "files": files}
    (directory / CONVERTED).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _source_hash(gguf: Path) -> str:
    try:
        return _hash(gguf)
    except OSError as error:
        raise ConfigError(f"model: {gguf} cannot be read: {error.strerror}") from error


def _hash(path: Path) -> str:
    state = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def check_replaceable(target: Path, record: str) -> None:
    """
    Raises:
        ConfigError: something lies there that was not made here.
    """
    if target.exists() and not (target / record).is_file() and (target.is_file() or any(target.iterdir())):
        raise ConfigError(f"model: {target} holds something else; name another directory, or remove it")


@contextmanager
def locked(target: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lets one process at a time make ``target``."""
    with open(target.parent / f".{target.name}.lock", "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
