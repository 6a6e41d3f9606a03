"""Responses that are kept and gone on from, asked by OpenAI's own client over a real store."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from services.gateway.config import ResponsesConfig
from services.gateway.kept.responses import KIND, KeptResponse, Responses
from shared.admission.entrance import Entrance
from shared.admission.settings import PrincipalLimits
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import NotFound
from shared.limits import RequestLimits
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from tests.unit.gateway.fakes import FakeGenerator
from tests.unit.gateway.kept_world import CTX, World
from tests.unit.gateway.test_http_callers import client as client_with
from tests.unit.gateway.test_http_responses import SEARCH, Always
from tests.unit.gateway.test_http_routes import HITS, WHO, client
from tests.unit.principals.test_callers import StaticKeys
from tests.unit.principals.test_callers import World as Callers

WHEN = "And when?"


def world_on(directory: Path, generator: FakeGenerator | None = None, **more: Any) -> World:
    made = World.on(directory, generator=generator or FakeGenerator(Always("Orla Venn")), **more)
    made.index.found = dict.fromkeys([WHO, f"{WHO}\n{WHEN}", f"{WHO}\n{WHEN}\n{WHO}", f"{WHEN}\n{WHO}"], HITS)
    return made


@pytest.fixture
def generator() -> FakeGenerator:
    return FakeGenerator(Always("Orla Venn"))


@pytest.fixture
async def world(tmp_path: Path, generator: FakeGenerator) -> AsyncIterator[World]:
    made = world_on(tmp_path, generator)
    yield made
    await made.close()


async def ask(asking: Any, question: Any = WHO, store: Any = True, **more: Any) -> Any:
    return await asking.responses.create(model="tiny", input=question, tools=[SEARCH], store=store, **more)


async def num_kept(world: World) -> int:
    return len((await world.store.item_page(CTX, KIND)).items)


async def test_a_response_that_is_kept_is_given_back_as_it_was_answered(world: World) -> None:
    asking = client(world.app)
    response = await ask(asking, instructions="Be brief.")
    assert response.store is True
    assert await asking.responses.retrieve(response.id) == response
    assert await client(world.restarted().app).responses.retrieve(response.id) == response


@pytest.mark.parametrize("store", [False, openai.omit])
async def test_one_that_does_not_ask_for_it_is_not_kept(world: World, store: Any) -> None:
    response = await ask(client(world.app), store=store)
    assert response.store is False
    assert await num_kept(world) == 0


async def test_the_operator_may_have_all_kept_that_do_not_say_otherwise(tmp_path: Path) -> None:
    world = world_on(tmp_path, responses=ResponsesConfig(store=True))
    assert (await ask(client(world.app), store=openai.omit)).store is True
    assert (await ask(client(world.app), store=False)).store is False
    assert await num_kept(world) == 1


async def test_the_next_question_has_all_that_was_said_in_front_of_it(
    world: World, generator: FakeGenerator
) -> None:
    asking = client(world.app)
    first = await ask(asking, instructions="Be brief.")
    second = await ask(asking, WHEN, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    await asking.responses.delete(first.id)  # the second holds what was said before it
    await ask(asking, WHO, previous_response_id=second.id)
    said = [f"User: {WHO}", "Assistant: Orla Venn", f"User: {WHEN}", "Assistant: Orla Venn"]
    earlier = "\n".join(["Earlier in this conversation:", *said])
    assert str(generator.asked[-1].questions[0]) == f"{earlier}\n\n{WHO}"


async def test_a_stream_is_kept_once_it_is_whole(world: World) -> None:
    events = [event async for event in await ask(client(world.app), stream=True)]
    last = events[-1].response
    assert {event.response.id for event in events[:2]} == {last.id}
    assert last.store is True
    assert (await client(world.app).responses.retrieve(last.id)).output_text == last.output_text


async def test_one_that_is_deleted_is_gone(world: World) -> None:
    asking = client(world.app)
    response = await ask(asking)
    await asking.responses.delete(response.id)
    for call in (asking.responses.retrieve, asking.responses.delete, asking.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await call(response.id)
    with pytest.raises(openai.NotFoundError, match="previous_response_id"):
        await ask(asking, WHEN, previous_response_id=response.id)


async def test_what_it_was_asked_by_is_listed_page_by_page(world: World) -> None:
    asking = client(world.app)
    said: list[Any] = [
        {"role": "user", "content": WHEN},
        {"role": "assistant", "content": "In 1874"},
        {"role": "user", "content": WHO},
    ]
    response = await ask(asking, said)
    page = await asking.responses.input_items.list(response.id, limit=2)
    assert [item.content[0].text for item in page.data] == [WHO, "In 1874"]
    assert page.has_more
    items: list[Any] = [item async for item in asking.responses.input_items.list(response.id, order="asc")]
    assert [(item.role, item.content[0].type) for item in items] == [
        ("user", "input_text"),
        ("assistant", "output_text"),
        ("user", "input_text"),
    ]


@pytest.mark.parametrize("name", ["resp_1", "resp_" + "0" * 36, "../x", "x" * 300])
async def test_of_what_never_was_it_is_told_that_there_is_none(world: World, name: str) -> None:
    with pytest.raises(openai.NotFoundError, match="there is none"):
        await client(world.app).responses.retrieve(name.replace("/", "%2F"))


async def test_somebody_elses_is_none_to_everybody_else(tmp_path: Path) -> None:
    callers = Callers(StaticKeys([]))
    world = world_on(tmp_path, callers=callers.callers)
    anna = client_with(world.app, callers.key("anna", Role.READER))
    response = await ask(anna)
    assert (await anna.responses.retrieve(response.id)).id == response.id
    berta = client_with(world.app, callers.key("berta", Role.ADMIN))
    unknown = "resp_" + "0" * 36
    for call in (berta.responses.retrieve, berta.responses.delete, berta.responses.input_items.list):
        told = []
        for name in (response.id, unknown):
            with pytest.raises(openai.NotFoundError) as raised:
                await call(name)
            told.append(raised.value.message.replace(name, ""))
        assert told[0] == told[1]
    with pytest.raises(openai.NotFoundError):
        await ask(berta, WHEN, previous_response_id=response.id)
    await anna.responses.delete(response.id)


async def test_another_tenants_is_none(tmp_path: Path) -> None:
    world = world_on(tmp_path)
    response = await ask(client(world.app))
    other = client(world.app, default_headers={"x-kvquilt-tenant": "other"})
    with pytest.raises(openai.NotFoundError):
        await other.responses.retrieve(response.id)


async def test_one_that_cannot_be_kept_is_answered_all_the_same_and_says_so(tmp_path: Path) -> None:
    limits = RequestLimits(per_principal=PrincipalLimits(stored_bytes=100))
    world = world_on(tmp_path, limits=limits)
    response = await ask(client(world.app))
    assert (response.output_text, response.store) == ("Orla Venn", False)


async def test_where_none_are_kept_it_is_refused_by_name(tmp_path: Path) -> None:
    world = world_on(tmp_path, responses=ResponsesConfig(store=True, most_bytes=0))
    assert (await ask(client(world.app), store=openai.omit)).store is False
    with pytest.raises(openai.BadRequestError) as raised:
        await ask(client(world.app))
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["param"] == "store"


def kept(responses: Responses, num_chars: int) -> KeptResponse:
    return KeptResponse(responses.new_id(), {"x": "y" * num_chars}, (), (EarlierTurn(Speaker.USER, "ä"),))


async def found(responses: Responses, ids: list[str]) -> list[bool]:
    there = []
    for one in ids:
        try:
            await responses.get(CTX, one)
            there.append(True)
        except NotFound:
            there.append(False)
    return there


async def test_the_oldest_make_room_for_those_that_come(world: World) -> None:
    now = [time.time()]

    def clock() -> float:
        now[0] += 1
        return now[0]

    responses = Responses(world.store, ResponsesConfig(most_bytes=10_000), Entrance(), clock)
    ids = []
    for _ in range(4):
        ids.append((one := kept(responses, 2900)).id)
        assert await responses.keep(CTX, one)
    assert await found(responses, ids) == [False, True, True, True]
    bob = RequestContext.create(principal=Principal("key/bob", "default", frozenset({Role.READER})))
    assert await responses.keep(bob, kept(responses, 2900))  # the bound is the tenant's
    assert await found(responses, ids) == [False, False, True, True]
    assert not await responses.keep(CTX, kept(responses, 10_000))
    assert await found(responses, ids) == [False, False, True, True]


async def test_what_another_replica_kept_is_counted_after_a_minute_though_the_clock_is_set_back(
    world: World,
) -> None:
    day, minute = [time.time()], [0.0]
    config = ResponsesConfig(most_bytes=10_000)
    one = Responses(world.store, config, Entrance(), lambda: day[0], lambda: minute[0])
    other = Responses(world.store, config, Entrance(), lambda: day[0] + 1)
    assert await one.keep(CTX, kept(one, 2900))
    for _ in range(2):
        assert await other.keep(CTX, kept(other, 2900))
    day[0] -= 3600
    minute[0] += 61
    assert await one.keep(CTX, kept(one, 2900))
    page = await world.store.item_page(CTX, KIND)
    assert sum(item.size_bytes for item in page.items) <= 10_000


async def test_one_whose_time_is_over_is_none_and_goes_with_the_next_that_is_kept(world: World) -> None:
    past = Responses(world.store, ResponsesConfig(kept_s=50.0), Entrance())
    response = kept(past, 10)
    assert await past.keep(CTX, response)
    item, content = await world.store.get_item(CTX, KIND, response.id, with_content=True)
    assert json.loads(content)["turns"] == [["User", "ä"]]
    later = Responses(world.store, ResponsesConfig(kept_s=50.0), Entrance(), lambda: item.created_s + 50)
    assert await found(later, [response.id]) == [False]
    assert await num_kept(world) == 1
    assert await later.keep(CTX, kept(later, 10))
    assert await found(past, [response.id]) == [False]
