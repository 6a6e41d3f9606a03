from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.errors import InvalidRequest
from shared.request import RequestContext
from tests.kv_chunks import chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, over_grpc


async def test_what_the_caller_s_own_stream_raises_reaches_the_caller(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        raise InvalidRequest("no more")

    async with over_grpc(agent_on(tmp_path, "home", KnownNodes())) as client:
        with pytest.raises(InvalidRequest, match="no more"):
            await client.put(RequestContext.create(), chunk_id_of(0), 100, pieces())
