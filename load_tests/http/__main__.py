"""Measures what HTTP adds to gRPC, by interleaved pairs.

python -m load_tests.http     on a stack of its own, with the demo's documents
python -m load_tests.http --pairs 200 --rounds 40 --json build/http.json
python -m load_tests.http --target HOST:PORT --http http://HOST:PORT -c NAME     on a running system

The same question is asked over gRPC (`Rag/Answer`) and over HTTP (`/v1/chat/completions`, streamed), one
right after the other; which comes first alternates. Then so many answers at once, over the one and over the
other. Printed are both medians, and the median of what HTTP added with its 95 % interval, beside the aim:
3 ms to the first token, 1 ms per token of 8 streams. The client over HTTP does as little as gRPC's. The first
tokens are then taken again with OpenAI's package as the client (`ttft_openai`), whose own work is in them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from rich.console import Console

from load_tests.benchmark import at_least, exit_code, json_option, new_parser, option, printed, say
from load_tests.http.pairs import TOKEN_AIM_MS, TTFT_AIM_MS, findings, first_token_ms, in_pairs, token_ms
from load_tests.service.demo_cluster import demo_towns
from load_tests.service.driver import Ask
from load_tests.service.http_clients import OpenAiClient, bare_client, openai_client
from load_tests.service.http_load import HttpLoad
from load_tests.service.loads import Load, QuestionLoad, QuestionPlan
from shared.clients.doors import rag_client
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.measuring.report import Measurement, write_report
from shared.request import RequestContext

NAME = "load_tests.http"
COLLECTION, QUESTION = "towns", "Who is the mayor of Almwick?"
WARM_UP = 8


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    parser = new_parser(NAME, __doc__)
    option(parser, "--pairs", 200, "of questions one at a time", type=at_least(2))
    option(parser, "--rounds", 40, "of several answers at once, each over both", type=at_least(2))
    option(parser, "--streams", 8, "at once", type=at_least(1))
    option(parser, "--max-tokens", 32, "of every answer", type=at_least(2))
    option(parser, "--target", "", "a running system, with --http; otherwise a stack is started for this")
    option(parser, "--http", "", "its address by HTTP, as `kvquilt status` prints it")
    parser.add_argument("-c", "--collection", default=COLLECTION, help="of the target")
    option(parser, "--question", QUESTION, "that is asked")
    json_option(parser)
    args = parser.parse_args(argv)
    return exit_code("http", Console(stderr=True, highlight=False), lambda: _measure(args))


def _measure(args: argparse.Namespace) -> None:
    if bool(args.target) != bool(args.http):
        raise InvalidRequest("--target, --http: a running system is named by both")
    if args.target:
        found = asyncio.run(_pairs(args, args.target, args.http))
    else:
        console = Console(stderr=True, highlight=False)
        with demo_towns(console, COLLECTION) as state:
            found = asyncio.run(_pairs(args, state.target, state.http))
    if args.json:
        write_report(args.json, found)


async def _pairs(args: argparse.Namespace, target: str, address: str) -> list[Measurement]:
    plan = QuestionPlan(args.collection, (args.question,), num_generated=args.max_tokens, ignore_eos=True)
    async with rag_client(target) as rag, bare_client(address) as bare, openai_client(address) as package:
        load = QuestionLoad(rag, plan, RequestContext.create)
        grpc, http = _ask_of(load), _ask_of(HttpLoad(bare, load))
        ttft = await _first_tokens("ttft", args.pairs, grpc, http, TTFT_AIM_MS)
        say(f"{args.rounds} rounds of {args.streams} streams")
        streams = token_ms(args.streams)
        await in_pairs(streams, grpc, http, 1)
        per_token = await in_pairs(streams, grpc, http, args.rounds)
        tokens = printed(findings(f"token_{args.streams}_streams", per_token, TOKEN_AIM_MS))
        by_package = _ask_of(HttpLoad(OpenAiClient(package), load))
        return [*ttft, *tokens, *await _first_tokens("ttft_openai", args.pairs, grpc, by_package)]


async def _first_tokens(
    name: str, num_pairs: int, grpc: Ask, http: Ask, aim_ms: float | None = None
) -> list[Measurement]:
    say(f"{WARM_UP} pairs that do not count, {num_pairs} that do")
    await in_pairs(first_token_ms, grpc, http, WARM_UP)
    return printed(findings(name, await in_pairs(first_token_ms, grpc, http, num_pairs), aim_ms))


def _ask_of(load: Load) -> Ask:
    return lambda number, on_token: load.ask(number, ReuseMode.REORDERED, on_token)


if __name__ == "__main__":
    sys.exit(main())
