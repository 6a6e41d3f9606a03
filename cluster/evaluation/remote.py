"""Asks a running system, through the generator's public client: what is served, adapters, encodings and
selector included, is what is evaluated.

Cases are made and cut here, by the model's own tokenizer, and sent with their token ids and what they stand
behind. Their chunks are stored as those of any request are; no document refers to them, so the store's
garbage collection takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from cluster.evaluation.answers import TOP, EvalAnswer, Told, graded
from cluster.evaluation.arithmetic import shape_of
from cluster.evaluation.arms import FULL, EvalArm
from cluster.evaluation.cases import EvalCase, EvalTask
from cluster.evaluation.preparing import CasePreparer, PreparedCase, positions_of, prompts_of
from cluster.gate.answering import Models
from shared.clients.generation import GenerationClient
from shared.errors import ConfigError
from shared.generation.asked import SamplingParams
from shared.generation.described import ModelDescription
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.orders import NO_ADAPTER, GenerationOrder, Reuse
from shared.generation.pieces import Conditioned, Piece, Tokenized
from shared.generation.told import BranchDoneEvent, DoneEvent, GenerationEvent, SelectedEvent, TokenEvent
from shared.kv_types import KvContext
from shared.measuring.paired import divergence
from shared.prompt import PromptTokenizer
from shared.request import MAX_STREAM_INTERVAL_MS, RequestContext

Connect = Callable[[], AbstractAsyncContextManager[GenerationClient]]
_AT_ONCE = 4
_PATIENCE_MS = 600_000


class RemoteBench:
    """``models``: what is served, of which the tokenizer and the settings are read here. ``connect``: to its
    generator. ``positions``: of a prompt and its answer; 0: as many as the model has."""

    contexts_at_once = _AT_ONCE

    def __init__(
        self,
        models: Models,
        contexts: Sequence[KvContext],
        connect: Connect,
        tenant: str = "",
        positions: int = 0,
        retrieve: int = 0,
    ) -> None:
        """
        Raises:
            ConfigError: something else is served; names what differs.
            Unavailable: nobody answers there.
        """
        from transformers import AutoConfig

        self._connect, self._tenant, self._stop = connect, tenant, models.stop
        self.prompts = prompts_of(models)
        served = asyncio.run(self._described())
        check_served(served, self.prompts, models.primary)
        config = AutoConfig.from_pretrained(models.primary)
        self.positions = positions_of(positions, served.max_positions)
        self._preparer = CasePreparer(
            models, self.prompts, contexts, self.positions, config.vocab_size, served.fingerprint, retrieve
        )
        self.cutter = self._preparer.cutter
        self._shape = shape_of(config)
        self.fingerprints: Mapping[str, str] = {
            "primary": served.fingerprint,
            "auxiliary": "as served",
            "kv_encoding": served.kv_encoding,
        }

    def close(self) -> None:
        """Nothing is held between calls."""

    def ask(
        self, task: EvalTask, cases: Sequence[EvalCase], arms: Sequence[EvalArm]
    ) -> list[list[EvalAnswer]]:
        """Of each case its answers in all of ``arms``, `full` among them.

        Raises:
            KvquiltError: a request failed.
        """
        return asyncio.run(self._ask(task, cases, arms))

    async def _described(self) -> ModelDescription:
        async with self._connect() as client:
            return await client.describe(self._context())

    async def _ask(
        self, task: EvalTask, cases: Sequence[EvalCase], arms: Sequence[EvalArm]
    ) -> list[list[EvalAnswer]]:
        asked = [self._preparer.prepare(task, case) for case in cases]
        sampling = SamplingParams(max_tokens=task.max_tokens, top_logprobs=TOP, stop=self._stop)
        alone = NO_ADAPTER if any(arm.adapter for arm in arms) else ""
        async with self._connect() as client:
            told_by = partial(self._told, client, alone)
            for context in dict.fromkeys(arm.context for arm in arms if arm.context is not None):
                stored = EvalArm(ReuseMode.REORDERED, context)
                once = SamplingParams(max_tokens=1)
                await _together(told_by(one, stored, once) for one in asked)
            full = await _together(told_by(one, FULL, sampling) for one in asked)
            found: list[list[EvalAnswer]] = [[] for _ in asked]
            for arm in arms:
                replies = full
                if arm != FULL:
                    replies = await _together(told_by(one, arm, sampling) for one in asked)
                for i, (one, (told, seconds)) in enumerate(zip(asked, replies, strict=True)):
                    likeliest, ours = (dict(t.first.top_logprobs) for t in (full[i][0], told))
                    kl = divergence(likeliest, ours)
                    found[i].append(graded(task, one, arm, told, kl, seconds, self._shape))
        return found

    async def _told(
        self,
        client: GenerationClient,
        alone: str,
        one: PreparedCase,
        arm: EvalArm,
        sampling: SamplingParams,
    ) -> tuple[Told, float]:
        """Returns what it was answered, and the seconds that it took. ``alone``: the adapter where ``arm``
        has none; empty: the service's own."""
        order = GenerationOrder(
            tuple(pieces_of(one, arm)),
            (Tokenized(one.question_ids, one.case.question),),
            reuse=Reuse(arm.mode or ReuseMode.FULL, Recompute(arm.ratio), adapter=arm.adapter or alone),
            sampling=sampling,
        )
        events = [event async for event in client.generate(self._context(), order)]
        return told_of(events)

    def _context(self) -> RequestContext:
        """Nobody reads along, so that the whole answer may come together."""
        return RequestContext.create(
            tenant=self._tenant, deadline_ms=_PATIENCE_MS, stream_interval_ms=MAX_STREAM_INTERVAL_MS
        )


def pieces_of(one: PreparedCase, arm: EvalArm) -> list[Piece]:
    """The placed chunks, with what they stand behind."""
    ingested = one.ingested_as(arm)
    pieces: list[Piece] = []
    for i in one.placed(arm):
        chunk = Tokenized(ingested.chunks[i].token_ids, one.cut.texts[i])
        context = tuple(link.token_ids for link in ingested.contexts[i]) if arm.context else ()
        pieces.append(Conditioned(chunk, context) if context else chunk)
    return pieces


def told_of(events: Sequence[GenerationEvent]) -> tuple[Told, float]:
    """``events``: of a whole answer."""
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    rest = "".join(event.text for event in events if isinstance(event, BranchDoneEvent))
    selection = next((e for e in events if isinstance(e, SelectedEvent)), SelectedEvent(()))
    done = events[-1]
    assert isinstance(done, DoneEvent)
    text = "".join(token.text for token in tokens) + rest
    return Told(text.strip(), tokens[0], selection, done.usage), done.timings.total_s


def check_served(served: ModelDescription, prompts: PromptTokenizer, model: str) -> None:
    """
    Raises:
        ConfigError: another tokenizer or prompt than those of ``model``; names the first that differs.
    """
    template = prompts.template
    differs = {
        "tokenizer": served.tokenizer_hash != prompts.hash,
        "prompt prefix": served.prefix_ids != prompts.prefix_ids,
        "chunk template": served.chunk_template != template.chunk,
        "question template": served.question_template != template.question,
    }
    if found := [name for name, is_other in differs.items() if is_other]:
        raise ConfigError(
            f"--via: {served.model} is served there with another {found[0]} than {model} has here; name the "
            "served model by --model, and its quilt.yaml by --config"
        )


async def _together(requests: Iterable[Awaitable[tuple[Told, float]]]) -> list[tuple[Told, float]]:
    return list(await asyncio.gather(*requests))
