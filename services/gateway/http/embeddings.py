"""Defines what may be asked of ``/v1/embeddings``, and what is answered: vectors by the embedder of the
index."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field, field_validator

from services.gateway.http.bodies import MAX_NUMBER, BodyText, Lenient, check_parameters
from services.gateway.http.door import HttpDoor
from services.gateway.http.errors import API_ERRORS, ModelNotServed
from services.gateway.http.messages import WireRequest, embedding
from services.gateway.ports import TextEmbedder
from shared.errors import InvalidRequest
from shared.request import RequestContext
from shared.search import EmbeddedTexts


class EmbeddingRequest(Lenient):
    """``input_type``: ours; whether texts are embedded as those that are searched, or as those that search:
    some embedders tell them apart."""

    model: str
    input: BodyText | list[BodyText]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, le=MAX_NUMBER)
    input_type: Literal["document", "query"] | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _no_ids(cls, given: Any) -> Any:
        if isinstance(given, list) and any(isinstance(one, (int, list)) for one in given):
            raise ValueError("token ids are not supported, since they are another tokenizer's; send text")
        return given

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input

    @property
    def names(self) -> Mapping[str, str]:
        """Of the request's fields, as they are in this body."""
        if isinstance(self.input, str):
            return dict.fromkeys(("texts", "texts[0]"), "input")
        return {f"texts[{i}]": f"input[{i}]" for i in range(len(self.input))} | {"texts": "input"}


class Embedding(BaseModel):
    """``embedding``: of length 1; as base64, float32 in little-endian order."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingExtension(BaseModel):
    """``embedder`` names the vector space: vectors of different embedders must not be compared."""

    embedder: str


class Embeddings(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    kvquilt: EmbeddingExtension


def add_embeddings(app: FastAPI, door: HttpDoor, embedder: TextEmbedder, model: str) -> None:
    """``model``: the name by which clients ask for the embedder."""

    @app.post("/v1/embeddings", response_model=Embeddings, responses=API_ERRORS)
    async def embeddings(body: EmbeddingRequest, http: Request) -> Response:
        def asked() -> WireRequest:
            _check(body, model)
            return embedding(body.texts, body.input_type == "query")

        async def work(ctx: RequestContext) -> Embeddings:
            found = await embedder.embed(ctx, body.texts, body.input_type == "query")
            door.entrance.spend(ctx.principal, found.num_tokens)
            return _told(body, found)

        return await door.through(http, "Embed", asked, work, body.names)


def _check(body: EmbeddingRequest, model: str) -> None:
    """
    Raises:
        ModelNotServed, InvalidRequest: name what is not supported.
    """
    if body.model != model:
        raise ModelNotServed(f"model: {body.model!r} embeds nothing here; {model!r} does")
    check_parameters(body, {})
    if not body.texts:
        raise InvalidRequest("texts: is empty; send at least one text")


def _told(body: EmbeddingRequest, found: EmbeddedTexts) -> Embeddings:
    """
    Raises:
        InvalidRequest: the vectors have another length than was asked for.
    """
    dim = len(found.vectors[0])
    if body.dimensions not in (None, dim):
        raise InvalidRequest(
            f"dimensions: the vectors of {body.model!r} have {dim}, and are not cut; leave it out"
        )
    spelt = _base64 if body.encoding_format == "base64" else list
    return Embeddings(
        data=[Embedding(index=i, embedding=spelt(vector)) for i, vector in enumerate(found.vectors)],
        model=body.model,
        usage=EmbeddingUsage(prompt_tokens=found.num_tokens, total_tokens=found.num_tokens),
        kvquilt=EmbeddingExtension(embedder=found.embedder),
    )


def _base64(vector: Sequence[float]) -> str:
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")
