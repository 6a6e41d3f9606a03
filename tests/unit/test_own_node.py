"""The way from a reader to the chunks on its node: the node's agent, where it is by now, the front."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.clients.own_node import OwnNode
from shared.errors import FailedPrecondition, KvquiltError, NotFound, Unavailable
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_directory import DirectoryStore

A = chunk_id_of(0)
CTX = RequestContext.create(deadline_ms=36_000_000)
DOWN = Unavailable("down")


class Agents:
    """``addresses`` are told one after the other, the last one again and again; at each of them stands a
    store of its own. Without addresses no agent is found."""

    def __init__(self, root: Path, *addresses: str) -> None:
        self._root, self.addresses = root, list(addresses)
        self.at: dict[str, Agent] = {name: Agent(root / name) for name in addresses}
        self.front = Agent(root / "front")
        self.num_found = 0
        self.now = 0.0

    async def find(self) -> str:
        self.num_found += 1
        await asyncio.sleep(0)
        if not self.addresses:
            raise DOWN
        return self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]

    def reader(self) -> OwnNode:
        return OwnNode(self.find, self.front, self.at.__getitem__, pause_s=2.0, clock=lambda: self.now)

    def calls(self) -> dict[str, list[str]]:
        return {name: agent.calls for name, agent in {**self.at, "front": self.front}.items() if agent.calls}


class Agent(DirectoryStore):
    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_every_call_goes_to_the_agent_and_its_address_is_asked_for_once(tmp_path: Path) -> None:
    agents = Agents(tmp_path, "a")
    reader = agents.reader()
    await asyncio.gather(*(reader.open(CTX, [A]) for _ in range(3)))
    path = Path(await reader.stage(CTX)) / "mine"
    path.write_bytes(chunk_bytes(A))
    assert await reader.adopt(CTX, A, "", str(path)) is False
    await reader.prefetch(CTX, [A])
    assert (await reader.open(CTX, [A]))[0].exists
    assert agents.calls() == {"a": [*["open"] * 3, "stage", "adopt", "prefetch", "open"]}
    assert agents.num_found == 1


@pytest.mark.parametrize("failure", [DOWN, FailedPrecondition("the agent of another node")])
async def test_an_agent_that_does_not_answer_is_looked_for_again(
    tmp_path: Path, failure: KvquiltError
) -> None:
    agents = Agents(tmp_path, "old", "new")
    reader = agents.reader()
    await reader.open(CTX, [A])
    agents.at["old"].failure = failure
    await asyncio.gather(*(reader.open(CTX, [A]) for _ in range(3)))
    assert agents.calls() == {"old": ["open"] * 4, "new": ["open"] * 3}
    assert agents.num_found == 2
    assert (agents.at["old"].closed, agents.at["new"].closed) == (True, False)


async def test_what_no_agent_answers_the_front_does(tmp_path: Path) -> None:
    agents = Agents(tmp_path, "old", "new")
    for agent in agents.at.values():
        agent.failure = DOWN
    await agents.reader().open(CTX, [A])
    assert agents.calls() == {"old": ["open"], "new": ["open"], "front": ["open"]}


async def test_what_nobody_answers_is_an_error_of_the_store(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    agents.front.failure = DOWN
    with pytest.raises(Unavailable):
        await agents.reader().open(CTX, [A])


async def test_a_missing_agent_is_not_asked_for_at_every_call(tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    reader = agents.reader()
    for _ in range(3):
        await reader.open(CTX, [A])
    assert (agents.num_found, agents.calls()) == (1, {"front": ["open"] * 3})
    agents.at["new"], agents.addresses = Agent(tmp_path / "new"), ["new"]
    agents.now = 1.9
    await reader.open(CTX, [A])
    assert agents.num_found == 1
    agents.now = 2.0
    await reader.open(CTX, [A])
    assert (agents.num_found, agents.at["new"].calls) == (2, ["open"])


async def test_what_an_agent_refuses_is_refused(tmp_path: Path) -> None:
    agents = Agents(tmp_path, "a")
    agents.at["a"].failure = NotFound("no")
    with pytest.raises(NotFound):
        await agents.reader().open(CTX, [A])
    assert agents.calls() == {"a": ["open"]}


@pytest.mark.parametrize("taken", [False, True])
async def test_a_file_is_offered_again_unless_the_agent_that_did_not_answer_took_it(
    tmp_path: Path, taken: bool
) -> None:
    agents = Agents(tmp_path, "old", "new")
    reader = agents.reader()
    path = Path(await reader.stage(CTX)) / "mine"
    if not taken:
        path.write_bytes(chunk_bytes(A))
    agents.at["old"].failure = DOWN
    if taken:
        with pytest.raises(Unavailable):
            await reader.adopt(CTX, A, "", str(path))
        assert agents.calls() == {"old": ["stage", "adopt"]}
    else:
        assert await reader.adopt(CTX, A, "", str(path)) is False
        assert agents.at["new"].adopted == [(A, False)]
