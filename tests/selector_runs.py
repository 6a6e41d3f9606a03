"""The selector's service over a directory of KV files, and what the library says to the same request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast

from services.selector.config import SelectorConfig
from services.selector.service import SelectorService
from shared.engine.kv.segment import Segment
from shared.generation.selection import (
    EncodedChunk,
    Grouping,
    Reading,
    SelectedTokens,
    SelectionChunk,
    SelectionLink,
    SelectionOrder,
)
from shared.kv_types import Chain
from shared.prompt import PromptTokenizer
from shared.prompt_template import PromptTemplate
from shared.request import RequestContext
from shared.selection.auxiliary import Auxiliary
from shared.selection.selector import Selector
from shared.selection.spans import SpanTokenizer
from shared.selection.stock import StockScorer
from shared.stored_segments.files import KvShape
from shared.stored_segments.source import StoreSegmentSource
from tests.kv_directory import DirectoryStore
from tests.selection_runs import auxiliary_of
from tests.token_families import CORPUS, tokenizer_of

PRIMARY = "byte-level BPE"
PASSAGES = [f"{CORPUS[i]} The mayor of town {i} is the founder of mine {i * 7}. " * 2 for i in (0, 2, 4, 7)]
QUESTION = "who is the mayor?"


def primary() -> PromptTokenizer:
    return PromptTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer_of(PRIMARY)), PromptTemplate())


@lru_cache
def engine_auxiliary(**changes: Any) -> Auxiliary:
    return auxiliary_of("Unigram", "qwen2", **changes)


@lru_cache
def stock_auxiliary(seed: int = 0, **changes: Any) -> Auxiliary:
    """One that the engine does not drive."""
    tokenizer = tokenizer_of("Unigram")
    prompts = PromptTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer), PromptTemplate(prefix="the mayor ")
    )
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_embd=32, n_layer=2, n_head=2, n_positions=1024, **changes
    )
    scorer = StockScorer(AutoModelForCausalLM.from_config(config, dtype=torch.float32), prompts.prefix_ids)
    return Auxiliary(scorer, SpanTokenizer(tokenizer, "Unigram"), prompts)


@asynccontextmanager
async def selecting(
    store: DirectoryStore, auxiliary: Auxiliary | None = None, **config: Any
) -> AsyncIterator[SelectorService]:
    """Everything is written when it ends."""
    auxiliary = auxiliary or engine_auxiliary()
    shape = KvShape.of_model(auxiliary.scorer, auxiliary.prompts.hash)
    source = StoreSegmentSource(store, "node", asyncio.get_running_loop(), shape)
    service = SelectorService(
        SelectorConfig("auxiliary", PRIMARY, **config), auxiliary, primary(), source, store
    )
    try:
        yield service
        service.check_invariants()
    finally:
        await service.close()


def context(tenant: str = "", deadline_ms: int = 60_000) -> RequestContext:
    return RequestContext.create(tenant=tenant, deadline_ms=deadline_ms)


def chunks_of(texts: Sequence[str]) -> list[SelectionChunk]:
    spans = SpanTokenizer(tokenizer_of(PRIMARY), PRIMARY)
    return [SelectionChunk(text, spans.tokenize(text).token_ids) for text in texts]


@dataclass(frozen=True)
class Document:
    """A document of a chain: header and passages, as the primary's KV of them is named and its manifest tells
    it. ``header_len``: tokens that the primary has of the header; None: all."""

    passages: tuple[str, ...] = tuple(PASSAGES)
    header: str = "The towns of the valley and their mines"
    header_len: int | None = None
    tenant: str = "default"

    @property
    def chain(self) -> Chain:
        texts = (self.header, *self.passages)
        ids = [chunk.token_ids for chunk in chunks_of([with_template(text) for text in texts])]
        ids[0] = ids[0][: self.header_len]
        return Chain(self.tenant, "primary model", (1,), tuple(ids), texts)

    def parent_of(self, index: int) -> str:
        """Identity of what the passage stands behind."""
        return self.chain.identities[index]

    def store_in(self, store: DirectoryStore) -> None:
        chain = self.chain
        for i, identity in enumerate(chain.identities):
            store.chains[identity] = replace(chain, links=chain.links[: i + 1], texts=chain.texts[: i + 1])

    def by_parents(self) -> list[SelectionChunk]:
        """The passages, as a question names them."""
        chunks = chunks_of([with_template(text) for text in self.passages])
        return [replace(chunk, parent_id=self.parent_of(i)) for i, chunk in enumerate(chunks)]

    def by_context(self) -> list[SelectionChunk]:
        """The passages, as ingestion names them: each behind the one before it in the call."""
        chain = self.chain
        first, *others = (
            replace(chunk, chunk_id=chain.identities[i + 1]) for i, chunk in enumerate(self.by_parents())
        )
        header = SelectionLink(with_template(self.header), chain.links[0])
        return [replace(first, parent_id="", context=(header,)), *others]

    def segments(self, auxiliary: Auxiliary) -> list[Segment]:
        """The auxiliary's KV of the passages, by the library: behind the header and each other."""
        links = [auxiliary.tokenizer.tokenize(text).token_ids for text in self._read()]
        chain: list[Segment] = []
        for link in links:
            chain += auxiliary.scorer.encode([link], chain)
        return chain[1:]

    def _read(self) -> list[str]:
        """With the template; of a header that was cut, what is left of it."""
        header, *passages = map(with_template, (self.header, *self.passages))
        spans = SpanTokenizer(primary(), PRIMARY).tokenize_chunk(header)
        end = len(header) if self.header_len is None else int(spans.ends[self.header_len - 1])
        return [header[:end], *passages]


def with_template(text: str) -> str:
    return primary().template.chunk.replace("{text}", text)


async def select_each(
    service: SelectorService,
    texts: Sequence[str] = tuple(PASSAGES),
    questions: Sequence[str] = (QUESTION,),
    ratio: float = 0.2,
    grouping: Grouping = Grouping.BUDGET,
    reading: Reading = Reading.STITCHED,
    ctx: RequestContext | None = None,
) -> tuple[SelectedTokens, ...]:
    order = SelectionOrder(tuple(chunks_of(texts)), tuple(questions), ratio, grouping, reading)
    return await service.select(ctx or context(), order)


async def select(
    service: SelectorService,
    texts: Sequence[str] = tuple(PASSAGES),
    ratio: float = 0.2,
    ctx: RequestContext | None = None,
) -> SelectedTokens:
    """For one question."""
    (selected,) = await select_each(service, texts, ratio=ratio, ctx=ctx)
    return selected


async def encode(
    service: SelectorService, texts: Sequence[str] = tuple(PASSAGES), tenant: str = ""
) -> list[EncodedChunk]:
    return await encode_all(service, chunks_of(texts), tenant)


async def encode_all(
    service: SelectorService, chunks: Sequence[SelectionChunk], tenant: str = ""
) -> list[EncodedChunk]:
    return [encoded async for encoded in service.encode(context(tenant), chunks)]


def by_the_library(
    auxiliary: Auxiliary,
    texts: Sequence[str],
    question: str,
    ratio: float,
    grouping: Grouping,
    reading: Reading,
    segments: Sequence[Segment] = (),
) -> tuple[Any, ...]:
    """``told`` of the same question, with every chunk computed by itself, as the service does.
    ``segments``: instead of that."""
    selector = Selector(auxiliary, SpanTokenizer(tokenizer_of(PRIMARY), PRIMARY))
    paired = [selector.pair(text) for text in texts]
    segments = segments or [selector.encode([chunk])[0] for chunk in paired]
    selection = selector.select(paired, segments, question, ratio, grouping, reading)
    chosen = np.concatenate([np.zeros(0, dtype=bool), *selection.chosen])
    scores = np.concatenate([np.zeros(0, dtype=np.float32), *selection.scores])
    return (
        tuple(np.flatnonzero(chosen).tolist()),
        tuple(scores.tolist()),
        selection.reading,
        selection.num_picked,
        selection.num_grouped,
    )


def told(selected: SelectedTokens) -> tuple[Any, ...]:
    """Everything but the timings."""
    return selected.tokens, selected.scores, selected.reading, selected.num_picked, selected.num_grouped
