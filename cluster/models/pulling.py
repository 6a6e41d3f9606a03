"""Brings a model from the Hugging Face hub: weights as safetensors, configuration and tokenizer, nothing
else. No code of the model's is run, and no pickle read.

A revision is a commit or a tag, so that the same name stays the same model. Files arrive in a directory
beside the model's place, each going on where it broke off, are checked against the hub's hashes, and are
renamed into place together.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.models.cache import check_replaceable, locked
from cluster.models.names import PULLED
from shared.errors import ConfigError, CorruptData, StorageFull

CONFIG = "config.json"
WEIGHTS = "*.safetensors"
# of the repository's top directory
WANTED = (
    CONFIG,
    WEIGHTS,
    "*.safetensors.index.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.*",
    "LICENSE*",
)
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """``sha256``: of large files, by the hub; empty of others."""

    name: str
    num_bytes: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    commit: str
    files: tuple[HubFile, ...]


class Hub(Protocol):
    """Raises ``KvquiltError`` only."""

    def tags(self, hub_id: str) -> Mapping[str, str]:
        """Tag → commit."""

    def snapshot(self, hub_id: str, commit: str) -> Snapshot: ...

    def download(self, hub_id: str, commit: str, name: str, directory: Path) -> None:
        """Into the directory, going on where an earlier try broke off."""


def pull(
    hub: Hub,
    hub_id: str,
    revision: str,
    target: Path,
    check: Callable[[Path], None],
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Returns the directory of the model, ``target``.

    ``check``: of a directory with ``config.json``, before the weights are downloaded.

    Raises:
        ConfigError: the revision is neither a commit nor a tag; there is no safetensors; ``target`` holds
            something else.
        StorageFull: there is no space for it.
        CorruptData: a file arrived otherwise than the hub has it.
        KvquiltError: the hub refused, or ``check`` did.
    """
    if _is_pulled(target, hub_id, revision):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target, on_wait):
        if _is_pulled(target, hub_id, revision):
            return target
        check_replaceable(target, PULLED)
        snapshot = hub.snapshot(hub_id, _commit(hub, hub_id, revision))
        files = _wanted(hub_id, snapshot)
        partial = target.parent / f".{target.name}.partial"
        partial.mkdir(exist_ok=True)
        for file in files:
            if file.name == CONFIG:
                _bring(hub, hub_id, snapshot.commit, file, partial)
                check(partial)
        _check_space(files, partial)
        for file in files:
            _bring(hub, hub_id, snapshot.commit, file, partial)
        shutil.rmtree(partial / ".cache", ignore_errors=True)
        record = {"id": hub_id, "revision": revision, "commit": snapshot.commit}
        (partial / PULLED).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        os.rename(partial, target)
    return target


def _is_pulled(target: Path, hub_id: str, revision: str) -> bool:
    try:
        record = json.loads((target / PULLED).read_text(encoding="utf-8"))
        return record["id"] == hub_id and revision in (record["revision"], record["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _commit(hub: Hub, hub_id: str, revision: str) -> str:
    if COMMIT.fullmatch(revision):
        return revision
    tags = hub.tags(hub_id)
    if revision not in tags:
        known = f" (tags: {', '.join(sorted(tags)[:5])})" if tags else ""
        raise ConfigError(
            f"model: {revision!r} is neither a commit (40 hex digits) nor a tag of {hub_id}{known}; a branch "
            "would be another model tomorrow"
        )
    return tags[revision]


def _wanted(hub_id: str, snapshot: Snapshot) -> tuple[HubFile, ...]:
    files = tuple(
        file
        for file in snapshot.files
        if any(fnmatch.fnmatchcase(file.name, p) for p in WANTED) and "/" not in file.name
    )
    names = {file.name for file in files}
    if CONFIG not in names:
        raise ConfigError(f"model: {hub_id} holds no {CONFIG}; it is no model of transformers")
    if not fnmatch.filter(names, WEIGHTS):
        raise ConfigError(
            f"model: {hub_id} holds no safetensors, and other weights are pickles, which are not read; take "
            "a revision or a model that has them"
        )
    return files


def _check_space(files: tuple[HubFile, ...], partial: Path) -> None:
    here = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    needed, free = sum(file.num_bytes for file in files) - here, shutil.disk_usage(partial).free
    if needed > free:
        raise StorageFull(
            f"model: {needed >> 20} MB are to be downloaded into {partial.parent}, which has {free >> 20} MB "
            "left; make room there, or name a directory on another disk by --to"
        )


def _bring(hub: Hub, hub_id: str, commit: str, file: HubFile, partial: Path) -> None:
    path = partial / file.name
    if not _is_right(path, file):
        path.unlink(missing_ok=True)
        hub.download(hub_id, commit, file.name, partial)
        if not _is_right(path, file):
            path.unlink(missing_ok=True)
            raise CorruptData(
                f"model: {file.name} of {hub_id} arrived otherwise than the hub has it; pull it again"
            )


def _is_right(path: Path, file: HubFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.num_bytes:
        return False
    if not file.sha256:
        return True
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
