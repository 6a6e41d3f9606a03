"""Makes the target ready (which level, its documents or chunks in place), and runs against it."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cluster.cli.ingest_command import ingest_files
from cluster.cli.sources import find_sources
from cluster.paths import DEMO_ASSETS
from load_tests.engine.ours import Ours
from load_tests.service.http_clients import bare_client
from load_tests.service.http_load import HttpLoad
from load_tests.service.loads import Load, QuestionLoad, QuestionPlan, TokenLoad, TokenPlan
from load_tests.service.outcome import Outcome
from load_tests.service.plan import LoadPlan, options_of
from load_tests.service.run import LoadRun
from load_tests.service.sample import MS
from load_tests.service.terminal import Terminal
from shared.clients.doors import generation_client, ingest_client, rag_client
from shared.clients.ingest import IngestClient
from shared.config import API_KEY
from shared.errors import InvalidRequest, NotFound
from shared.measuring.case import Case
from shared.measuring.rates import measure_rates
from shared.measuring.shapes import SHAPES
from shared.principals.credentials import Credentials, bearer, no_credentials
from shared.request import READERS_STREAM_INTERVAL_MS, RequestContext

DEADLINE_MS = 300_000
PREPARATION_MS = 3_600_000
LIBRARY_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """``level`` auto: answer where the model has a tokenizer; ``tokens`` are asked at level generate,
    ``questions`` at level answer. ``documents`` None: the demo's. ``http``: the target's HTTP address, to be
    compared at level answer; empty: it is not. ``key``: who asks, where callers have keys."""

    tokens: TokenPlan
    questions: QuestionPlan
    level: str = "auto"
    tenant: str = "load-test"
    documents: Path | None = None
    http: str = ""
    key: str = field(default="", repr=False)
    stream_interval_ms: int = READERS_STREAM_INTERVAL_MS

    @classmethod
    def of_options(cls, args: argparse.Namespace) -> Setting:
        """
        Raises:
            InvalidRequest: names the option.
        """
        k = args.k or 8
        if k > args.corpus:
            raise InvalidRequest(
                f"--k: a request of {k} different chunks needs a --corpus of at least as many, not "
                f"{args.corpus}"
            )
        vocab = args.vocab or (SHAPES[args.shape].vocab if args.shape else 256)
        tokens = TokenPlan(**options_of(TokenPlan, args) | {"k": k, "vocab": vocab})
        level = "generate" if args.shape and args.level == "auto" else args.level
        questions = QuestionPlan(**options_of(QuestionPlan, args))
        if args.http and (level == "generate" or questions.num_questions > 1):
            raise InvalidRequest("--http: is for level answer and one question per request; leave it out")
        key = args.key_file.read_text(encoding="utf-8").strip() if args.key_file else ""
        key = key or os.environ.get(API_KEY, "")
        return cls(
            tokens, questions, level, args.tenant, args.documents, args.http, key, args.stream_interval_ms
        )

    @property
    def credentials(self) -> Credentials:
        return bearer(self.key) if self.key else no_credentials

    def context(self, deadline_ms: int = DEADLINE_MS) -> RequestContext:
        return RequestContext.create(
            tenant=self.tenant, deadline_ms=deadline_ms, stream_interval_ms=self.stream_interval_ms
        )


async def run_against(target: str, setting: Setting, plan: LoadPlan, console: Console, slo: str) -> Outcome:
    """
    Raises:
        KvquiltError: the target cannot be reached, cannot be prepared, or failed without load.
    """
    level = await _level(target, setting)
    async with _prepared(target, level, setting, console) as (load, words), _over_http(setting, load) as http:
        with console.status("") as status:
            run = LoadRun(load, plan, Terminal(console, status), http, _singly(setting, load))
            findings = await run.findings()
    return Outcome(
        target=target,
        level=level,
        load=words,
        slo=slo,
        slo_fraction=plan.slo.fraction,
        limits_ms=findings.limits_ms,
        unloaded=findings.unloaded,
        rates=findings.rates,
        quality=findings.quality,
        token_overhead_ms=findings.token_overhead_ms,
        both_ways=findings.both_ways,
        gathered=findings.gathered,
    )


def machine_limits(outcome: Outcome, setting: Setting, shape: str) -> tuple[Outcome, dict[str, float]]:
    """The outcome with the highest rates that this machine's arithmetic allows, and its peak rates."""
    rates, sizes, tokens = measure_rates(), SHAPES[shape], setting.tokens
    context = tokens.prefix_len + tokens.k * tokens.chunk_len
    asked = tokens.question_len * tokens.num_questions
    generated = sizes.flops(1, context) * tokens.num_generated * tokens.num_questions
    stored = sizes.flops(asked, context) + generated
    # A causal prefill sees half of its own keys on average.
    computed = sizes.flops(context + asked, context // 2) + generated
    limits = {mode: rates.flops / (computed if mode == "full" else stored) for mode in outcome.modes}
    return replace(outcome, rate_limits=limits), asdict(rates)


def library_tpot_ms(setting: Setting, shape: str) -> tuple[float, ...]:
    """Returns what a token takes the engine as a library, over contexts as long as the requests'."""
    tokens = setting.tokens
    case = Case(
        SHAPES[shape],
        context=tokens.k * tokens.chunk_len,
        question=tokens.question_len,
        decode=max(1, tokens.num_generated - 1),
        chunk_len=tokens.chunk_len,
        prefix=tokens.prefix_len,
    )
    library = Ours(case)
    rates = [library.decode_rate(tokens.num_questions) for _ in range(1 + LIBRARY_ROUNDS)]
    return tuple(MS * tokens.num_questions / rate for rate in rates[1:])


async def _level(target: str, setting: Setting) -> str:
    if setting.level != "auto":
        return setting.level
    async with generation_client(target, setting.credentials) as client:
        model = await client.describe(setting.context())
    return "answer" if model.tokenizer_hash else "generate"


@asynccontextmanager
async def _prepared(
    target: str, level: str, setting: Setting, console: Console
) -> AsyncIterator[tuple[TokenLoad | QuestionLoad, dict[str, str]]]:
    """The load, and what it asks, in words. What was ingested for it is deleted afterwards; prefilled chunks
    belong to no document, so the store's garbage collection takes them."""
    if level == "generate":
        async with generation_client(target, setting.credentials) as generation:
            load = TokenLoad(generation, setting.tokens, setting.context)
            await _prefill(
                TokenLoad(generation, setting.tokens, lambda: setting.context(PREPARATION_MS)),
                setting,
                console,
            )
            yield load, {name: str(value) for name, value in asdict(setting.tokens).items()}
        return
    plan = setting.questions
    words = asdict(plan) | {"questions": len(plan.questions)}
    async with rag_client(target, setting.credentials) as rag, _ingested(target, setting, console):
        yield QuestionLoad(rag, plan, setting.context), {name: str(value) for name, value in words.items()}


def _singly(setting: Setting, load: TokenLoad | QuestionLoad) -> Load | None:
    """The same load with a message for each event, where that is not what is asked anyway."""
    if not setting.stream_interval_ms:
        return None
    return load.asked(replace(setting, stream_interval_ms=0).context)


@asynccontextmanager
async def _over_http(setting: Setting, load: Load) -> AsyncIterator[HttpLoad | None]:
    """The same load over HTTP, where it can be asked so."""
    if not setting.http or not isinstance(load, QuestionLoad) or load.plan.num_questions > 1:
        yield None
        return
    async with bare_client(setting.http, setting.key) as client:
        yield HttpLoad(client, load)


async def _is_there(client: IngestClient, setting: Setting) -> bool:
    """Whether the collection holds documents."""
    try:
        page = await client.list_page(setting.context(), setting.questions.collection, limit=1)
    except NotFound:
        return False
    return bool(page.documents)


@asynccontextmanager
async def _ingested(target: str, setting: Setting, console: Console) -> AsyncIterator[None]:
    """Documents that were there before are somebody's: such a collection is asked as it is, and left as it
    is."""
    collection = setting.questions.collection
    async with ingest_client(target, setting.credentials) as client:
        if await _is_there(client, setting):
            console.print(
                f"collection {collection} holds documents already: they are asked, nothing is ingested"
            )
            yield
            return
        sources = find_sources([setting.documents or DEMO_ASSETS / "documents"]).files
        console.print(f"ingesting {len(sources)} documents into collection {collection}")
        preparing = setting.context(PREPARATION_MS)
        try:
            summary = await ingest_files(
                console, lambda batch: client.upsert(preparing, collection, batch), sources
            )
            summary.print(console)
            yield
        finally:
            await asyncio.shield(client.delete(setting.context(), collection, everything=True))


async def _prefill(load: TokenLoad, setting: Setting, console: Console) -> None:
    columns = (TextColumn("prefilling chunks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=setting.tokens.corpus)
        await load.prepare(lambda chunk: bar.advance(task))
    console.print(f"{setting.tokens.corpus} chunks of {setting.tokens.chunk_len} tokens are stored")
