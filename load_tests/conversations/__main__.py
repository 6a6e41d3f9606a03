"""Measures, by pairs, the time to the first token of a late turn of a conversation: with what the turn before it
has computed of what was said, and without.

    python -m load_tests.conversations --json build/conversations.json                          SmolLM2, the tenth turn
    python -m load_tests.conversations --model demo --turns 3 --documents 1 --tokens 64 --pairs 2     whether it runs

In-process, over one generator; every pair has documents and a conversation that nobody has seen, the documents'
KV is resident for both, and which of the two is asked first alternates. Printed are the medians, the median of
the pairs' ratios with its 95 % interval, and the share of the prompt's tokens that was kept of earlier turns.
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from rich.console import Console

from cluster.models.names import SMOLLM2
from cluster.models.resolution import resolve_model
from load_tests.benchmark import at_least, exit_code, json_option, new_parser, option, printed, say
from load_tests.pasted.documents import prose
from services.generator.config import GeneratorConfig
from services.generator.loading import load_generator
from services.generator.service import Generator
from shared.earlier_turns import EarlierTurn, Speaker, preface_of
from shared.errors import ConfigError
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import GenerationOrder, Reuse
from shared.generation.told import DoneEvent, TokenEvent, Usage
from shared.measuring.paired import median_of
from shared.measuring.report import Measurement, measured, write_report
from shared.request import RequestContext

NAME = "load_tests.conversations"
MS = 1000
_QUESTION = "What did the surveyor measure, and when?"
_WARM_UP = 1
_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class AskedTurn:
    ttft_s: float
    usage: Usage

    @property
    def kept_share(self) -> float:
        return self.usage.conversation_tokens / self.usage.prompt_tokens


@dataclass(frozen=True, slots=True)
class TurnPair:
    """The same turn, with what the one before it left, and without."""

    kept: AskedTurn
    computed: AskedTurn


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    parser = new_parser(NAME, __doc__)
    option(parser, "--model", SMOLLM2, "a name, a directory or a GGUF file, as of `kvquilt up`")
    option(
        parser, "--turns", 10, "the one that is measured; what came before is its history", type=at_least(3)
    )
    option(parser, "--answer-tokens", 100, "of each earlier answer", type=at_least(1))
    option(parser, "--documents", 4, "that all turns are about", type=at_least(1))
    option(parser, "--tokens", 512, "of each document", type=at_least(64))
    option(parser, "--pairs", 12, "that are measured", type=at_least(2))
    json_option(parser)
    args = parser.parse_args(argv)
    return exit_code("conversations", Console(stderr=True, highlight=False), lambda: _measure(args))


def _measure(args: argparse.Namespace) -> None:
    model = resolve_model(args.model, "--model", os.environ)
    measurements = printed(findings(asyncio.run(_pairs(args, model))))
    if args.json:
        write_report(args.json, measurements)


def findings(pairs: Sequence[TurnPair]) -> Iterator[Measurement]:
    kept, computed = [p.kept.ttft_s * MS for p in pairs], [p.computed.ttft_s * MS for p in pairs]
    yield measured("ttft_late_turn", kept, "ms", baseline=computed)
    ratio = median_of([one / other for one, other in zip(kept, computed, strict=True)])
    yield Measurement(
        "ttft_kept_over_computed", ratio.value, "×", min=ratio.low, max=ratio.high, n=len(pairs)
    )
    yield measured("prompt_kept", [100 * p.kept.kept_share for p in pairs], "%", better="higher")


async def _pairs(args: argparse.Namespace, model: str) -> list[TurnPair]:
    generator = load_generator(GeneratorConfig(model=model), None, "", asyncio.get_running_loop())
    try:
        say(f"{_WARM_UP} pair that does not count, then {args.pairs} pairs of turn {args.turns}")
        pairs = [await _pair(args, generator, number) for number in range(_WARM_UP + args.pairs)]
    finally:
        generator.close()
    return pairs[_WARM_UP:]


async def _pair(args: argparse.Namespace, generator: Generator, number: int) -> TurnPair:
    """The turn before is asked first, which also makes the documents resident."""
    if generator.tokenizer is None:
        raise ConfigError(f"--model: {args.model} has no tokenizer, and what was said is text")
    encode = generator.tokenizer.encode

    def written(what: str, num_tokens: int) -> str:
        return prose(f"{number}/{what}", num_tokens, lambda text: len(encode(text)))

    documents = [written(f"document {i}", args.tokens) for i in range(args.documents)]
    said: list[EarlierTurn] = []
    for turn in range(args.turns - 1):
        answer = written(f"answer {turn}", args.answer_tokens)
        said += [EarlierTurn(Speaker.USER, _QUESTION), EarlierTurn(Speaker.ASSISTANT, answer)]
    await _ask(generator, documents, said[:-2], conversation=True)
    asked: dict[bool, AskedTurn] = {}
    for conversation in (True, False) if number % 2 else (False, True):
        asked[conversation] = await _ask(generator, documents, said, conversation)
    return TurnPair(asked[True], asked[False])


async def _ask(
    generator: Generator, documents: Sequence[str], said: Sequence[EarlierTurn], conversation: bool
) -> AskedTurn:
    order = GenerationOrder(
        chunks=tuple(documents),
        questions=(f"{preface_of(said)}\n\n{_QUESTION}",),
        reuse=Reuse(ReuseMode.REORDERED),
        sampling=SamplingParams(max_tokens=1, ignore_eos=True),
        conversation=conversation,
    )
    ctx = RequestContext.create("bench", deadline_ms=_DAY_MS)
    plan = await generator.plan(ctx, order)
    began_s, ttft_s, usage = time.perf_counter(), 0.0, None
    async with aclosing(generator.generate(ctx, plan)) as events:
        async for event in events:
            if isinstance(event, TokenEvent):
                ttft_s = time.perf_counter() - began_s
            elif isinstance(event, DoneEvent):
                usage = event.usage
    assert usage is not None, "a generation ends with what it cost"
    return AskedTurn(ttft_s, usage)


if __name__ == "__main__":
    sys.exit(main())
