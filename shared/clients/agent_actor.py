"""Finds the store's agent of a node: the one thing about it that only Ray knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from shared.clients.kv_node import NodeFilesClient
from shared.clients.own_node import AgentConnection, OwnNode
from shared.clients.serve_transport import ServeTransport
from shared.errors import Unavailable
from shared.principals.credentials import ServiceIdentity
from shared.principals.services import credentials_of

log = logging.getLogger(__name__)

NAMESPACE = "kvquilt"
_ANSWER_S = 3.0


def actor_name(node_id: str) -> str:
    return f"kvquilt-kv-agent-{node_id}"


def own_node(application: str, node_id: str, identity: ServiceIdentity | None = None) -> OwnNode:
    """The store ``application`` on node ``node_id``, which the caller runs on. ``identity``: of the
    caller."""
    connect = partial(AgentConnection, credentials=credentials_of(identity))
    front = NodeFilesClient(ServeTransport(application, identity))
    return OwnNode(partial(agent_address, node_id), front, connect)


class NoticeCalls:
    """Calls by which holders of KV tell the agents of their nodes, and routers ask there
    (``shared.routing.noticeboard``). A router lives in whoever has a handle of the generator, where there is
    neither a setting of ours nor a secret: so this goes by Ray, which nobody outside can call.

    One event loop's."""

    def __init__(self) -> None:
        self._agents: dict[str, Any] = {}

    async def tell(self, node_id: str, notice: dict[str, object]) -> bool:
        """Whether it follows what was told before; otherwise a snapshot is needed.

        Raises:
            Unavailable: no agent answers there.
        """
        return bool(await self._ask(node_id, "told", notice))

    async def since(self, node_id: str, known: Mapping[str, tuple[int, int]]) -> list[dict[str, object]]:
        """
        Raises:
            Unavailable: no agent answers there.
        """
        return list(await self._ask(node_id, "notices", dict(known)))

    async def _ask(self, node_id: str, method: str, argument: object) -> Any:
        try:
            if node_id not in self._agents:
                self._agents[node_id] = await asyncio.to_thread(ray.get_actor, actor_name(node_id), NAMESPACE)
            call = getattr(self._agents[node_id], method).remote(argument)
            return await asyncio.wait_for(call, _ANSWER_S)
        except (RayError, ValueError, TimeoutError) as error:
            self._agents.pop(node_id, None)
            log.info("no agent on node %s: %s", node_id, error)
            raise Unavailable("the store's agent on this node is not running; retry") from None


async def agent_address(node_id: str) -> str:
    """Returns where the agent of ``node_id`` listens.

    Raises:
        Unavailable: none runs there now.
    """
    try:
        agent = await asyncio.to_thread(ray.get_actor, actor_name(node_id), NAMESPACE)
        return str(await asyncio.wait_for(agent.address.remote(), _ANSWER_S))
    except (RayError, ValueError, TimeoutError) as error:
        log.info("no agent on node %s: %s", node_id, error)
        raise Unavailable("the store's agent on this node is not running; retry") from None
