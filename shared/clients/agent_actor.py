"""Finds the store's agent of a node: the one thing about it that only Ray knows."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

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
