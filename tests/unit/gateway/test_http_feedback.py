"""Ratings of answers over HTTP: kept as those over gRPC are, by who may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from services.gateway.config import FeedbackConfig, GatewayConfig, HttpConfig
from services.gateway.feedback import FeedbackKeeper
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.feedback import Rating
from shared.principals.callers import Callers
from shared.principals.principal import Role
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit
from tests.unit.gateway.test_console import WHO, asked, browser
from tests.unit.principals.test_callers import StaticKeys, World


def app(keeper: FeedbackKeeper, callers: Callers | None = None) -> FastAPI:
    config = GatewayConfig(http=HttpConfig("tiny"))
    retriever, generator = FakeRetriever({WHO: [hit("a", "Orla")]}), FakeGenerator({WHO: "Orla Venn"})
    pipeline = Pipeline(retriever, generator, config, Prefetching(None), keeper)
    return http_app(pipeline, config.http, config.limits, callers, rate=keeper.rate)


async def test_an_answer_is_rated_by_the_id_that_it_tells(tmp_path: Path) -> None:
    keeper = FeedbackKeeper(FeedbackConfig(str(tmp_path)))
    async with browser(app(keeper)) as http:
        answer = await http.post("/v1/chat/completions", json=asked())
        request_id = answer.json()["kvquilt"]["request_id"]
        rated = await http.post(
            "/v1/feedback", json={"request_id": request_id, "rating": "bad", "comment": "Who is she?"}
        )
    assert rated.status_code == 200
    assert rated.json() == {"object": "feedback", "request_id": request_id, "question": 0, "rating": "bad"}
    (kept,) = keeper.ratings("default")
    assert (kept.rating, kept.comment, kept.asked, kept.answer) == (
        *(Rating.BAD, "Who is she?", WHO, "Orla Venn"),
    )


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"rating": "good"}, 400, "request_id"),
        ({"request_id": "unheard", "rating": "good"}, 404, "request_id: no answer 'unheard'"),
        ({"request_id": "r", "rating": "fine"}, 400, "rating"),
        ({"request_id": "r"}, 400, "rating: neither a rating nor a comment"),
        ({"request_id": "r", "comment": "x" * 100_000}, 400, "comment"),
        ({"request_id": "r", "rating": "good", "question": -1}, 400, "question"),
        ({"request_id": "r", "rating": "good", "stars": 5}, 400, "stars"),
    ],
)
async def test_bad_input_is_refused_by_name(
    tmp_path: Path, body: dict[str, Any], status: int, says: str
) -> None:
    async with browser(app(FeedbackKeeper(FeedbackConfig(str(tmp_path))))) as http:
        got = await http.post("/v1/feedback", json=body)
    assert got.status_code == status, got.text
    assert says in got.json()["error"]["message"]


async def test_where_none_is_kept_it_says_how_to() -> None:
    async with browser(app(FeedbackKeeper(FeedbackConfig("")))) as http:
        got = await http.post("/v1/feedback", json={"request_id": "r", "rating": "good"})
    assert "gateway.feedback.directory" in got.json()["error"]["message"]


async def test_it_is_for_those_who_may_rate(tmp_path: Path) -> None:
    """As ``Rag.Feedback``: writers, of whom one may ask, too."""
    world = World(StaticKeys([]))
    writer, reader = world.key("wim", Role.WRITER, Role.READER), world.key("ray", Role.READER)
    keeper = FeedbackKeeper(FeedbackConfig(str(tmp_path)))
    async with browser(app(keeper, world.callers)) as http:
        headers = {"authorization": f"Bearer {writer}"}
        answer = await http.post("/v1/chat/completions", json=asked(), headers=headers)
        body = {"request_id": answer.json()["kvquilt"]["request_id"], "rating": "good"}
        unknown = await http.post("/v1/feedback", json=body)
        refused = await http.post("/v1/feedback", json=body, headers={"authorization": f"Bearer {reader}"})
        rated = await http.post("/v1/feedback", json=body, headers=headers)
    assert (unknown.status_code, refused.status_code, rated.status_code) == (401, 403, 200)
    assert [one.rating for one in keeper.ratings("acme")] == [Rating.GOOD]
