"""Measures whether a follow-up question's passage is among the hits, by what is searched: the question as it
is (`last`), with what the user said before (`joined`), as the model writes it to stand alone (`rewrite`), and
as somebody would ask it first (`named`), which is what rewriting can reach.

    python -m load_tests.follow_ups --json build/follow_ups.json        SmolLM2, 200 conversations
    python -m load_tests.follow_ups --model demo --conversations 20     whether it runs

Conversations are about invented things; the last question says "it" where it means one of them. Every number
has a 95 % interval (min, max). In-process: the gateway's own rewriting, the generator, the search.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console

from cluster.models.names import SMOLLM2
from cluster.models.resolution import resolve_model
from load_tests.benchmark import at_least, exit_code, json_option, new_parser, option, printed, say
from load_tests.follow_ups.conversations import Talk, conversations
from load_tests.retrieval.bench import retrieval_of
from services.gateway.config import FollowUpsConfig, FollowUpSearch
from services.gateway.follow_ups import FollowUps
from services.generator.config import GeneratorConfig
from services.generator.loading import load_generator
from services.generator.service import Generator
from services.retrieval.embedder import EmbedderSettings
from services.retrieval.service import RetrievalService
from services.retrieval.transformer_embedder import MINILM
from shared.answer import FollowUp, Inquiry
from shared.generation.orders import GenerationOrder
from shared.generation.told import BranchDoneEvent, DoneEvent, GenerationEvent, TokenEvent
from shared.measuring.paired import Clusters
from shared.measuring.report import Measurement, write_report
from shared.request import RequestContext
from shared.search import IndexedDocument, SearchMode

NAME = "load_tests.follow_ups"
_COLLECTION = "bench"
_DAY_S = 24 * 3600.0
_QUERIES_PER_CALL = 32
_SHOWN = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    parser = new_parser(NAME, __doc__)
    option(parser, "--model", SMOLLM2, "a name, a directory or a GGUF file, as of `kvquilt up`")
    option(parser, "--conversations", 200, "and as many documents", type=at_least(2))
    option(parser, "--k", 3, "hits per question", type=at_least(1))
    option(parser, "--seed", 1, "of the conversations")
    json_option(parser)
    args = parser.parse_args(argv)
    return exit_code("follow_ups", Console(stderr=True, highlight=False), lambda: _measure(args))


def _measure(args: argparse.Namespace) -> None:
    model = resolve_model(args.model, "--model", os.environ)
    documents, talks = conversations(args.conversations, args.seed)
    with (
        TemporaryDirectory(prefix="kvquilt-follow-ups-") as directory,
        retrieval_of(EmbedderSettings(MINILM), 0, Path(directory)) as service,
    ):
        found = asyncio.run(_found(model, service, documents, talks, args.k))
    measurements = printed(findings(found, args.k))
    if args.json:
        write_report(args.json, measurements)


async def _found(
    model: str,
    service: RetrievalService,
    documents: Sequence[IndexedDocument],
    talks: Sequence[Talk],
    k: int,
) -> dict[str, list[bool]]:
    """Whether the passage of each conversation's follow-up was found, by what was searched; ``failed``:
    whether rewriting did."""
    ctx = RequestContext.create("bench", deadline_ms=int(1000 * _DAY_S))
    for document in documents:
        await service.index(ctx, _COLLECTION, document)
    found: dict[str, list[bool]] = {}
    with _generating(model) as generator:
        for search in FollowUpSearch:
            asking = FollowUps(FollowUpsConfig(search, timeout_s=_DAY_S), _InProcess(generator))
            by = [await asking.searched_by(ctx, _inquiry(talk)) for talk in talks]
            queries = [one.queries[0] for one in by]
            for talk, query in zip(talks[:_SHOWN], queries, strict=False):
                say(f"{search}: {talk.follow_up!r} ({talk.named!r}) is searched by as {query!r}")
            found[search.value] = await _hit(service, ctx, queries, talks, k)
            if search is FollowUpSearch.REWRITE:
                found["failed"] = [one.follow_up is FollowUp.FAILED for one in by]
    found["named"] = await _hit(service, ctx, [talk.named for talk in talks], talks, k)
    return found


def _inquiry(talk: Talk) -> Inquiry:
    return Inquiry(_COLLECTION, (talk.follow_up,), turns=talk.turns)


async def _hit(
    service: RetrievalService,
    ctx: RequestContext,
    queries: Sequence[str],
    talks: Sequence[Talk],
    k: int,
) -> list[bool]:
    hit: list[bool] = []
    for begin in range(0, len(queries), _QUERIES_PER_CALL):
        asked = queries[begin : begin + _QUERIES_PER_CALL]
        rankings = (await service.search(ctx, _COLLECTION, asked, k, SearchMode.HYBRID)).rankings
        for talk, hits in zip(talks[begin:], rankings, strict=False):
            hit.append(any(one.chunk.chunk_id == talk.chunk_id for one in hits))
    return hit


def findings(found: dict[str, list[bool]], k: int) -> Iterator[Measurement]:
    """The baseline of all is the question as it is."""
    last = float(np.mean(found[FollowUpSearch.LAST.value]))
    for name, hits in found.items():
        interval = Clusters(np.arange(len(hits))).interval(lambda mean: mean, np.array(hits))
        value, low, high = interval.value, interval.low, interval.high
        if name == "failed":
            yield Measurement("rewrite_failed", value, "fraction", min=low, max=high, n=len(hits))
            continue
        baseline = None if name == FollowUpSearch.LAST.value else last
        yield Measurement(f"recall@{k}_{name}", value, "fraction", baseline, min=low, max=high, n=len(hits))


class _InProcess:
    """The generator as the gateway asks it."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def generate(
        self, ctx: RequestContext, order: GenerationOrder
    ) -> AsyncGenerator[GenerationEvent, None]:
        plan = await self._generator.plan(ctx, order)
        async with aclosing(self._generator.generate(ctx, plan)) as events:
            async for event in events:
                if isinstance(event, (TokenEvent, BranchDoneEvent, DoneEvent)):  # all that rewriting is told
                    yield event


@contextmanager
def _generating(model: str) -> Iterator[Generator]:
    generator = load_generator(GeneratorConfig(model=model), None, "", asyncio.get_running_loop())
    try:
        yield generator
    finally:
        generator.close()


if __name__ == "__main__":
    sys.exit(main())
