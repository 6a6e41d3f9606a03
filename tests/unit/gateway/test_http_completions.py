"""Prompts of the older kind, log-probabilities, documents that are handed over, and models by their modes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import httpx2
import openai
import pytest
from fastapi import FastAPI

from services.gateway.config import GatewayConfig, HttpConfig
from services.gateway.handed import check_source
from services.gateway.http.forms import chunks
from services.gateway.http.heard import MOST_LOGPROBS, AnswerHead, AskedLogprobs
from services.gateway.http.routes import http_app
from services.gateway.http.text_completions import TextForm
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.generator.events import spelt
from shared.answer import HandedDocument, Inquiry, Refusal, RetrievalOptions
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.generation.orders import Auto
from shared.generation.told import TokenEvent
from shared.prompt import PromptTokenizer
from shared.wire.answer import INQUIRY
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit
from tests.unit.gateway.test_http_routes import HITS, NOW_S, WHO, app, ask, chunks_of, client

WHEN = "When was it built?"
DOCUMENTS = [{"title": "Bridge", "text": "Orla Venn built it"}, {"text": "Rain is expected"}]


class Spelling(FakeGenerator):
    """Says what its tokens are, as the generator does where log-probabilities were asked for."""

    async def generate(self, ctx: Any, order: Any) -> Any:
        async with aclosing(super().generate(ctx, order)) as events:
            async for event in events:
                yield self._spelt(event) if order.sampling.top_logprobs else event

    def _spelt(self, event: Any) -> Any:
        if not isinstance(event, TokenEvent):
            return event
        return TokenEvent(
            event.question,
            event.sample,
            event.token_id,
            event.text,
            -0.5,
            ((9, -0.25), (event.token_id, -0.5), (7, float("-inf"))),
            token=event.text,
            top_tokens=("\ufffd", event.text, "x"),
        )


def serving(generator: FakeGenerator | None = None) -> FastAPI:
    answers = {WHO: "Orla Venn", WHEN: "In 1874"}
    return app(generator or Spelling(answers), FakeRetriever({WHO: HITS, WHEN: [hit("c", "In 1874")]}))


async def prompt(served: FastAPI | None = None, **parameters: Any) -> Any:
    asked = {"model": "tiny", "prompt": WHO, "extra_body": {"collection": "handbook"}} | parameters
    return await client(served or serving()).completions.create(**asked)


async def test_a_prompt_is_answered_as_a_question() -> None:
    answer = await prompt()
    assert (answer.object, answer.model, answer.id[:5]) == ("text_completion", "tiny", "cmpl-")
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("Orla Venn", "stop", None)
    assert answer.usage.total_tokens == 102
    assert answer.kvquilt["citations"][0]["document_id"] == "a.txt"


async def test_several_prompts_with_several_choices_are_numbered_prompt_by_prompt() -> None:
    answer = await prompt(prompt=[WHO, WHEN], n=2)
    texts = [(choice.index, choice.text) for choice in answer.choices]
    assert texts == [(0, "Orla Venn"), (1, "Orla Venn"), (2, "In 1874"), (3, "In 1874")]
    assert {cited["choice"] for cited in answer.kvquilt["citations"]} == {0, 1, 2, 3}
    grown = dict.fromkeys(range(4), "")
    for chunk in await chunks_of(await prompt(prompt=[WHO, WHEN], n=2, stream=True)):
        grown[chunk.choices[0].index] += chunk.choices[0].text
    assert [*grown.items()] == texts


async def test_a_stream_of_text_ends_with_its_reason_and_the_cost() -> None:
    chunks = await chunks_of(await prompt(stream=True, stream_options={"include_usage": True}))
    assert [chunk.choices[0].text for chunk in chunks[:-1]] == ["Orla", " Venn", ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, "stop"]
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert chunks[-2].kvquilt["sources"]
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_prompt_say_where_each_token_begins(stream: bool) -> None:
    if stream:
        told = [c.choices[0].logprobs for c in await chunks_of(await prompt(logprobs=1, stream=True))]
        parts = [one for one in told if one is not None]
    else:
        parts = [(await prompt(logprobs=1)).choices[0].logprobs]
    assert [token for part in parts for token in part.tokens] == ["Orla", " Venn"]
    assert [place for part in parts for place in part.text_offset] == [0, 4]
    assert [one for part in parts for one in part.token_logprobs] == [-0.5, -0.5]
    assert parts[0].top_logprobs[0] == {"\ufffd": -0.25, "Orla": -0.5}, "the likeliest, and the chosen one"
    assert (await prompt(logprobs=0)).choices[0].logprobs.top_logprobs is None


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_chat_have_bytes_where_a_token_is_whole(stream: bool) -> None:
    asked = {"logprobs": True, "top_logprobs": 3}
    answered = await ask(serving(), stream=stream, **asked)
    choices = [c.choices[0] for c in await chunks_of(answered)] if stream else answered.choices
    content = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    assert [token.token for token in content] == ["Orla", " Venn"]
    assert content[0].bytes == list(b"Orla")
    part, chosen, unlikely = content[0].top_logprobs
    assert (part.bytes, chosen.token, unlikely.logprob) == (None, "Orla", -9999.0)
    plain = await ask(serving())
    assert plain.choices[0].logprobs is None


async def test_log_probabilities_that_are_kept_until_an_answer_is_whole_are_bounded() -> None:
    num_tokens = MOST_LOGPROBS // 4 + 1  # each with three others
    generator = Spelling({WHO: "Orla " * num_tokens})
    asked = {"logprobs": True, "top_logprobs": 3}
    with pytest.raises(openai.BadRequestError, match="stream: true") as refused:
        await ask(serving(generator), **asked)
    assert (refused.value.param, generator.closed) == ("logprobs", 1), "nothing more is generated"


async def test_log_probabilities_that_are_streamed_have_no_such_bound() -> None:
    async def events() -> Any:
        for _ in range(MOST_LOGPROBS + 1):
            yield TokenEvent(0, 0, 1, "a", -0.5, token="a")

    form = TextForm(AnswerHead("r", NOW_S, "tiny", "handbook", None, logprobs=AskedLogprobs(0)))
    num_told = len([1 async for _ in chunks(form, events())])
    assert num_told == MOST_LOGPROBS + 1


async def test_wrong_prompts_are_named_by_their_places() -> None:
    for asked, param in (
        ({"prompt": " "}, "prompt"),
        ({"prompt": [WHO, ""]}, "prompt[1]"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [WHO] * 33}, "prompt"),
        ({"prompt": [[1, 2]]}, "prompt"),
        ({"prompt": "a\0"}, "prompt"),
        ({"prompt": [WHO, "a\0"]}, "prompt[1]"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": True}, "echo"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await prompt(**asked)
        assert refused.value.param == param, asked


async def test_the_models_name_may_name_the_mode() -> None:
    generator = FakeGenerator({WHO: "Orla"})
    served = serving(generator)
    assert (await ask(served, model="tiny:full")).model == "tiny:full"
    await ask(served, model="tiny:auto", extra_body={"collection": "handbook", "mode": "auto"})
    assert [order.reuse.mode for order in generator.asked] == [ReuseMode.FULL, Auto.AUTO]
    with pytest.raises(openai.BadRequestError, match="give one of them") as refused:
        await ask(served, model="tiny:full", extra_body={"collection": "handbook", "mode": "auto"})
    assert refused.value.param == "mode"


async def test_documents_are_the_context_and_nothing_is_searched() -> None:
    generator, retriever = FakeGenerator({WHO: "Orla Venn"}), FakeRetriever({})
    answer = await ask(app(generator, retriever), extra_body={"documents": DOCUMENTS})
    assert not retriever.asked
    assert generator.asked[0].chunks == ("Bridge\n\nOrla Venn built it", "Rain is expected")
    assert [cited["document_id"] for cited in answer.kvquilt["citations"]] == ["documents[0]"]
    assert answer.kvquilt["sources"][0]["title"] == "Bridge"
    assert answer.usage.prompt_tokens_details.cache_write_tokens == 0


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"collection": "handbook"}, "collection"),
        ({"top_k": 2}, "top_k"),
        ({"refusal": "strict"}, "refusal"),
        ({"documents": [{"text": " "}]}, "documents[0].text"),
        ({"documents": [{"title": "x"}]}, "documents[0].text"),
        ({"documents": [{"text": "x"}] * 1025}, "documents"),
    ],
)
async def test_documents_beside_a_search_or_without_text_are_refused(
    extra: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(_roomy(), extra_body={"documents": DOCUMENTS} | extra)
    assert refused.value.param == param


def _roomy() -> FastAPI:
    config = GatewayConfig(http=HttpConfig("tiny"))
    pipeline = Pipeline(FakeRetriever({}), FakeGenerator({WHO: "Orla"}), config, Prefetching(None))
    return http_app(pipeline, config.http, config.limits)


def test_documents_travel_by_grpc_as_well() -> None:
    asked = Inquiry("", (WHO,), documents=(HandedDocument("Bridge", "Orla"), HandedDocument("", "1874")))
    assert INQUIRY.of(INQUIRY.to_pb(asked)) == asked
    check_source(asked)
    for more in ({"refusal": Refusal.OFF}, {"retrieval": RetrievalOptions(3)}):
        with pytest.raises(InvalidRequest, match="is for searches"):
            check_source(Inquiry("", (WHO,), documents=asked.documents, **more))  # type: ignore[arg-type]


def test_tokens_are_spelt_as_in_the_middle_of_a_text() -> None:
    class Stripping(PromptTokenizer):
        """Like SentencePiece: no space in front of the first word."""

        def __init__(self) -> None:
            self._spelt = {}

        def decode(self, token_ids: Sequence[int]) -> str:
            return " ".join({1: "the", 2: ""}[one] for one in token_ids).strip()

    tokenizer = Stripping()
    for _ in "once", "again":
        event = spelt(TokenEvent(0, 0, 1, "the", -0.1, ((1, -0.1), (2, -3.0))), tokenizer)
        assert (event.token, event.top_tokens) == (" the", (" the", ""))
    plain = TokenEvent(0, 0, 1, "the", -0.1)
    assert spelt(plain, tokenizer) is plain


async def test_the_document_of_the_api_has_what_is_served_and_that_it_lives_needs_no_key() -> None:
    transport = httpx2.ASGITransport(serving())
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert (await http.get("/health")).json() == {"status": "ok"}
    assert set(paths) == {
        "/health",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/completions",
    }
    for path in ("/v1/chat/completions", "/v1/completions"):
        answers = paths[path]["post"]["responses"]
        assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
        assert {"4XX", "5XX"} <= set(answers), "errors are in OpenAI's form"
        assert "422" not in answers, "what does not fit is answered 400"
