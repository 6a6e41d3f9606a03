"""Asks the selector which tokens to compute anew, beside the loading of KV. It never stops an answer: what
cannot be asked, fails or is late becomes the configured fallback, and the caller is told why."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from services.generator.chunk_texts import ChunkReader
from services.generator.config import SelectionConfig
from services.generator.identified import Identified
from services.generator.reuse_modes import Reusing
from shared.engine.modes.token_selection import DEFAULT_RATIO
from shared.errors import KvquiltError
from shared.generation.asked import Chunk, chain_of, total_len
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.orders import GenerationOrder
from shared.generation.pieces import Conditioned, Piece
from shared.generation.selection import (
    AuxiliaryDescription,
    SelectedTokens,
    SelectionChunk,
    SelectionLink,
    SelectionOrder,
)
from shared.request import RequestContext
from shared.verdict import BY_RATIO

log = logging.getLogger(__name__)
_KNOWN_FOR_S, _IDENTIFY_S = 10.0, 1.0


class SelectionPort(Protocol):
    """The part of ``shared.clients.selection.SelectionClient`` that is used here."""

    async def select(self, ctx: RequestContext, order: SelectionOrder) -> tuple[SelectedTokens, ...]: ...

    async def describe(self, ctx: RequestContext) -> AuxiliaryDescription: ...


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision on how the engine goes on. ``selected``: for each question; empty: the selector did not say,
    and ``note`` says why; else it says what the selector did not know. ``took_s``: to come to it."""

    mode: ReuseMode
    recompute: Recompute
    took_s: float
    selected: tuple[SelectedTokens, ...] = ()
    note: str = ""


class _NotAskedError(Exception):
    """The selector cannot be asked, or not be believed; says why."""


class Choosing:
    """``auxiliary``: fingerprint of the selector's model, as it was told last; empty: not yet."""

    def __init__(
        self,
        selector: SelectionPort,
        config: SelectionConfig,
        reader: ChunkReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._selector = selector
        self._config = config
        self._reader = reader
        self._clock = clock
        self.auxiliary = ""
        self._known_at = -_KNOWN_FOR_S

    async def identify(self, ctx: RequestContext) -> str:
        """Asks whose model chooses, now and then. Without an answer it is the one that was told last."""
        if self._clock() - self._known_at >= _KNOWN_FOR_S:
            try:
                async with asyncio.timeout(min(_IDENTIFY_S, ctx.remaining_s)):
                    self.auxiliary = (await self._selector.describe(ctx)).fingerprint
                self._known_at = self._clock()
            except (KvquiltError, TimeoutError) as error:
                log.info("the selector does not say what it is: %s", error)
        return self.auxiliary

    async def choose(
        self,
        ctx: RequestContext,
        chunks: Identified,
        order: GenerationOrder,
        reusing: Reusing,
    ) -> Decision:
        """``chunks``: what those of ``order`` became. Raises nothing but cancellation."""
        begun = time.monotonic()
        patience_s = min(self._config.timeout_s, self._config.deadline_share * ctx.remaining_s)
        known = await self.identify(ctx) if reusing.auxiliary else ""
        if known and known != reusing.auxiliary:
            note = "auto is full: the verdict was made for another auxiliary"
            return Decision(ReuseMode.FULL, Recompute(), time.monotonic() - begun, note=note)
        try:
            async with asyncio.timeout(patience_s):
                selected = await self._ask(
                    replace(ctx, deadline_s=begun + patience_s), chunks, order, reusing
                )
        except _NotAskedError as reason:
            why = str(reason)
        except TimeoutError:
            why = f"the selector did not answer within {patience_s:.3g} s"
        except KvquiltError as error:
            why = f"the selector failed: {error.detail}"
        except Exception:
            log.exception("the selector failed on request %s", ctx.request_id)
            why = "the selector failed; the generator's log has the reason"
        else:
            took_s = time.monotonic() - begun
            recompute = Recompute(by_question=tuple(one.tokens for one in selected))
            return Decision(ReuseMode.TOKENS, recompute, took_s, selected, _unread(selected))
        log.warning("request %s goes on with %s: %s", ctx.request_id, self._config.fallback, why)
        return self._fallback(reusing.recompute, time.monotonic() - begun, why)

    async def _ask(
        self,
        ctx: RequestContext,
        chunks: Identified,
        order: GenerationOrder,
        reusing: Reusing,
    ) -> tuple[SelectedTokens, ...]:
        context, asked = await asyncio.to_thread(self._read, chunks, order)
        ratio = DEFAULT_RATIO if reusing.recompute.ratio is None else reusing.recompute.ratio
        selected = await self._selector.select(
            ctx, SelectionOrder(context, tuple(asked), ratio, reusing.grouping, reusing.reading)
        )
        num_tokens = total_len(chunks.chunks)
        if len(selected) != len(asked):
            raise _NotAskedError(f"the selector chose for {len(selected)} of {len(asked)} questions")
        for one in selected:
            in_order = all(a < b for a, b in pairwise((-1, *one.tokens, num_tokens)))
            if not in_order or len(one.scores) not in (0, num_tokens):
                raise _NotAskedError("the selector chose tokens that the context does not have")
        return selected

    def _read(
        self, identified: Identified, order: GenerationOrder
    ) -> tuple[tuple[SelectionChunk, ...], list[str]]:
        texts = _known("chunks", self._texts(order.chunks, identified.chunks))
        context = tuple(
            SelectionChunk(
                text,
                chunk.token_ids,
                chunk.chunk_id,
                chunk.parent_id,
                self._context(piece, chunk, identified.links),
            )
            for text, chunk, piece in zip(texts, identified.chunks, order.chunks, strict=True)
        )
        return context, _known("questions", [self._reader.question(question) for question in order.questions])

    def _context(self, piece: Piece, chunk: Chunk, links: Sequence[Chunk]) -> tuple[SelectionLink, ...]:
        """Returns what a piece itself says that it stands behind; empty: nothing, or what has no text."""
        if not isinstance(piece, Conditioned) or not piece.context:
            return ()
        chain = chain_of(chunk, links) or ()
        texts = self._texts(piece.context, chain)
        if None in texts:
            return ()
        return tuple(
            SelectionLink(text, link.token_ids) for text, link in zip(texts, chain, strict=True) if text
        )

    def _texts(self, pieces: Sequence[Piece], chunks: Sequence[Chunk]) -> list[str | None]:
        read = self._reader.chunks(pieces, [chunk.token_ids for chunk in chunks])
        return [None if chunk is None else chunk.text for chunk in read]

    def _fallback(self, recompute: Recompute, took_s: float, why: str) -> Decision:
        mode = self._config.fallback
        by_ratio = Recompute(recompute.ratio, seed=recompute.seed) if mode in BY_RATIO else Recompute()
        return Decision(mode, by_ratio, took_s, note=f"cacheclip became {mode.value}: {why}")


def _unread(selected: Sequence[SelectedTokens]) -> str:
    """Says what the selector did not know; empty: nothing."""
    num = max((one.num_isolated for one in selected), default=0)
    return f"the selector read {num} chunk(s) without what stands in front of them" if num else ""


def _known(name: str, texts: Sequence[str | None]) -> list[str]:
    for index, text in enumerate(texts):
        if text is None:
            raise _NotAskedError(
                f"the selector reads text, and there is none that gives the token ids of {name}[{index}]"
            )
    return [text for text in texts if text is not None]
