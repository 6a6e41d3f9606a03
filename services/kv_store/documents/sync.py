"""Keeps the home node's documents those of the object store, and knows whether it answers."""

from __future__ import annotations

import asyncio
import logging
import time

from services.kv_store.documents.documents import Documents
from shared.errors import KvquiltError

log = logging.getLogger(__name__)

LOOK_PAUSE_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0


async def keep_synced(documents: Documents, look_pause_s: float = LOOK_PAUSE_S) -> None:
    """For ever: looks at the object store, ever less often while it is down, so that others need not wait for
    it."""
    pause_s, looked_s = _FIRST_PAUSE_S, time.monotonic()
    while True:
        try:
            await asyncio.to_thread(documents.sync)
            if documents.failure is not None or time.monotonic() > looked_s + look_pause_s:
                await asyncio.to_thread(documents.look)
                looked_s = time.monotonic()
            pause_s = _FIRST_PAUSE_S
        except KvquiltError as error:
            log.warning("the documents cannot be compared with the object store: %s", error.detail)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s)
