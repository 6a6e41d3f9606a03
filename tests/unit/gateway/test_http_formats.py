"""Answers in JSON over HTTP: what is asked of the generator, by OpenAI's own client, and what it reads."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from services.gateway.config import RefusalConfig
from services.gateway.http.requests import ChatRequest
from shared.answer import Refusal
from shared.errors import InvalidRequest
from shared.generation.response_format import ResponseFormat
from shared.limits import RequestLimits
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit
from tests.unit.gateway.test_http_routes import USER, WHO, app, ask, chunks_of, client

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Builder(BaseModel):
    name: str


def schema_of(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "builder", "schema": SCHEMA} | more}


def generator() -> FakeGenerator:
    return FakeGenerator({WHO: '{"name": "Orla"}'})


async def test_a_model_of_pydantic_is_asked_for_and_parsed() -> None:
    fake = generator()
    answer = await client(app(fake)).chat.completions.parse(
        model="tiny", messages=[USER], response_format=Builder, extra_body={"collection": "handbook"}
    )
    assert answer.choices[0].message.parsed == Builder(name="Orla")
    form = fake.asked[0].sampling.response_format
    assert form is not None
    assert form.schema["properties"]["name"]["type"] == "string"


async def test_a_stream_of_json_is_that_of_any_text() -> None:
    chunks = await chunks_of(await ask(app(generator()), stream=True, response_format=schema_of()))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert json.loads(text) == {"name": "Orla"}


@pytest.mark.parametrize("strict", [True, False, None])
async def test_strict_changes_nothing(strict: bool | None) -> None:
    fake = generator()
    await ask(app(fake), response_format=schema_of(strict=strict))
    assert fake.asked[0].sampling.response_format == ResponseFormat(json.dumps(SCHEMA))


async def test_any_object_and_any_text() -> None:
    fake = generator()
    for asked in ("json_object", "text"):
        await ask(app(fake), response_format={"type": asked})
    assert [order.sampling.response_format for order in fake.asked] == [ResponseFormat(), None]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_told_as_one_where_json_is_waited_for(stream: bool) -> None:
    served = app(
        generator(),
        FakeRetriever({WHO: [hit("b", "Rain is expected")]}),
        refusal=RefusalConfig(mode=Refusal.STRICT, text="Not known."),
    )
    answer = await ask(served, response_format={"type": "json_object"}, stream=stream)
    if stream:
        deltas = [c.choices[0].delta for c in await chunks_of(answer) if c.choices]
        assert "".join(d.content or "" for d in deltas) == ""
        assert "".join(d.refusal or "" for d in deltas) == "Not known."
    else:
        message = answer.choices[0].message
        assert (message.content, message.refusal) == (None, "Not known.")
    plain = await ask(served)
    assert (plain.choices[0].message.content, plain.choices[0].message.refusal) == ("Not known.", None)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"type": "json_schema"}, "response_format.json_schema: is required"),
        ({"type": "json_object", "json_schema": {"schema": {}}}, "needs type json_schema"),
        ({"type": "json_object", "grammar": "x"}, "response_format.grammar: is not supported"),
        (schema_of(regex="a"), "response_format.json_schema.regex: is not supported"),
    ],
)
def test_what_is_no_format_is_refused_by_name(asked: dict[str, Any], says: str) -> None:
    body = {"model": "tiny", "messages": [USER], "collection": "c", "response_format": asked}
    with pytest.raises(InvalidRequest, match=says):
        ChatRequest.model_validate(body).inquiry()


async def test_wrong_schemas_are_answered_with_400_and_the_parameter() -> None:
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"items": deep}
    wide = {"enum": ["x" * 1200]}
    roomy = RequestLimits(schema_bytes=1000)
    for schema, says in ((deep, "levels"), (wide, "limits.schema_bytes")):
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(
                app(generator(), limits=roomy),
                response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
            )
        assert says in str(refused.value)
        assert refused.value.param is not None
        assert refused.value.param.startswith("response_format")
