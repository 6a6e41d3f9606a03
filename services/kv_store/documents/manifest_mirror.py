"""Manifests in the object store, where they are the truth, with a mirror on the home node's disk that answers
for it.

What is changed is changed in the bucket first. A mirror that may differ from the bucket (after the start, or
after a change whose end is not known) is made the same by comparing listings; only what differs travels.

The bucket's marker ``kvquilt.json`` names the bucket and the version of the layout. Files that are not this
bucket's mirror were a truth of their own, of a store that had no object store (yet): they are added to the
bucket. A mirror's surplus, on the other hand, was removed from the bucket by another home, and goes.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.documents.manifest_files import ManifestFiles, manifests_in
from services.kv_store.documents.manifest_json import decode, is_damaged
from shared.errors import FailedPrecondition, NewerFormat, NotFound, Unavailable

log = logging.getLogger(__name__)

MARKER = "kvquilt.json"
_LAYOUT_VERSION = 1
_MOST_AT_ONCE = 16
_TRIES = 3


class ManifestMirror:
    """Methods raise like ``Blobs`` and ``ManifestFiles``."""

    def __init__(self, files: ManifestFiles, objects: Blobs) -> None:
        self._files, self._objects = files, objects

    def look(self) -> None:
        """Whether the object store answers; what it holds is not looked at."""
        self._objects.stat(MARKER)

    def put(self, name: str, data: bytes) -> None:
        self._objects.put(name, data)
        self._files.put(name, data)

    def remove(self, name: str) -> None:
        self._objects.delete(name)
        self._files.remove(name)

    def second(self, name: str) -> bytes | None:
        """The bucket's, whatever it holds; None: there is none."""
        return self._fetch(name)

    def put_second(self, name: str, data: bytes) -> None:
        self._objects.put(name, data)

    def heal(self, name: str) -> bool:
        """Fetches one whose file is damaged or lost; whether there was a good one."""
        data = self._fetch_whole(name)
        if data is None or is_damaged(name, data, self._files.keys):
            return False
        self._files.put(name, data)
        return True

    def sync(self, touched: set[str]) -> None:
        """Makes bucket and mirror agree; may be repeated wherever it ended. Adds the names whose files may
        change to ``touched``.

        Raises:
            NewerFormat: a later version of kvquilt laid the bucket out.
        """
        marker = self._marker()
        is_mirror = marker is not None and self._files.bucket() == marker
        there = {blob.name: blob.version for blob in manifests_in(self._objects)}
        here = {
            name: md5(data).hexdigest()
            for name in self._files.names()
            if (data := self._files.read(name)) is not None
        }
        differing = [name for name, version in there.items() if here.get(name) != version]
        surplus = [name for name in here if name not in there]
        touched.update(differing, surplus)
        log.info(
            "%d manifests in the bucket, %d to fetch, %d only here", len(there), len(differing), len(surplus)
        )
        _each(self._take_over if is_mirror else self._merge, differing)
        _each(self._files.remove if is_mirror else self._upload, surplus)
        self._files.now_mirrors(marker or self._new_marker())

    def _take_over(self, name: str) -> None:
        """The bucket's is what counts, unless it is damaged and ours is not. (A server whose versions are not
        the MD5 of the bytes makes us look at all of them.)"""
        theirs, ours = self._fetch_whole(name), self._files.read(name)
        if theirs is None or theirs == ours:
            return
        if not is_damaged(name, theirs, self._files.keys):
            self._files.put(name, theirs)
        elif ours is not None and not is_damaged(name, ours, self._files.keys):
            log.warning("the object of manifest %s is damaged; it is restored from this node's", name)
            self._objects.put(name, ours)
        else:
            log.error("manifest %s is damaged in the object store; the document must be ingested again", name)
            self._files.put_aside(name, theirs)

    def _merge(self, name: str) -> None:
        """Both were truths, so the document that was made later counts."""
        theirs, ours = self._fetch_whole(name), self._files.read(name)
        if theirs is not None and ours is not None and _created_s(ours) > _created_s(theirs):
            self._objects.put(name, ours)
        else:
            self._take_over(name)

    def _upload(self, name: str) -> None:
        if (data := self._files.read(name)) is not None:
            self._objects.put(name, data)

    def _fetch_whole(self, name: str) -> bytes | None:
        """Read again where it comes damaged: it may be well where it is kept. Damaged: whenever it came."""
        for _ in range(_TRIES):
            data = self._fetch(name)
            if data is None or not is_damaged(name, data, self._files.keys):
                break
        return data

    def _fetch(self, name: str) -> bytes | None:
        try:
            return b"".join(self._objects.read(name))
        except NotFound:
            return None

    def _marker(self) -> bytes | None:
        marker = self._fetch(MARKER)
        if marker != self._files.bucket() and marker != self._fetch(MARKER):
            raise Unavailable("the object store says now this and now that of the same object; retry")
        if marker is not None:
            try:
                version = int(json.loads(marker)["version"])
            except (ValueError, KeyError, TypeError):
                raise FailedPrecondition(
                    f"objects.bucket: its {MARKER} is not one of ours; choose another bucket or prefix"
                ) from None
            if version > _LAYOUT_VERSION:
                raise NewerFormat(
                    "objects.bucket: a later version of kvquilt laid it out; update kvquilt here"
                )
        return marker

    def _new_marker(self) -> bytes:
        """Put last: until it is there, the files of this node are not a mirror, and are uploaded again after
        a crash."""
        marker = json.dumps({"version": _LAYOUT_VERSION, "id": uuid.uuid4().hex}).encode()
        self._objects.put(MARKER, marker)
        return marker


def _each(call: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="manifests") as pool:
        for _ in pool.map(call, names):
            pass


def _created_s(data: bytes) -> float:
    """Returns when the document was made: before all others if the bytes are damaged, after them if a later
    version of this program wrote them."""
    try:
        return decode(data).created_s
    except ValueError:
        return -math.inf
    except NewerFormat:
        return math.inf
