"""The documents of all tenants, kept by the home node as immutable manifests.

The truth is the object store (``manifest_mirror``) or, without one, the home node's disk
(``manifest_files``). Who refers to what is derived (``catalog``), never stored.

A document that goes away leaves a manifest in ``removed/`` until its chunks are deleted: there it is a
journal, so that a crash between removing the document and deleting its chunks leaves no chunk behind.

What a damaged manifest refers to is not known. While neither of its two copies is whole, every chunk counts
as referenced: no garbage goes, and nothing of what is removed.

Long, because every change goes through the same steps under the same two locks: write, note, count again.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from services.kv_store.blobs.disk import Disk, storing
from services.kv_store.blobs.protocol import Blobs
from services.kv_store.blobs.reserve import Reserve
from services.kv_store.documents.catalog import Catalog, Document, Removal
from services.kv_store.documents.manifest_copies import ManifestCopies
from services.kv_store.documents.manifest_files import ManifestFiles
from services.kv_store.documents.manifest_json import decode, decode_stored, encode, is_damaged
from services.kv_store.documents.manifest_mirror import ManifestMirror
from services.kv_store.documents.manifest_names import name_of
from services.kv_store.documents.manifest_scrub import damage_detail, foreign_detail, look_at_both
from services.kv_store.documents.sealed_json import key_id_of
from shared.errors import (
    CorruptData,
    FailedPrecondition,
    InvalidRequest,
    KvquiltError,
    NewerFormat,
    NotFound,
    Unavailable,
)
from shared.kv_format import SealKeys
from shared.kv_reports import DamagedRecord
from shared.kv_types import AlikeDocuments, Chain, Manifest, ManifestChunk, ManifestPage
from shared.principals.principal import Principal

log = logging.getLogger(__name__)

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000
PAGE_BYTES = 1 << 20
LONGEST_DOCUMENT_ID = 2048
_UNSURE = "the documents are not known: the object store has not answered yet; retry"


class Documents:
    """Thread-safe; methods block on the disk and on the object store, if they do not say otherwise.

    ``ready``: they were the same as the bucket's once, so reading needs only this node. ``sure``: they still
    are as far as we know; after a change whose end is not known (the object store went away in the middle) we
    do not, until ``sync`` looked. Both are always true without an object store. Whatever needs them looks
    itself.

    Raises (any method): ``StorageFull``, ``InternalError``; with an object store also what ``Blobs`` raise.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk | None = None,
        objects: Blobs | None = None,
        keys: SealKeys | None = None,
    ) -> None:
        """Asks nothing of ``objects``. ``keys``: manifests are sealed with the current one, and believed if
        any of them sealed them; None: nothing is sealed."""
        self._keys = keys
        self._changing = threading.RLock()  # held by the one who changes manifests
        self._reading = threading.Lock()  # held while the catalog is looked at or changed, never for long
        with storing():
            self._files = ManifestFiles(directory, disk or Disk(), keys)
            self._reserve = Reserve(directory / "reserve", disk or Disk())
            self._reserve.hold()
            self._mirror = None if objects is None else ManifestMirror(self._files, objects)
            self._copies = ManifestCopies(self._files)
            self._manifests = self._mirror or self._copies
            if self._mirror is None:
                self._files.now_mirrors(None)
            self._catalog = self._scan(mend=True)
        self.ready = self.sure = self._mirror is None
        self._copied = self._mirror is not None
        self._failure: KvquiltError | None = None
        self._outage: KvquiltError | None = None

    @property
    def num_documents(self) -> int:
        return len(self._catalog.documents)

    @property
    def failure(self) -> KvquiltError | None:
        """Says why they are not sure, or cannot be changed now, as far as is known. Does not block."""
        return self._outage if self.sure else self._failure

    @property
    def num_damaged(self) -> int:
        """Documents of which no whole manifest is left, as far as is known. Does not block."""
        return len(self._catalog.damaged)

    @property
    def num_foreign(self) -> int:
        """Documents that cannot be read here: of a later version, or sealed with a secret that is not here.
        Does not block."""
        return len(self._catalog.newer)

    def check_known(self) -> None:
        """
        Raises:
            FailedPrecondition: it is not known what all documents refer to.
        """
        if self.num_damaged:
            raise FailedPrecondition(damage_detail(self.num_damaged))

    def look(self) -> None:
        """Asks the object store whether it answers. Blocks.

        Raises:
            KvquiltError: it does not, or refuses us.
        """
        try:
            if self._mirror is not None:
                self._mirror.look()
            self._outage = None
        except KvquiltError as error:
            self._outage = error
            raise

    def references(self, chunk_id: str) -> int:
        """Counts the documents that refer to the chunk, or may: documents of a later version are not read,
        damaged ones cannot be. Does not block.

        Raises:
            Unavailable: not sure.
        """
        if not self.sure:
            raise Unavailable(_UNSURE)
        with self._reading:
            return self._catalog.references[chunk_id] + self._catalog.num_unknown

    def documents(self) -> list[Document]:
        """All, of all tenants, as far as they are known here. Does not block."""
        with self._reading:
            return list(self._catalog.documents.values())

    def pending(self) -> list[Removal]:
        """Documents that are gone and whose chunks may still be stored; none while not sure, or while others
        are damaged. Does not block."""
        with self._reading:
            return list(self._catalog.pending.values()) if self.sure and not self.num_damaged else []

    def finish(self, removal: Removal) -> None:
        """The chunks of ``removal`` that nothing refers to are deleted everywhere."""
        with self._change(removal.name):
            self._manifests.remove(removal.name)

    def put(self, manifest: Manifest, stored_by: str = "") -> Removal | None:
        """Stores a document in one step, as that of the principal ``stored_by``; what it replaced is pending.
        Until it is replaced, its chunks count as referenced.

        Raises:
            InvalidRequest: a name or the id is not allowed.
            NewerFormat: a later version of kvquilt stored it; it stays.
        """
        if not 0 < len(manifest.document_id) <= LONGEST_DOCUMENT_ID:
            raise InvalidRequest(f"manifest.document_id: must have 1 to {LONGEST_DOCUMENT_ID} characters")
        name = name_of((manifest.tenant, manifest.collection, manifest.document_id))
        data = encode(manifest, self._keys, stored_by)
        with self._change(name):
            removal = self._note_removal(name)
            self._manifests.put(name, data)
        return removal

    def remove(self, tenant: str, collection: str, document_id: str) -> Removal:
        """
        Raises:
            NotFound: no such document.
            NewerFormat: a later version of kvquilt stored it; it stays.
        """
        name = name_of((tenant, collection, document_id))
        with self._change(name):
            removal = self._reserve.lend(lambda: self._note_removal(name))
            if removal is None and name in self._catalog.damaged:
                self._files.drop_aside(name)
                removal = Removal(name, ())  # what it referred to becomes garbage
            if removal is not None:
                self._manifests.remove(name)
        if removal is None:
            raise absent(collection, document_id)
        return removal

    def get(self, tenant: str, collection: str, document_id: str) -> Manifest:
        """
        Raises:
            NotFound: no such document.
            CorruptData: its manifest is damaged wherever it is kept.
            NewerFormat: a later version of kvquilt stored it.
        """
        self._make_ready()
        name = name_of((tenant, collection, document_id))
        with storing():
            manifest = self._read(name) or self._read_healed(name)
        if manifest is None:
            raise absent(collection, document_id)
        return manifest

    def find(self, tenant: str, collection: str, document_id: str) -> Document | None:
        """Returns what is known of a document without reading it; None: there is none."""
        self._make_ready()
        with self._reading:
            return self._catalog.find((tenant, collection, document_id))

    def readable(self, who: Principal, chunk_ids: Iterable[str]) -> list[str]:
        """Those that are in documents of its tenant that ``who`` may read, or that chunks of them are
        computed behind."""
        self._make_ready()
        with self._reading:
            return [
                chunk_id
                for chunk_id in chunk_ids
                if any(
                    document.tenant == who.tenant and document.shows(who, chunk_id)
                    for document in self._catalog.having(chunk_id)
                )
            ]

    def having(self, kv_ids: Iterable[str]) -> dict[str, list[Document]]:
        """The documents that have each of these, or chunks that are computed behind it."""
        with self._reading:
            return {kv_id: self._catalog.having(kv_id) for kv_id in kv_ids}

    def page(
        self,
        tenant: str,
        collection: str,
        start_after: str,
        limit: int,
        summary: bool,
        who: Principal | None = None,
        descending: bool = False,
    ) -> ManifestPage:
        """Documents of ``collection`` (empty: of all) in the order of collection and id, or the opposite one,
        up to ``limit`` or 1 MiB; of ``who`` those that it may read, as far as it may.

        ``start_after`` is the ``Manifest.cursor`` of the last one known.
        """
        self._make_ready()
        limit = min(limit or DEFAULT_PAGE, LARGEST_PAGE)
        manifests: list[Manifest] = []
        num_bytes = 0
        with self._reading:
            keys = self._catalog.keys_after(tenant, collection, start_after, who, descending)
        for key in keys:
            if len(manifests) >= limit or num_bytes >= PAGE_BYTES:
                return ManifestPage(tuple(manifests), truncated=True)
            try:
                stored = self.get(*key)
                manifest = stored if who is None else stored.readable_by(who)
                if manifest is None:
                    continue  # has other readers meanwhile
                num_bytes += 0 if summary else self._files.size_bytes(name_of(key))
            except (NotFound, CorruptData, FileNotFoundError):
                continue  # removed meanwhile; damaged ones are in the log
            manifests.append(_summary(manifest) if summary else manifest)
        return ManifestPage(tuple(manifests), truncated=False)

    def counts(self, tenant: str, who: Principal | None = None) -> list[AlikeDocuments]:
        """The tenant's documents, of ``who`` those that it may read, by collection and by what they were made
        for."""
        self._make_ready()
        with self._reading:
            return self._catalog.counts(tenant, who)

    def chain(self, tenant: str, parent_id: str) -> Chain | None:
        """Finds the chain that a chunk with this parent is computed behind, by any document of the tenant;
        None: none has it."""
        self._make_ready()
        with self._reading:
            having = [document for document in self._catalog.having(parent_id) if document.tenant == tenant]
        for key in [document.key for document in having if parent_id in document.parent_ids]:
            with suppress(NotFound, CorruptData):  # removed meanwhile; damaged ones are in the log
                if (chain := self.get(*key).chain_to(parent_id)) is not None:
                    return chain
        return None

    def verify(self, repair: bool = False) -> list[DamagedRecord]:
        """Reads both copies of every manifest; ``repair``: what is damaged is restored by the other one."""
        self._make_ready()
        with self._reading:
            names = sorted({*self._catalog.documents, *self._catalog.damaged})
        found: list[DamagedRecord] = []
        for name in names:
            with storing(), self._changing:
                if name in self._catalog.documents or name in self._catalog.damaged:  # still
                    found += look_at_both(name, self._files, self._manifests, repair)
                    self._note_damage(name)
        return found

    def seal(self, change: bool) -> tuple[int, int]:
        """Counts the documents whose manifests have no seal of the current key, and those that were given
        one: none unless ``change``."""
        num_unsealed = num_sealed = 0
        keys = self._keys
        for name in [] if keys is None else [name_of(document.key) for document in self.documents()]:
            data = self._files.read(name)
            if keys is None or data is None or keys.is_current(key_id_of(data)):
                continue
            if change:
                with self._change(name):
                    data = self._files.read(name)
                    if data is not None and not is_damaged(name, data, keys):
                        manifest, stored_by = decode_stored(data, keys, name)
                        self._manifests.put(name, encode(manifest, keys, stored_by))
                num_sealed += 1
            else:
                num_unsealed += 1
        return num_unsealed, num_sealed

    def hold_reserve(self) -> None:
        """Keeps room for removals again, once there is some."""
        with storing(), self._changing:
            self._reserve.hold()

    def renew_copies(self) -> None:
        """Once: second copies for manifests that have none, as in stores of earlier versions, or another one,
        after a crash."""
        if not self._copied:
            for name in self._copies.differing():
                with storing(), self._changing:
                    self._copies.renew(name)
            self._copied = True

    def sync(self) -> None:
        """Makes this node's manifests the bucket's, if they may differ."""
        touched: set[str] = set()
        known_failure = self._failure
        with storing(), self._changing:
            if self._mirror is None or self.sure:
                return
            # of somebody who looked while we waited
            if self._failure is not None and self._failure is not known_failure:
                raise type(self._failure)(self._failure.detail)
            try:
                self._mirror.sync(touched)
            except KvquiltError as error:
                self._failure = error
                raise
            finally:
                for name in touched:
                    self._reload(name)
            self.ready = self.sure = True

    def check_invariants(self) -> None:
        """The catalog is what this node's manifests say."""
        with self._changing, self._reading:
            found = self._scan(mend=False)
            assert self._catalog.documents == found.documents
            assert self._catalog.pending == found.pending
            assert self._catalog.newer == found.newer
            assert self._catalog.damaged == found.damaged
            self._catalog.check_invariants()

    @contextmanager
    def _change(self, name: str) -> Iterator[None]:
        """Around a change of ``name``: afterwards the catalog says what the files say, however far it
        came."""
        with storing(), self._changing:
            self.sync()
            if name in self._catalog.newer:
                raise NewerFormat(foreign_detail("this document was"))
            try:
                yield
            except BaseException:
                self.sure = self._mirror is None
                raise
            finally:
                self._reload(name)

    def _note_removal(self, name: str) -> Removal | None:
        """Writes the journal of a document that is about to go, if there is one."""
        document = self._catalog.documents.get(name)
        if document is None:
            return None
        removal = Removal(f"removed/{uuid.uuid4().hex}.json", document.chunk_ids)
        try:
            chunks = tuple(ManifestChunk(c, ()) for c in document.chunk_ids)
            self._manifests.put(removal.name, encode(Manifest(*document.key, chunks=chunks), self._keys))
        finally:
            self._reload(removal.name)
        return removal

    def _reload(self, name: str) -> None:
        data = self._files.read(name)
        if data is not None and not is_damaged(name, data, self._keys):
            self._files.drop_aside(name)
        with self._reading:
            _load(self._catalog, name, data)
            if data is None and self._files.is_aside(name):
                self._catalog.damaged.add(name)

    def _note_damage(self, name: str) -> None:
        """Notes the damage. What a document refers to stays known while this process lives; that it is
        damaged is told."""
        data = self._files.read(name)
        if data is None or is_damaged(name, data, self._keys):
            with self._reading:
                self._catalog.damaged.add(name)
        elif name in self._catalog.damaged:
            self._reload(name)

    def _read(self, name: str) -> Manifest | None:
        """None: not there, or damaged."""
        try:
            return None if (data := self._files.read(name)) is None else decode(data, self._keys, name)
        except ValueError as error:
            log.error("manifest %s is damaged: %s", name, error)
            return None

    def _read_healed(self, name: str) -> Manifest | None:
        """One whose file is damaged or lost, from the object store. None: there is no such document.

        Raises:
            CorruptData: there is no good one.
        """
        if name not in self._catalog.documents:
            return None
        with self._changing:
            if self._manifests.heal(name):
                self._reload(name)
        manifest = self._read(name)
        if manifest is None and name in self._catalog.documents:
            self._note_damage(name)
            raise CorruptData("the document's manifest is damaged; ingest the document again")
        return manifest

    def _make_ready(self) -> None:
        if not self.ready:
            self.sync()

    def _scan(self, mend: bool) -> Catalog:
        """``mend``: what is damaged is restored from its second copy, or set aside until the object store has
        a whole one, or the document is ingested again."""
        catalog = Catalog(self._keys)
        for name in self._files.names():
            if _load(catalog, name, self._files.read(name)) or not mend:
                continue
            healed = self._mirror is None and self._copies.heal(name)
            if not (healed and _load(catalog, name, self._files.read(name))):
                self._files.set_aside(name)
        catalog.damaged.update(name for name in self._files.aside() if name not in catalog.documents)
        return catalog


def _load(catalog: Catalog, name: str, data: bytes | None) -> bool:
    """Whether it is whole."""
    try:
        catalog.load(name, data)
    except ValueError as error:
        log.error("manifest %s is damaged: %s", name, error)
        return False
    return True


def _summary(manifest: Manifest) -> Manifest:
    return replace(manifest, chunks=tuple(replace(c, token_ids=(), text="") for c in manifest.chunks))


def absent(collection: str, document_id: str) -> NotFound:
    return NotFound(f"document {document_id!r}: not in collection {collection!r}")
