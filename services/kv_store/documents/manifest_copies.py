"""Manifests that are the truth themselves, as without an object store, with a second copy of each on the same
disk: for bytes that go wrong, not for disks that die.

    <directory>/copies/manifests/…    what <directory>/manifests/… should say

The copy follows the manifest: it is written after it and removed before it, so a document that is gone has
none, and one that says something else than a whole manifest is an older one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from services.kv_store.documents.manifest_files import DOCUMENTS, ManifestFiles
from services.kv_store.documents.manifest_json import is_damaged
from shared.errors import KvquiltError

log = logging.getLogger(__name__)
_COPIES = "copies/"


class ManifestCopies:
    """Methods raise like ``ManifestFiles``."""

    def __init__(self, files: ManifestFiles) -> None:
        self._files = files

    def put(self, name: str, data: bytes) -> None:
        self._files.put(name, data)
        self.put_second(name, data)

    def remove(self, name: str) -> None:
        if name.startswith(DOCUMENTS):
            self._files.remove(_COPIES + name)
        self._files.remove(name)

    def second(self, name: str) -> bytes | None:
        """The other copy, whatever it holds; None: there is none."""
        return self._files.read(_COPIES + name)

    def put_second(self, name: str, data: bytes) -> None:
        """Writes the second copy. Where there is no room for it, there is no copy: an older one would be
        worse than none."""
        if not name.startswith(DOCUMENTS):
            return
        try:
            self._files.put(_COPIES + name, data)
        except KvquiltError as error:
            log.warning("manifest %s has no second copy: %s", name, error.detail)
            self._files.remove(_COPIES + name)

    def heal(self, name: str) -> bool:
        """Restores one whose file is damaged or lost; whether there was a good copy."""
        data = self.second(name)
        if data is None or is_damaged(name, data, self._files.keys):
            return False
        log.warning("manifest %s was damaged; it is restored from its second copy", name)
        self._files.put(name, data)
        return True

    def differing(self) -> Iterator[str]:
        """Names of manifests whose copy is missing or says something else, and of copies of what is gone."""
        names = {name for name in self._files.names() if name.startswith(DOCUMENTS)}
        copies = {name.removeprefix(_COPIES) for name in self._files.names(_COPIES)}
        yield from sorted(copies - names - set(self._files.aside()))
        yield from (name for name in sorted(names) if self._files.read(name) != self.second(name))

    def renew(self, name: str) -> None:
        """Makes the copy of what is whole, and removes that of what is not there."""
        data = self._files.read(name)
        if data is None:
            self._files.remove(_COPIES + name)
        elif not is_damaged(name, data, self._files.keys):
            self.put_second(name, data)
