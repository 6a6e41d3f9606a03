"""`/v1/responses` of the gateway, asked by OpenAI's own client without a socket."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import openai
import pytest
from fastapi import FastAPI

from services.gateway.kept.members import file_id_of
from shared.errors import CorruptData, NotFound
from shared.generation.orders import GenerationOrder
from shared.generation.told import BranchDoneEvent, FinishReason, GenerationEvent
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit
from tests.unit.gateway.test_http_routes import HITS, NOW_S, WHO, app, client

SEARCH = {"type": "file_search", "vector_store_ids": ["handbook"]}
NEAR = SEARCH | {"ranking_options": {"score_threshold": 0.5}}
UNTIL_TEXT = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.file_search_call.in_progress",
    "response.file_search_call.searching",
    "response.file_search_call.completed",
    "response.output_item.done",
    "response.output_item.added",
    "response.content_part.added",
]
FROM_TEXT = [
    "response.output_text.annotation.added",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


class Always(dict[str, str]):
    """The same answer to everything."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer

    def __missing__(self, key: str) -> str:
        return self.answer

    def __or__(self, other: Any) -> Always:
        return self


class Cut(FakeGenerator):
    """Its answers reach the limit of tokens."""

    def _events(self, order: GenerationOrder) -> list[GenerationEvent]:
        return [
            replace(event, finish_reason=FinishReason.LENGTH) if isinstance(event, BranchDoneEvent) else event
            for event in super()._events(order)
        ]


async def ask(served: FastAPI | None = None, **parameters: Any) -> Any:
    asked = {"model": "tiny", "input": WHO, "tools": [SEARCH]} | parameters
    return await client(served).responses.create(**asked)


async def test_a_whole_response_searches_answers_and_cites() -> None:
    served = app(FakeGenerator(Always("Orla Venn")))
    response = await ask(served, instructions="Be brief.", metadata={"team": "ops"}, max_output_tokens=9)
    assert (response.object, response.status, response.created_at) == ("response", "completed", NOW_S)
    assert response.output_text == "Orla Venn"
    call, message = response.output
    assert (call.type, call.status, call.queries, call.results) == (
        "file_search_call",
        "completed",
        [WHO],
        None,
    )
    (part,) = message.content
    assert [(a.type, a.file_id, a.filename, a.index) for a in part.annotations] == [
        ("file_citation", file_id_of("a.txt"), "a.txt", 9)
    ]
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.input_tokens_details.cached_tokens) == (100, 2, 90)
    assert (response.instructions, response.metadata, response.max_output_tokens) == (
        "Be brief.",
        {"team": "ops"},
        9,
    )
    assert (response.store, response.previous_response_id, response.error) == (False, None, None)
    assert response.id == f"resp_{response.kvquilt['request_id']}"
    assert response.tools[0].vector_store_ids == ["handbook"]


async def test_a_response_grows_by_official_events_numbered_in_order() -> None:
    events = [event async for event in await ask(stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[: len(UNTIL_TEXT)] == UNTIL_TEXT
    assert kinds[-len(FROM_TEXT) :] == FROM_TEXT
    deltas = events[len(UNTIL_TEXT) : -len(FROM_TEXT)]
    assert {event.type for event in deltas} == {"response.output_text.delta"}
    assert "".join(event.delta for event in deltas) == "Orla Venn"
    assert {event.item_id for event in deltas} == {events[7].item.id}
    assert events[-1].response.output_text == "Orla Venn"
    assert events[0].response.usage is None


async def test_what_was_found_is_told_where_it_is_included() -> None:
    found = {WHO: [hit("a", "Orla Venn built it"), hit("b", "It was built in 1874")]}
    served = app(retriever=FakeRetriever(found))
    response = await ask(served, include=["file_search_call.results"])
    results = response.output[0].results
    assert [(one.file_id, one.text) for one in results] == [
        (file_id_of("a.txt"), "Orla Venn built it"),
        (file_id_of("b.txt"), "It was built in 1874"),
    ]


async def test_the_tool_says_how_many_are_looked_for_and_by_which_filters() -> None:
    retriever = FakeRetriever({WHO: HITS})
    tool = SEARCH | {"max_num_results": 1, "filters": {"type": "eq", "key": "lang", "value": "en"}}
    await ask(app(retriever=retriever), tools=[tool])
    ((collection, _, k, _, filters),) = retriever.asked
    assert (collection, k) == ("handbook", 1)
    assert [(one.field, one.values) for one in filters] == [("lang", ("en",))]


async def test_earlier_turns_go_along_and_so_does_the_output_of_an_earlier_response() -> None:
    generator = FakeGenerator(Always("Orla Venn"))
    served = app(generator, FakeRetriever({WHO: HITS, f"{WHO}\n{WHO}": HITS}))
    first = await ask(served)
    again = [{"role": "user", "content": WHO}, *first.output, {"role": "user", "content": WHO}]
    response = await ask(served, input=again, instructions="Be brief.")
    assert response.output_text == "Orla Venn"
    asked = str(generator.asked[-1].questions[0])
    assert asked.index("Be brief.") < asked.index("Orla Venn") < asked.rindex(WHO)
    assert response.output[0].queries == [f"{WHO}\n{WHO}"]  # what was really searched by


async def test_an_answer_that_is_cut_short_is_incomplete() -> None:
    served = app(Cut({WHO: "Orla Venn"}))
    response = await ask(served)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    events = [event async for event in await ask(served, stream=True)]
    assert events[-1].type == "response.incomplete"


async def test_a_format_is_kept_to() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    generator = FakeGenerator({WHO: '{"name": "Orla"}'})
    form = {"type": "json_schema", "name": "person", "schema": schema, "strict": True}
    response = await ask(app(generator), text={"format": form})
    assert response.output_text == '{"name": "Orla"}'
    assert response.text.format.type == "json_schema"
    asked = generator.asked[-1].sampling.response_format
    assert asked is not None
    assert asked.schema == schema


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": []}, "collection"),
        ({"tools": [SEARCH, SEARCH]}, "tools"),
        ({"tools": [SEARCH | {"vector_store_ids": ["a", "b"]}]}, r"tools[0].vector_store_ids"),
        ({"tools": [NEAR]}, r"tools[0].ranking_options.score_threshold"),
        ({"tools": [SEARCH | {"filters": {"type": "gt", "key": "a", "value": 1}}]}, r"tools[0].filters.type"),
        ({"tools": [{"type": "web_search"}]}, r"tools[0].type"),
        ({"tool_choice": "none"}, "tool_choice"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"input": []}, "input"),
        ({"input": [{"role": "assistant", "content": "x"}]}, r"input[0].role"),
        ({"input": [{"role": "robot", "content": "x"}]}, r"input[0].role"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, r"input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            r"input[0].content[0]",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, r"text.format.schema"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, r"text.format.schema"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"max_tokens": 2}}, "max_tokens"),
        ({"extra_body": {"collection": "other"}}, r"tools[0].vector_store_ids"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(parameters: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await ask(**parameters)
    body = raised.value.body
    assert isinstance(body, dict)
    assert body["param"] == param


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_before_the_first_event_has_a_status(stream: bool) -> None:
    served = app(retriever=FakeRetriever({}, error=NotFound("no such collection")))
    with pytest.raises(openai.NotFoundError):
        await ask(served, stream=stream)


async def test_what_breaks_off_in_its_middle_ends_with_an_error_and_no_end() -> None:
    served = app(FakeGenerator({WHO: "Orla Venn"}, failures=[(1, CorruptData("it died"))]))
    events = await ask(served, stream=True)
    assert [(await anext(events)).type for _ in UNTIL_TEXT] == UNTIL_TEXT
    rest = aiter(events)
    assert (await anext(rest)).type == "response.output_text.delta"
    with pytest.raises(openai.APIError, match="it died"):
        await anext(rest)
