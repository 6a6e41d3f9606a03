"""Ray Serve's router, with replicas that are none: who is chosen, whose the choice is, what is attached."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, ReplicaID

from protos.kvquilt.v1 import generation_pb2
from services.generator.config import GeneratorConfig
from services.generator.replica_choice import ReplicaChoice
from services.generator.router_options import HAPROXY, router_options
from services.generator.routing import ChunkRouter
from shared.config import load
from shared.errors import ConfigError
from shared.routing.costs import Tier, chunk_key
from shared.routing.reports import HeldChunks, LaneName, plain
from shared.routing.settings import RoutingSettings

DEPLOYMENT = DeploymentID("generator", "generator")


@dataclass
class PretendReplica:
    """As a router sees one; ``queue_len``: of requests that it has."""

    name: str
    max_ongoing_requests: int = 4
    queue_len: int = 0
    is_cross_language: bool = False

    @property
    def replica_id(self) -> ReplicaID:
        return ReplicaID(self.name, DEPLOYMENT)

    @property
    def node_id(self) -> str:
        return f"node-{self.name}"

    async def get_queue_len(self, *, deadline_s: float) -> int:
        await asyncio.sleep(0)  # so that choices are made at once
        return self.queue_len


class LonelyRouter(ChunkRouter):
    """Outside of Ray there is no session that metrics go to, and there are no agents."""

    def initialize_state(self, by_hash: bool = False, **kwargs: Any) -> None:
        self.follow(ReplicaChoice(ongoing=self._ongoing if by_hash else None), None)


def router(*names: str, by_hash: bool = False) -> LonelyRouter:
    made = LonelyRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    made.initialize_state(by_hash)
    made.update_replicas([PretendReplica(name) for name in names])
    return made


def holds(made: LonelyRouter, name: str, *chunk_ids: str) -> None:
    report = HeldChunks(LaneName(name, Tier.RESIDENT), 1, 0, frozenset(map(chunk_key, chunk_ids)))
    made.choice.heard(f"node-{name}", [{"report": plain(report)}])


def asked(*chunk_ids: str, request_id: str = "one", method: str = "Generate") -> PendingRequest:
    pieces = [generation_pb2.Piece(token_ids=generation_pb2.TokenIds(ids=range(200)))] * len(chunk_ids)
    request = generation_pb2.GenerateRequest(chunks=pieces, chunk_ids=chunk_ids, explain=True)
    metadata = RequestMetadata(request_id=request_id, internal_request_id=request_id, call_method=method)
    return PendingRequest(args=[request], kwargs={}, metadata=metadata)


async def sent_to(made: LonelyRouter, *requests: PendingRequest) -> list[str]:
    """Parallel calls; that they hang is what a wrong router does."""
    async with asyncio.timeout(20):
        chosen = await asyncio.gather(*(made._choose_replica_for_request(one) for one in requests))
    return [replica.replica_id.unique_id for replica in chosen]


def test_parallel_calls_of_one_request_each_go_where_their_own_chunks_are() -> None:
    async def run() -> None:
        made = router("a", "b", "c")
        for name in "abc":
            holds(made, name, f"of {name}")
        wanted = [name for _ in range(4) for name in "abc"]
        requests = [asked(f"of {name}") for name in wanted]  # all of one request, as a gateway fans out
        assert await sent_to(made, *requests) == wanted
        for name, request in zip(wanted, requests, strict=True):
            assert request.args[0].route.startswith(f"{name}: it holds what is wanted")
            assert request.args[0].route_held == 1

    asyncio.run(run())


def test_what_is_no_question_goes_to_the_shorter_queue() -> None:
    async def run() -> None:
        made = router("a", "b")
        holds(made, "a", "x")
        for _ in range(3):
            made.on_send_request(ReplicaID("a", DEPLOYMENT))
        made.on_new_queue_len_info(ReplicaID("b", DEPLOYMENT), 0)
        other = asked("x", method="DescribeModel")
        assert await sent_to(made, other) == ["b"]
        assert (other.args[0].route, other.args[0].route_held) == ("", 0)

    asyncio.run(run())


def test_a_full_replica_is_passed_over_and_one_that_died_is_chosen_no_more() -> None:
    async def run() -> None:
        made = router("a", "b")
        holds(made, "a", "x")
        assert await sent_to(made, asked("x")) == ["a"]
        made.curr_replicas[ReplicaID("a", DEPLOYMENT)].queue_len = 4
        made.on_new_queue_len_info(ReplicaID("a", DEPLOYMENT), 4)
        full = asked("x")
        assert await sent_to(made, full) == ["b"]
        assert full.args[0].route.startswith("b: first came a")
        made.on_replica_actor_died(ReplicaID("a", DEPLOYMENT))
        again = asked("x")
        assert await sent_to(made, again) == ["b"]
        assert again.args[0].route_held == 0
        assert made.choice.nodes == {"node-b"}

    asyncio.run(run())


def test_by_rendezvous_a_question_goes_by_its_hash_until_its_replica_has_more_than_its_share() -> None:
    async def run() -> None:
        made = router("a", "b", "c", by_hash=True)
        for name in "abc":
            made.on_new_queue_len_info(ReplicaID(name, DEPLOYMENT), 0)
        (home,) = await sent_to(made, asked("x"))
        others = [name for name in "abc" if name != home]
        holds(made, others[0], "x")  # which does not matter here
        assert await sent_to(made, asked("x")) == [home]
        made.on_new_queue_len_info(ReplicaID(home, DEPLOYMENT), 3)
        busy = asked("x")
        (chosen,) = await sent_to(made, busy)
        assert chosen in others
        assert "by the hash of the heaviest chunk" in busy.args[0].route
        made.choice.check_invariants()

    asyncio.run(run())


def test_without_a_request_any_replica_will_do() -> None:
    async def run() -> None:
        made = router("a", "b")
        (rank,) = await made.choose_replicas(list(made.curr_replicas.values()), None)
        assert len(rank) == 2

    asyncio.run(run())


def attached(**values: Any) -> RequestRouterConfig:
    return RequestRouterConfig(**router_options(GeneratorConfig("m", **values))["request_router_config"])


def test_by_queue_nothing_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HAPROXY, "1")
    assert router_options(GeneratorConfig("m")) == {}


def test_by_chunks_a_router_is_attached_that_every_process_can_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HAPROXY, raising=False)
    config = attached(routing="chunks")
    assert config.get_request_router_class().__name__ == "ChunkRouter"
    assert config.request_router_kwargs["listens"] is True
    assert config.request_router_kwargs["by_hash"] is False


def test_without_a_store_it_is_said_at_the_start_that_nobody_tells_and_routing_goes_by_hash(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And questions are answered all the same: see ``test_router.py`` for what a blind router does."""
    monkeypatch.delenv(HAPROXY, raising=False)
    alone = attached(routing="chunks", kv_store="")
    assert alone.request_router_kwargs["listens"] is False
    (said,) = [record.message for record in caplog.records]
    assert "generator.kv_store" in said
    assert "by the hash of their heaviest chunk" in said
    caplog.clear()
    hashed = attached(routing="rendezvous", kv_store="")
    assert hashed.request_router_kwargs["listens"] is False
    assert hashed.request_router_kwargs["by_hash"] is True
    assert not caplog.records, "there is nothing to tell it"


def test_settings_reach_the_router_as_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HAPROXY, raising=False)
    wanted = RoutingSettings(tolerance_ms=3.0, patience=0.5, kept_ms=1500.0)
    kwargs = attached(routing="chunks", router=wanted).request_router_kwargs
    assert load(RoutingSettings, json.loads(json.dumps(kwargs))["settings"]) == wanted


def test_by_chunks_with_haproxy_is_refused_by_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HAPROXY, "1")
    with pytest.raises(ConfigError, match=r"generator\.routing.*RAY_SERVE_ENABLE_HA_PROXY=1"):
        router_options(GeneratorConfig("m", routing="chunks"))
