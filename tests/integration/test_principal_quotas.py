"""Whether a document may be stored by its size is asked of the front and answered by the home node."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.admission.settings import PrincipalLimits
from shared.clients.kv_store import KvStoreClient
from shared.errors import StorageFull
from shared.kv_types import Manifest, ManifestChunk
from shared.limits import RequestLimits
from shared.request import RequestContext
from tests.kv_chunks import chunk_id_of
from tests.kv_stores import (
    FrontHandlers,
    FrontWithHome,
    HandleTransport,
    KnownNodes,
    agent_on,
    over_grpc,
)


async def test_the_question_and_the_refusal_travel(tmp_path: Path) -> None:
    """Without keys everybody is the operator, who has a limit like others."""
    nodes = KnownNodes()
    limits = RequestLimits(per_principal=PrincipalLimits(stored_bytes=100))
    agent = agent_on(tmp_path, "home", nodes, limits=limits)
    ctx = RequestContext.create(tenant="acme", deadline_ms=60_000)
    document = Manifest("acme", "books", "1", chunks=(ManifestChunk(chunk_id_of(0), (1, 2, 3)),))
    async with over_grpc(agent) as nodes.stores["home"]:
        front = KvStoreClient(HandleTransport(FrontHandlers(FrontWithHome(nodes, "home"))))
        await front.check_quota(ctx, document, 33)
        with pytest.raises(
            StorageFull, match=r"operator of tenant 'acme' .* would have 102, more than the 100"
        ):
            await front.check_quota(ctx, document, 34)
    await agent.close()
