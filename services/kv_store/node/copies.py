"""Every copy of every chunk on a node, one by one: looked at, removed, and restored from a good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

from services.kv_store.fetching.sources import PeerSearch
from services.kv_store.fetching.verification import verify_object
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.tiers.chunk_files import verified
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.local import LocalTier
from services.kv_store.tiers.object_chunks import all_objects
from services.kv_store.upkeep.scrub import Copy
from shared.errors import CorruptData, NewerFormat, NotFound
from shared.kv_format import ChunkSummary


class NodeCopies:
    """``services.kv_store.upkeep.scrub.Copies`` of one node; ``with_objects``: and of the object store."""

    def __init__(self, node: NodeTiers, peers: Callable[[str], PeerSearch], with_objects: bool) -> None:
        self._node, self._peers, self._with_objects = node, peers, with_objects
        self.unsealed: set[tuple[str, str]] = set()

    @property
    def tiers(self) -> Sequence[str]:
        return ("memory", "disk", "objects") if self._with_objects else ("memory", "disk")

    def all(self) -> Iterator[Copy]:
        return chain(self._local(), self._objects())

    async def verify_copy(self, chunk_id: str, tier: str) -> int:
        """Reads every byte of a copy; ``tier``: memory, disk, pending or objects. Returns how many there
        were.

        Raises:
            NotFound: it is gone meanwhile.
            CorruptData: it is not what was stored.
            NewerFormat: this version cannot tell.
            StorageFull, Unavailable: it could not be read.
        """
        keys = self._node.keys
        if tier == "objects" and self._node.objects is not None:
            found = await self._node.in_threads(verify_object, self._node.objects, chunk_id, keys)
            return self._noted(found, tier)
        where = self._tier(tier)
        try:
            found = await self._node.in_threads(verified, where.path_of(chunk_id), chunk_id, keys)
            return self._noted(found, tier)
        except NotFound:
            # somebody removed the file behind our back
            await self._node.in_threads(where.check_again, chunk_id)
            raise

    async def remove_copy(self, chunk_id: str, tier: str) -> bool:
        """Whether it was there. A reader that has it open goes on."""
        if tier == "objects" and self._node.objects is not None:
            return await self._node.alone(chunk_id, partial(self._node.objects.delete, blob_of(chunk_id)))
        return await self._node.alone(chunk_id, partial(self._tier(tier).remove, chunk_id))

    async def restore(self, chunk_id: str) -> bool:
        """Replaces what is damaged by what is whole: local copies by a fetched one, the object by a local or
        a fetched one. Whether a good copy is where the truth should be now."""
        good = await self._node.alone(chunk_id, partial(self._remove_damaged, chunk_id))
        if good is None:
            await self._node.fetched(chunk_id, self._peers(chunk_id))
            good = next((tier for tier in self._node.own if tier.find(chunk_id) is not None), None)
        if good is None:
            return False
        if not await self._is_true(chunk_id):
            await self._node.put_copy(chunk_id, good.path_of(chunk_id))
        return True

    async def seal(self, chunk_id: str) -> bool:
        """The truth is sealed where it is; other copies go, for what is fetched again is sealed."""
        copy = self._node.disk.find(chunk_id)
        if copy is None or not copy.primary:
            if (chunk_id, "objects") not in self.unsealed:
                for tier in self._node.own[::-1]:
                    await self._node.alone(chunk_id, partial(tier.remove, chunk_id))
                return True
            await self._node.fetched(chunk_id, self._peers(chunk_id))
        good = next((tier for tier in self._node.own[::-1] if tier.find(chunk_id) is not None), None)
        if good is None:
            return False
        await self._node.put_copy(chunk_id, good.path_of(chunk_id))
        return True

    def _noted(self, found: ChunkSummary, tier: str) -> int:
        """Its bytes."""
        keys, copy = self._node.keys, (found.header.chunk_id, tier)
        if keys is None or keys.is_current(found.key_id):
            self.unsealed.discard(copy)
        else:
            self.unsealed.add(copy)
        return found.size_bytes

    def _local(self) -> Iterator[Copy]:
        for tier in self._node.own:
            for copy in tier.copies():
                yield Copy(copy.chunk_id, tier.name_of(copy), copy.size_bytes)

    def _objects(self) -> Iterator[Copy]:
        if self._with_objects and self._node.objects is not None:
            for copy in all_objects(self._node.objects):
                yield Copy(copy.chunk_id, "objects", copy.size_bytes)

    async def _is_true(self, chunk_id: str) -> bool:
        """Whether the truth is whole."""
        if self._node.objects is None:
            copy = self._node.disk.find(chunk_id)
            return copy is not None and copy.primary
        try:
            await self.verify_copy(chunk_id, "objects")
        except (NotFound, CorruptData):
            return False
        return True

    def _remove_damaged(self, chunk_id: str) -> LocalTier | None:
        """The tier of a good copy, if there is one; damaged ones are removed."""
        good = None
        for tier in self._node.own:
            if tier.find(chunk_id) is not None:
                try:
                    verified(tier.path_of(chunk_id), chunk_id, self._node.keys)
                    good = tier
                except CorruptData:
                    tier.remove(chunk_id)
                except (NotFound, NewerFormat):
                    pass
        return good

    def _tier(self, name: str) -> LocalTier:
        return next((tier for tier in self._node.own if tier.name == name), self._node.disk)
