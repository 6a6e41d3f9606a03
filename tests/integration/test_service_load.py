"""The load test over gRPC, against a server whose generator answers without computing."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from rich.console import Console

from load_tests.service.command import _parser, plan_of
from load_tests.service.outcome import Outcome
from load_tests.service.setting import Setting, run_against
from protos.kvquilt.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from shared.clients.grpc_transport import CHANNEL_OPTIONS
from shared.errors import Overloaded, Unavailable
from shared.request import RequestContext
from shared.rpc import server_stream, unary

NUM_UNLOADED = 16  # five to warm up, the same five timed, three rounds of two streams


@dataclass
class PromptGenerator(generation_pb2_grpc.GenerationServicer):
    """Answers every request after a moment. Under load every ``overloaded``-th is refused; with ``breaks``
    streams end without ``done``."""

    overloaded: int = 0
    breaks: bool = False
    prefilled: list[tuple[int, ...]] = field(default_factory=list)
    requests: list[generation_pb2.GenerateRequest] = field(default_factory=list)

    @unary
    async def DescribeModel(
        self, request: generation_pb2.DescribeModelRequest, ctx: RequestContext
    ) -> generation_pb2.DescribeModelResponse:
        return generation_pb2.DescribeModelResponse(model="prompt")

    @unary
    async def Health(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> common_pb2.HealthResponse:
        return common_pb2.HealthResponse(service="generator", ready=True)

    @server_stream
    async def Prefill(
        self, request: generation_pb2.PrefillRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.PrefillResponse]:
        for index, chunk in enumerate(request.chunks):
            self.prefilled.append(tuple(chunk.token_ids.ids))
            yield generation_pb2.PrefillResponse(index=index, num_tokens=len(chunk.token_ids.ids))

    @server_stream
    async def Generate(
        self, request: generation_pb2.GenerateRequest, ctx: RequestContext
    ) -> AsyncIterator[generation_pb2.GenerateResponse]:
        self.requests.append(request)
        number = len(self.requests) - NUM_UNLOADED
        if number > 0 and self.overloaded and number % self.overloaded == 0:
            raise Overloaded("no room")
        await asyncio.sleep(0.001)
        for question in range(len(request.questions)):
            for token in range(request.sampling.max_tokens):
                yield generation_pb2.GenerateResponse(
                    token=generation_pb2.GeneratedToken(question=question, token_id=token)
                )
        if number > 0 and self.breaks:
            return
        usage = common_pb2.Usage(
            prompt_tokens=30, reused_tokens=20, recomputed_tokens=10, generated_tokens=6, loaded_tokens=5
        )
        timings = common_pb2.Timings(prefill_ms=1.0, engine_ttft_ms=1.0, total_ms=1.0)
        yield generation_pb2.GenerateResponse(done=generation_pb2.GenerateDone(usage=usage, timings=timings))


@asynccontextmanager
async def serving(generator: PromptGenerator) -> AsyncIterator[str]:
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    generation_pb2_grpc.add_GenerationServicer_to_server(generator, server)  # type: ignore[no-untyped-call]
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


async def load_test(generator: PromptGenerator, options: str) -> Outcome:
    fixed = (
        "--duration 2 --warmup 0 --corpus 10 --k 3 --chunk-tokens 12 --question-tokens 4 "
        "--generated 3 --streams 2"
    )
    args = _parser().parse_args([*fixed.split(), *options.split()])
    async with serving(generator) as target:
        return await run_against(
            target, Setting.of_options(args), plan_of(args), Console(file=io.StringIO()), args.slo
        )


async def test_every_request_arrives_as_it_was_planned_and_is_counted() -> None:
    generator = PromptGenerator()
    outcome = await load_test(
        generator, "--rate 20 --slo ttft:5s --reuse full,reordered --questions-per-request 2"
    )
    assert outcome.level == "generate", "the model has no tokenizer"
    assert [(r.reuse, r.statuses, r.holds) for r in outcome.rates] == [
        ("full", {"OK": 40}, True),
        ("reordered", {"OK": 40}, True),
    ]
    assert len(generator.prefilled) == len(set(generator.prefilled)) == 10
    for request in generator.requests:
        chunks = [tuple(chunk.token_ids.ids) for chunk in request.chunks]
        assert len(set(chunks)) == 3
        assert set(chunks) <= set(generator.prefilled)
        assert [len(question.token_ids.ids) for question in request.questions] == [4, 4]
        assert (request.sampling.max_tokens, request.meta.tenant) == (3, "load-test")
    asked = {request.reuse for request in generator.requests}
    assert asked == {"full", "reordered"}
    tokens = outcome.rates[0].tokens
    assert (tokens.resident, tokens.loaded, tokens.computed) == (40 * 15, 40 * 5, 40 * 10)
    names = {measurement.name for measurement in outcome.measurements()}
    assert {"goodput_full", "goodput_reordered", "gateway_overhead_ms", "token_overhead_ms"} <= names
    intervals = Counter(request.meta.stream_interval_ms for request in generator.requests)
    assert intervals[0] == sum(len(one.single_tpot_ms) for one in outcome.gathered) > 0
    assert set(intervals) == {0, 50}
    assert {one.num_streams for one in outcome.gathered} == {1, 2}


@pytest.mark.parametrize(
    ("generator", "status", "num_bad"),
    [
        (PromptGenerator(overloaded=4), "RESOURCE_EXHAUSTED", 10),
        (PromptGenerator(breaks=True), "UNAVAILABLE", 40),
    ],
)
async def test_failures_are_counted_by_status_and_miss_the_slo(
    generator: PromptGenerator, status: str, num_bad: int
) -> None:
    (result,) = (await load_test(generator, "--rate 20 --slo ttft:5s --quality 0 --stream-interval 0")).rates
    assert result.statuses[status] == num_bad
    assert sum(result.statuses.values()) == result.num_requests == 40
    assert not result.holds
    assert status in result.details


async def test_an_unreachable_target_is_an_error_that_says_so() -> None:
    args = _parser().parse_args(["--rate", "1"])
    with pytest.raises(Unavailable, match="connect"):
        await run_against(
            "127.0.0.1:1", Setting.of_options(args), plan_of(args), Console(file=io.StringIO()), args.slo
        )
