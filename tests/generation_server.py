"""The Generation service on a real gRPC server in this process, with a model directory and a directory of KV
files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from protos.kvquilt.v1 import generation_pb2_grpc
from services.generator.config import GeneratorConfig
from services.generator.handlers import GenerationServicer
from services.generator.loading import load_generator
from services.generator.selection import SelectionPort
from services.generator.service import Generator
from shared.clients.generation import APPLICATION, SERVICE, ForestClient, GenerationClient
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.config import load
from shared.errors import KvquiltError
from shared.generation.modes import Ape, Recompute
from shared.generation.orders import ASKED_MODES, GenerationOrder, Reuse
from shared.generation.pieces import Piece
from shared.generation.selection import Grouping, Reading
from shared.kv_stores import NodeFiles
from shared.request import RequestContext


@dataclass
class Served:
    client: GenerationClient
    forests: ForestClient
    address: str
    generator: Generator | KvquiltError


@asynccontextmanager
async def serving(
    model: Path, store: NodeFiles | None = None, chooser: SelectionPort | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """A server over ``model``; a model that cannot be loaded is served as the application does it. Unless
    told, stored KV is loaded however busy this machine is."""
    engine = {"late_rows": 0} | settings.get("engine", {})
    config = load(GeneratorConfig, {"model": str(model)} | settings | {"engine": engine})
    generator: Generator | KvquiltError
    try:
        generator = load_generator(config, store, "node", asyncio.get_running_loop(), chooser)
    except KvquiltError as error:
        generator = error
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    generation_pb2_grpc.add_GenerationServicer_to_server(GenerationServicer(generator), server)  # type: ignore[no-untyped-call]
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            transport = GrpcTransport(channel, SERVICE, APPLICATION)
            yield Served(GenerationClient(transport), ForestClient(transport), address, generator)
    finally:
        await server.stop(None)
        if isinstance(generator, Generator):
            await asyncio.to_thread(generator.close)


def context(deadline_ms: int = 60_000, tenant: str = "") -> RequestContext:
    return RequestContext.create(tenant=tenant, deadline_ms=deadline_ms)


def reuse_of(mode: str | None, **options: Any) -> Reuse:
    return Reuse(next((m for m in ASKED_MODES if m == mode), None), **options)


def order_of(
    chunks: Sequence[Piece],
    questions: Sequence[Piece],
    reuse: str | None = None,
    recompute: Recompute | None = None,
    ape: Ape | None = None,
    grouping: Grouping | None = None,
    reading: Reading | None = None,
    adapter: str = "",
    **options: Any,
) -> GenerationOrder:
    how = reuse_of(
        reuse,
        recompute=recompute or Recompute(),
        ape=ape or Ape(),
        grouping=grouping,
        reading=reading,
        adapter=adapter,
    )
    return GenerationOrder(tuple(chunks), tuple(questions), reuse=how, **options)


def save_byte_tokenizer(directory: Path) -> None:
    """One id per byte (0 to 255), and <s> 256, </s> 257: for models with a vocabulary of at least 258."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(
        directory
    )
