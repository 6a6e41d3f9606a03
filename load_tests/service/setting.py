"""The target made ready: which level, its documents or chunks in place, and the run against it."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cluster.cli.ingest_command import ingest_files
from cluster.cli.remote import generation_client, ingest_client, rag_client
from cluster.cli.sources import find_sources
from cluster.paths import DEMO_ASSETS
from load_tests.service.loads import Load, QuestionLoad, QuestionPlan, TokenLoad, TokenPlan
from load_tests.service.outcome import Outcome
from load_tests.service.plan import LoadPlan
from load_tests.service.run import LoadRun
from load_tests.service.terminal import Terminal
from shared.errors import InvalidRequest
from shared.measuring.rates import measure_rates
from shared.measuring.shapes import SHAPES
from shared.request import RequestContext

DEADLINE_MS = 300_000
PREPARATION_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Setting:
    """``level`` auto: answer where the model has a tokenizer. ``documents`` None: the demo's."""

    tokens: TokenPlan
    level: str = "auto"
    tenant: str = "load-test"
    documents: Path | None = None
    questions: tuple[str, ...] = ()
    collection: str = "load-test"
    answer_k: int = 0

    @classmethod
    def of_options(cls, args: argparse.Namespace) -> Setting:
        """
        Raises:
            InvalidRequest: names the option.
        """
        named = ("generated", "questions_per_request", "chunk_tokens", "question_tokens", "corpus")
        wrong = [name for name in named if getattr(args, name) < 1] + [
            n for n in ("k", "zipf", "vocab") if getattr(args, n) < 0
        ]
        if wrong:
            raise InvalidRequest(f"--{wrong[0].replace('_', '-')}: {getattr(args, wrong[0])} is too small")
        k = args.k or 8
        if k > args.corpus:
            raise InvalidRequest(
                f"--k: a request of {k} different chunks needs a --corpus of at least as many, not "
                f"{args.corpus}"
            )
        vocab = args.vocab or (SHAPES[args.shape].vocab if args.shape else 256)
        tokens = TokenPlan(
            k=k,
            chunk_len=args.chunk_tokens,
            corpus=args.corpus,
            zipf=args.zipf,
            question_len=args.question_tokens,
            num_questions=args.questions_per_request,
            num_generated=args.generated,
            vocab=vocab,
            seed=args.seed,
        )
        level = "generate" if args.shape and args.level == "auto" else args.level
        questions = read_questions(args.questions or DEMO_ASSETS / "questions.json")
        return cls(tokens, level, args.tenant, args.documents, questions, args.collection, args.k)

    def context(self, deadline_ms: int = DEADLINE_MS) -> RequestContext:
        return RequestContext.create(tenant=self.tenant, deadline_ms=deadline_ms)


async def run_against(target: str, setting: Setting, plan: LoadPlan, console: Console, slo: str) -> Outcome:
    """
    Raises:
        KvquiltError: the target cannot be reached, cannot be prepared, or failed without load.
    """
    level = await _level(target, setting)
    async with _prepared(target, level, setting, console) as (load, words):
        with console.status("") as status:
            findings = await LoadRun(load, plan, Terminal(console, status)).findings()
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


async def _level(target: str, setting: Setting) -> str:
    if setting.level != "auto":
        return setting.level
    async with generation_client(target) as client:
        model = await client.describe(setting.context())
    return "answer" if model.tokenizer_hash else "generate"


@asynccontextmanager
async def _prepared(
    target: str, level: str, setting: Setting, console: Console
) -> AsyncIterator[tuple[Load, dict[str, str]]]:
    """The load, and what it asks, in words. What was ingested for it is deleted afterwards; prefilled chunks
    belong to no document, so the store's garbage collection takes them."""
    if level == "generate":
        async with generation_client(target) as generation:
            load = TokenLoad(generation, setting.tokens, setting.context)
            await _prefill(
                TokenLoad(generation, setting.tokens, lambda: setting.context(PREPARATION_MS)),
                setting,
                console,
            )
            yield load, {name: str(value) for name, value in asdict(setting.tokens).items()}
        return
    plan = QuestionPlan(
        setting.collection,
        setting.questions,
        k=setting.answer_k,
        num_questions=setting.tokens.num_questions,
        num_generated=setting.tokens.num_generated,
        zipf=setting.tokens.zipf,
        seed=setting.tokens.seed,
    )
    words = asdict(plan) | {"questions": len(plan.questions)}
    async with rag_client(target) as rag, _ingested(target, setting, console):
        yield QuestionLoad(rag, plan, setting.context), {name: str(value) for name, value in words.items()}


@asynccontextmanager
async def _ingested(target: str, setting: Setting, console: Console) -> AsyncIterator[None]:
    """Documents that were there before are somebody's: such a collection is asked as it is, and left as it
    is."""
    async with ingest_client(target) as client:
        if (await client.list_page(setting.context(), setting.collection, limit=1)).documents:
            console.print(
                f"collection {setting.collection} holds documents already: they are asked, nothing is "
                "ingested"
            )
            yield
            return
        sources = find_sources([setting.documents or DEMO_ASSETS / "documents"]).files
        console.print(f"ingesting {len(sources)} documents into collection {setting.collection}")
        preparing = setting.context(PREPARATION_MS)
        try:
            summary = await ingest_files(
                console, lambda batch: client.upsert(preparing, setting.collection, batch), sources
            )
            summary.print(console)
            yield
        finally:
            await asyncio.shield(client.delete(setting.context(), setting.collection, everything=True))


async def _prefill(load: TokenLoad, setting: Setting, console: Console) -> None:
    columns = (TextColumn("prefilling chunks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=setting.tokens.corpus)
        await load.prepare(lambda chunk: bar.advance(task))
    console.print(f"{setting.tokens.corpus} chunks of {setting.tokens.chunk_len} tokens are stored")


def read_questions(path: Path) -> tuple[str, ...]:
    """
    Raises:
        InvalidRequest: no such file, or no question in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            questions = [entry["question"] for entry in json.loads(text)]
        else:
            questions = [line.strip() for line in text.splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"--questions {path}: cannot be read: {error}") from None
    found = tuple(question for question in questions if question)
    if not found:
        raise InvalidRequest(f"--questions {path}: holds no question")
    return found
