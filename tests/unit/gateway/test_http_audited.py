"""Who is refused by HTTP is on record as by gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi import FastAPI

from services.gateway.config import GatewayConfig, HttpConfig
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.admission.entrance import Entrance
from shared.admission.settings import PrincipalLimits
from shared.audit import AuditConfig, AuditLog, read_lines
from shared.audited import Recorder
from shared.errors import PermissionDenied
from shared.principals.callers import Callers
from shared.principals.keys import new_key
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever
from tests.unit.gateway.test_http_callers import ASKED, WHO, Seeing, client
from tests.unit.principals.test_callers import StaticKeys, World

Lines = Callable[[], list[dict[str, Any]]]
Serve = Callable[..., FastAPI]


class Denying(Seeing):
    async def search(self, ctx: Any, *args: Any, **more: Any) -> Any:
        raise PermissionDenied("not this collection")


@pytest.fixture
def world() -> World:
    return World(StaticKeys([]))


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[Serve, Lines]]:
    recorder = Recorder(AuditLog("gateway", AuditConfig(str(tmp_path))), clock=lambda: 0.0)

    def serve(
        callers: Callers, retriever: FakeRetriever | None = None, door: Entrance | None = None
    ) -> FastAPI:
        config = GatewayConfig(http=HttpConfig("tiny", max_body_bytes=4096))
        pipeline = Pipeline(
            retriever or Seeing(), FakeGenerator({WHO: "Orla Venn"}), config, Prefetching(None)
        )
        told = {"metrics": lambda: "", "door": door, "recorder": recorder}
        return http_app(pipeline, config.http, config.limits, callers, **told)  # type: ignore[arg-type]

    yield serve, lambda: [dict(line) for line in read_lines(tmp_path)]
    recorder.close()


def told(lines: Lines) -> list[tuple[str, ...]]:
    return [(line["action"], line["method"], line["outcome"], line["principal"]) for line in lines()]


async def test_a_stranger_is(recorded: tuple[Serve, Lines], world: World) -> None:
    serve, lines = recorded
    asking = client(serve(world.callers), new_key())
    for _ in range(3):
        with pytest.raises(openai.AuthenticationError):
            await asking.chat.completions.create(**ASKED)
    assert told(lines) == [("call", "Answer", "UNAUTHENTICATED", "")]
    assert lines()[0]["peer"] == "http:10.0.0.9"


async def test_so_is_who_may_not_do_that(recorded: tuple[Serve, Lines], world: World) -> None:
    serve, lines = recorded
    reading = client(serve(world.callers), world.key())
    with pytest.raises(openai.PermissionDeniedError):
        await reading.get("/../metrics", cast_to=object)
    assert told(lines) == [("call", "Status", "PERMISSION_DENIED", "")]


async def test_so_is_who_wants_more_than_there_is_room_for(
    recorded: tuple[Serve, Lines], world: World
) -> None:
    serve, lines = recorded
    door = Entrance(PrincipalLimits(requests_per_s=0.001, burst_s=1.0))
    asking = client(serve(world.callers, door=door), world.key("anna"))
    await asking.chat.completions.create(**ASKED)
    for _ in range(2):
        with pytest.raises(openai.RateLimitError):
            await asking.chat.completions.create(**ASKED)
    assert told(lines) == [("call", "Answer", "OVERLOADED", "key/anna")]
    assert lines()[0]["tenant"] == "acme"


async def test_what_is_denied_on_the_way_names_who_asked(recorded: tuple[Serve, Lines], world: World) -> None:
    serve, lines = recorded
    asking = client(serve(world.callers, Denying()), world.key("anna"))
    with pytest.raises(openai.PermissionDeniedError):
        await asking.chat.completions.create(**ASKED)
    assert told(lines) == [("call", "Answer", "PERMISSION_DENIED", "key/anna")]


async def test_who_is_answered_is_not_and_neither_is_a_wrong_request(
    recorded: tuple[Serve, Lines], world: World
) -> None:
    serve, lines = recorded
    asking = client(serve(world.callers), world.key())
    await asking.chat.completions.create(**ASKED)
    with pytest.raises(openai.NotFoundError):
        await asking.chat.completions.create(**{**ASKED, "model": "another"})
    assert lines() == []
