"""Vectors over HTTP, asked for by OpenAI's own client without a socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from shared.errors import KvquiltError, Unavailable
from shared.limits import RequestLimits
from shared.request import RequestContext
from shared.search import EmbeddedTexts
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever
from tests.unit.gateway.test_http_routes import client


@dataclass
class FakeEmbedder:
    """A vector tells the length of its text."""

    error: KvquiltError | None = None
    asked: list[tuple[str, tuple[str, ...], bool]] = field(default_factory=list)

    async def embed(self, ctx: RequestContext, texts: Sequence[str], queries: bool = False) -> EmbeddedTexts:
        self.asked.append((ctx.tenant, tuple(texts), queries))
        if self.error:
            raise self.error
        vectors = tuple((float(len(text)), 0.5, -0.25) for text in texts)
        return EmbeddedTexts("words-1", vectors, sum(len(text.split()) for text in texts))


def served(embedder: FakeEmbedder, limits: PrincipalLimits | None = None, **others: int) -> FastAPI:
    config = GatewayConfig(http=HttpConfig("tiny", "words", 4096))
    pipeline = Pipeline(FakeRetriever({}), FakeGenerator({}), config, Prefetching(None))
    door = Entrance(limits)
    return http_app(pipeline, config.http, RequestLimits(**others), door=door, embedder=embedder)


async def embed(app: FastAPI, given: Any, **parameters: Any) -> Any:
    return await client(app).embeddings.create(**{"model": "words", "input": given} | parameters)


async def test_a_vector_for_every_text_in_order_and_what_it_cost() -> None:
    embedder = FakeEmbedder()
    answer = await embed(served(embedder), ["one", "two words"], user="anna")
    assert [(one.index, one.embedding) for one in answer.data] == [
        (0, [3.0, 0.5, -0.25]),
        (1, [9.0, 0.5, -0.25]),
    ]
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("words", 3, 3)
    assert answer.kvquilt == {"embedder": "words-1"}
    assert embedder.asked == [("default", ("one", "two words"), False)]


async def test_lists_of_numbers_and_base64_say_the_same() -> None:
    app = served(FakeEmbedder())
    numbers = await embed(app, "one", encoding_format="float")
    spelt = await embed(app, "one", encoding_format="base64")
    assert numbers.data[0].embedding == [3.0, 0.5, -0.25]
    assert spelt.data[0].embedding == "AABAQAAAAD8AAIC+"


async def test_texts_are_embedded_as_queries_and_for_a_tenant_where_that_is_asked() -> None:
    embedder = FakeEmbedder()
    more = {"extra_body": {"input_type": "query"}, "extra_headers": {"x-kvquilt-tenant": "acme"}}
    await embed(served(embedder), "one", **more)
    assert embedder.asked == [("acme", ("one",), True)]


async def test_the_embedder_is_listed_and_answers_no_questions() -> None:
    asking = client(served(FakeEmbedder()))
    assert [model.id async for model in asking.models.list()] == ["tiny", "tiny:full", "tiny:auto", "words"]
    assert (await asking.models.retrieve("words")).kvquilt == {"modes": []}  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError, match="'words' is not served"):
        await asking.chat.completions.create(model="words", messages=[{"role": "user", "content": "Who?"}])


@pytest.mark.parametrize(
    ("parameters", "param", "says"),
    [
        ({"input": [1, 2]}, "input", "token ids are not supported"),
        ({"input": []}, "input", "is empty"),
        ({"input": ["a"] * 11}, "input", "limits.entries"),
        ({"input": ["a", "b" * 200]}, "input[1]", "limits.text_bytes"),
        ({"input": "a\0b"}, "input", "NUL"),
        ({"dimensions": 2}, "dimensions", "have 3"),
        ({"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"extra_body": {"truncate": "END"}}, "truncate", "not supported"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(parameters: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as raised:
        await embed(served(FakeEmbedder(), entries=10, text_bytes=128), "one", **parameters)
    assert raised.value.param == param


async def test_another_model_is_not_found() -> None:
    with pytest.raises(openai.NotFoundError, match="'words' does") as raised:
        await embed(served(FakeEmbedder()), "one", model="tiny")
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_a_service_that_is_away_is_told_with_a_time_to_come_again() -> None:
    embedder = FakeEmbedder(Unavailable("retrieval is not available; retry"))
    with pytest.raises(openai.InternalServerError) as raised:
        await embed(served(embedder), "one")
    assert (raised.value.status_code, raised.value.response.headers["retry-after"]) == (503, "1")


async def test_embedded_tokens_count_towards_what_a_principal_may_use() -> None:
    app = served(FakeEmbedder(), PrincipalLimits(tokens_per_s=1, burst_s=1))
    await embed(app, "many words are in this text")
    with pytest.raises(openai.RateLimitError, match=r"limits\.per_principal\.tokens_per_s"):
        await embed(app, "one")


async def test_without_an_embedder_nothing_is_served() -> None:
    config = GatewayConfig(http=HttpConfig("tiny"))
    pipeline = Pipeline(FakeRetriever({}), FakeGenerator({}), config, Prefetching(None))
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        await embed(http_app(pipeline, config.http), "one")
