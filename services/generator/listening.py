"""Asks the nodes' agents in the background what replicas hold, while questions come: a decision never
waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from services.generator.replica_choice import ReplicaChoice
from shared.errors import Unavailable

log = logging.getLogger(__name__)

PERIOD_S = 0.5
Notices = Sequence[Mapping[str, object]]
AskNode = Callable[[str, Mapping[str, tuple[int, int]]], Awaitable[Notices]]
"""Of a node, from where this router stands. Raises ``Unavailable``."""


class Listener:
    """For one event loop, whose task it is."""

    def __init__(self, choice: ReplicaChoice, ask: AskNode, period_s: float = PERIOD_S) -> None:
        self._choice, self._ask, self._period_s = choice, ask, period_s
        self._task: asyncio.Task[None] | None = None
        self._silent: set[str] = set()

    def wake(self) -> None:
        """A question has come. It ends by itself when none comes any more."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._while_in_use())

    async def _while_in_use(self) -> None:
        while self._choice.in_use:
            await asyncio.gather(*map(self._hear, self._choice.nodes))
            await asyncio.sleep(self._period_s)

    async def _hear(self, node_id: str) -> None:
        try:
            notices = await self._ask(node_id, self._choice.known(node_id))
        except Unavailable as error:
            if node_id not in self._silent:
                log.warning("nothing is heard of what replicas on node %s hold: %s", node_id, error.detail)
            self._silent.add(node_id)
            return
        self._silent.discard(node_id)
        self._choice.heard(node_id, notices)
