"""Measures pasted text, by pairs: the time to the first token of a question over documents that were pasted
into it, the first time, and the second time in another order.

    python -m load_tests.pasted --json build/pasted.json       SmolLM2, 8 documents of 512 tokens
    python -m load_tests.pasted --documents 4 --tokens 300 --pairs 4      whether it runs

Over HTTP (`/v1/chat/completions`, streamed), on a stack of its own; every pair has documents that nobody has
seen, all in one user message with empty lines between them, and nothing is ingested. Printed are the medians,
the median of the pairs' ratios with its 95 % interval, and the share of the prompt's tokens that was there
(`cached_tokens`). `docs/pasted-text.md` says what is promised: at least halved.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence

import openai
from rich.console import Console

from cluster.models.names import SMOLLM2
from cluster.models.resolution import resolve_model
from load_tests.benchmark import at_least, exit_code, json_option, new_parser, option, printed, say
from load_tests.pasted.documents import prose
from load_tests.pasted.pairs import AskedOnce, AskedTwice, ask_twice, findings
from load_tests.service.demo_cluster import demo_cluster
from load_tests.service.http_clients import openai_client
from shared.errors import ConfigError, FailedPrecondition
from shared.generation.modes import ReuseMode
from shared.measuring.report import write_report
from shared.prompt import PromptTokenizer

NAME = "load_tests.pasted"
QUESTION = "What did the surveyor measure, and when?"
WARM_UP = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    parser = new_parser(NAME, __doc__)
    option(parser, "--model", SMOLLM2, "a name, a directory or a GGUF file, as of `kvquilt up`")
    option(parser, "--documents", 8, "pasted into one message", type=at_least(2))  # of one there is one order
    option(parser, "--tokens", 512, "of each document", type=at_least(64))
    option(parser, "--pairs", 12, "that are measured", type=at_least(2))
    option(parser, "--mode", str(ReuseMode.REORDERED), "how KV is reused")
    json_option(parser)
    args = parser.parse_args(argv)
    return exit_code("pasted", Console(stderr=True, highlight=False), lambda: _measure(args))


def _measure(args: argparse.Namespace) -> None:
    model = resolve_model(args.model, "--model", os.environ)
    prompts = PromptTokenizer.of_model(model)
    if prompts is None:
        raise ConfigError(f"--model: {args.model} has no tokenizer, and what is pasted is text")
    with demo_cluster(None, Console(stderr=True, highlight=False), model=model) as state:
        pairs = asyncio.run(_pairs(args, prompts, state.http))
    measurements = printed(findings(pairs))
    if args.json:
        write_report(args.json, measurements)


async def _pairs(args: argparse.Namespace, prompts: PromptTokenizer, address: str) -> list[AskedTwice]:
    def documents(number: int) -> list[str]:
        return [
            prose(f"{number}/{i}", args.tokens, lambda text: len(prompts.encode(text)))
            for i in range(args.documents)
        ]

    async with openai_client(address) as client:
        model = (await client.models.list()).data[0].id

        async def ask(message: str) -> AskedOnce:
            return await _ask(client, f"{model}:{args.mode}", message)

        say(f"{WARM_UP} pair that does not count, then {args.pairs} pairs")
        pairs = [
            await ask_twice(ask, documents(number), QUESTION, number)
            for number in range(WARM_UP + args.pairs)
        ]
    return pairs[WARM_UP:]


async def _ask(client: openai.AsyncOpenAI, model: str, message: str) -> AskedOnce:
    """
    Raises:
        FailedPrecondition: it was refused, or nothing came.
    """
    began_s, ttft_s, usage = time.perf_counter(), 0.0, None
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": message}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"pasted": True, "ignore_eos": True},
        )
        async for chunk in stream:
            if not ttft_s and chunk.choices and chunk.choices[0].delta.content:
                ttft_s = time.perf_counter() - began_s
            usage = chunk.usage or usage
    except openai.APIError as error:
        raise FailedPrecondition(f"over HTTP: {error.message}") from error
    if not ttft_s or usage is None:
        raise FailedPrecondition("over HTTP: the answer has no text")
    told = usage.model_dump()["prompt_tokens_details"]
    return AskedOnce(ttft_s, usage.prompt_tokens, told["cached_tokens"], told["cache_write_tokens"])


if __name__ == "__main__":
    sys.exit(main())
