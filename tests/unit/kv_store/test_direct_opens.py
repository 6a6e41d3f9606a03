"""Who opens a chunk that its node lacks may read it in the object store."""

from __future__ import annotations

import pytest

from services.kv_store.blobs.protocol import Link
from services.kv_store.fetching.config import FetchConfig
from services.kv_store.tiers.chunk_names import blob_of
from shared.kv_types import RemoteFile
from tests.dict_blobs import DictBlobs
from tests.unit.kv_store.large_chunks import A, B, Make, large, nobody


class LinkedBlobs(DictBlobs):
    def link(self, name: str) -> Link:
        return Link(f"https://server/{name}?signature=s", "/ca.pem")


@pytest.fixture
def linked(stored: DictBlobs) -> LinkedBlobs:
    """As ``stored``; others can read there, too."""
    blobs = LinkedBlobs()
    blobs.data = stored.data
    return blobs


async def test_a_first_miss_is_read_from_the_object_store_and_the_second_copied(
    make: Make, linked: LinkedBlobs
) -> None:
    tiers = make(linked)
    (opened,) = await tiers.open([A], nobody(), direct=True)
    assert opened.remote == RemoteFile(f"https://server/{blob_of(A)}?signature=s", "/ca.pem")
    assert (opened.path, opened.tier) == ("", "objects")
    assert "signature" not in repr(opened)
    assert tiers.find(A) is None
    assert tiers.counters["direct_opens"] == 1
    assert tiers.leased(A), "the object is not collected meanwhile"

    (opened,) = await tiers.open([A], nobody(), direct=True)
    assert opened.remote is None
    assert opened.path
    assert await tiers.fetched(A, nobody())
    (opened,) = await tiers.open([A], nobody(), direct=True)
    assert (opened.tier, opened.progress) == ("disk", "")
    assert tiers.counters["direct_opens"] == 1


async def test_who_needs_a_file_gets_one_at_the_first_miss(make: Make, linked: LinkedBlobs) -> None:
    tiers = make(linked)
    (opened,) = await tiers.open([A], nobody())
    assert opened.remote is None
    assert opened.path


async def test_misses_before_a_copy_are_a_setting(make: Make, linked: LinkedBlobs) -> None:
    tiers = make(linked, fetch=FetchConfig(part_bytes=40_000, copy_from_miss=3))
    opened = [(await tiers.open([A], nobody(), direct=True))[0] for _ in range(3)]
    assert [o.remote is not None for o in opened] == [True, True, False]
    with pytest.raises(ValueError, match="copy_from_miss"):
        FetchConfig(copy_from_miss=0)


async def test_what_is_on_its_way_damaged_or_near_is_not_read_from_the_object_store(
    make: Make, linked: LinkedBlobs
) -> None:
    linked.put(blob_of(B), large(B)[:-1])
    tiers = make(linked)
    tiers.prefetch([A], nobody())
    (opened,) = await tiers.open([B], nobody())
    assert not opened.exists
    opened_now = await tiers.open([A, B], nobody(), direct=True)
    assert [o.remote for o in opened_now] == [None, None]
    near = make(linked, prefer_peers=True)
    assert (await near.open([A], nobody(), direct=True))[0].remote is None


async def test_what_its_reader_will_receive_itself_is_not_brought_before(
    make: Make, linked: LinkedBlobs
) -> None:
    tiers = make(linked)
    tiers.prefetch([A], nobody(), direct=True)
    (opened,) = await tiers.open([A], nobody(), direct=True)
    assert opened.remote is not None
    tiers.prefetch([A], nobody(), direct=True)  # the next miss copies
    assert await tiers.fetched(A, nobody())
    assert (tiers.counters["direct_opens"], tiers.counters["prefetches"]) == (1, 1)
