from __future__ import annotations

import asyncio

from services.kv_store.node.uploader import Uploader
from shared.errors import Unavailable


async def test_everything_gets_there_however_often_it_fails_and_each_once() -> None:
    failures = {"a": 3, "c": 1}
    done: list[str] = []

    async def upload(chunk_id: str) -> None:
        await asyncio.sleep(0)
        if failures.get(chunk_id, 0):
            failures[chunk_id] -= 1
            raise Unavailable("down")
        done.append(chunk_id)

    uploader = Uploader(upload, first_delay_s=0.0)
    uploader.add(["a", "b", "a"])
    uploader.add(["c", "b"])
    await uploader.idle()
    assert sorted(done) == ["a", "b", "c"]
    uploader.add(["d"])
    await uploader.idle()
    assert done[-1] == "d"


async def test_a_closed_one_stops_in_the_middle() -> None:
    started = asyncio.Event()

    async def upload(chunk_id: str) -> None:
        started.set()
        await asyncio.Event().wait()

    uploader = Uploader(upload)
    uploader.add(["a", "b", "c"])
    await started.wait()
    await uploader.close()
    await uploader.idle()
