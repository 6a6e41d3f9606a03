"""Room for a chunk that is on its way: a staged file of its size, and a reservation in the tier it is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.kv_store.blobs.staging import StagedFile
from services.kv_store.tiers.local import LocalTier, Reservation
from shared.errors import StorageFull


@dataclass(frozen=True, slots=True)
class Allocation:
    tier: LocalTier
    reservation: Reservation
    file: StagedFile

    def release(self) -> None:
        """Keeps what was written."""
        self.file.close()
        self.reservation.release()

    def discard(self) -> None:
        self.release()
        self.tier.staging.discard(self.file.path)


def allocate(tiers: Sequence[LocalTier], size: int, tail: bytes, tenant: str) -> Allocation:
    """A file with room for a chunk, in the first tier that has it for ``tenant``, the chunk's end in place.
    Blocks.

    Raises:
        StorageFull: no tier has room.
    """
    for tier in tiers:
        reservation = tier.reserve(size, tenant)
        if reservation is not None:
            try:
                file = tier.allocate(size, tenant)
                file.write(size - len(tail), tail)
                return Allocation(tier, reservation, file)
            except BaseException as error:
                reservation.release()
                if not isinstance(error, StorageFull):
                    raise
    raise StorageFull("no room for a copy in any tier of this node")
