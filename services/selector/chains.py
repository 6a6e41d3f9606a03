"""Finds what the auxiliary's KV of a chunk stands behind: the texts that the primary's stands behind, as the
auxiliary's tokenizer reads them.

They come with the request, or from the manifest of the document that has the chunk's parent. Identities are
derived here from what the texts say, as those of the primary are, and believed of nobody: a manifest only if
it leads to the parent that was named, in the same tenant.

A chain that the auxiliary cannot read at once with the chunk begins anew behind its first link, the header;
where even that does not fit, the chunk is isolated.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from services.selector.worker_thread import Turn, WorkerThread
from shared.errors import KvquiltError, ModelMismatch
from shared.generation.asked import Chunk, chain_of
from shared.generation.selection import SelectionChunk, SelectionLink
from shared.identity import chunk_identity
from shared.kv_types import Chain
from shared.readers import reads_everything
from shared.request import RequestContext
from shared.selection.limits import Limits
from shared.selection.selector import PairedChunk, Selector

log = logging.getLogger(__name__)

_FRONTS_KEPT = 65_536


class ChainStore(Protocol):
    """The part of ``shared.kv_stores.NodeFiles`` that is used here."""

    async def chain(self, ctx: RequestContext, parent_id: str) -> Chain | None: ...
    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]: ...


class Front(NamedTuple):
    """Chain that the next chunk may stand behind: a chain, by its last and its first link, with its tokens
    and those of the first."""

    last_id: str = ""
    num_tokens: int = 0
    first_id: str = ""
    first_len: int = 0

    def fitting(self, limits: Limits, chunk_len: int) -> Front:
        """As much of it as can be read with a chunk."""
        shorter = Front(self.first_id, self.first_len, self.first_id, self.first_len)
        return next((f for f in (self, shorter) if limits.fit(f.num_tokens + chunk_len)), Front())

    def extended(self, chunk: Chunk) -> Front:
        first = (self.first_id, self.first_len) if self.last_id else (chunk.chunk_id, len(chunk.token_ids))
        return Front(chunk.chunk_id, self.num_tokens + len(chunk.token_ids), *first)


class Known(NamedTuple):
    """``links``: all that led to ``front``; None: they have to be looked for."""

    front: Front
    links: tuple[Chunk, ...] | None


NOTHING = Known(Front(), ())


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk by the auxiliary's ids and identities; a ``chunk_id`` that is empty: it has no token.

    told: the same as the request has it. links: what it may stand behind; None: they have to be looked for,
    should the chunk be computed. first_id: of its chain, or its own. isolated: what it should stand behind
    is not known.
    """

    chunk: Chunk
    told: SelectionChunk
    links: tuple[Chunk, ...] | None
    first_id: str
    isolated: bool = False

    @property
    def alone(self) -> Placed:
        """The same without what is in front of it."""
        isolated_id = self.chunk.isolated_id
        return Placed(Chunk(isolated_id, self.chunk.token_ids), self.told, (), isolated_id, isolated=True)


class Chains:
    """Belongs to one event loop. ``store`` None: only what comes with requests is known. ``possible``:
    whether the auxiliary's KV can stand behind anything."""

    def __init__(
        self, selector: Selector, template: str, tokenizers: WorkerThread, store: ChainStore | None
    ) -> None:
        """``template``: the primary's, of chunks. ``tokenizers``: the thread on which texts are read."""
        auxiliary = selector.auxiliary
        spec, prefix_ids = auxiliary.scorer.spec, auxiliary.prompts.prefix_ids
        self._selector, self._template, self._tokenizers, self._store = selector, template, tokenizers, store
        self._of = (auxiliary.scorer.fingerprint, prefix_ids)
        self.possible = auxiliary.scorer.chains
        self.limits = Limits(spec.vocab_size, spec.sight, len(prefix_ids))
        self._fronts: OrderedDict[tuple[str, str], Front] = OrderedDict()  # by tenant and parent

    async def of(self, ctx: RequestContext, turn: Turn, placed: Placed) -> tuple[Chunk, ...] | None:
        """Returns what the chunk stands behind, the first of it first; None: that is not known any more."""
        if not placed.chunk.parent_id:
            return ()
        links = placed.links
        if links is None and (stored := await self._stored(ctx, turn, placed.told.parent_id)) is not None:
            links = stored.links
        return None if links is None else chain_of(placed.chunk, links)

    async def front(self, ctx: RequestContext, turn: Turn, told: SelectionChunk) -> Known | None:
        """Returns what ``told`` may stand behind, by its context or by its parent's document; None: it is not
        known.

        Raises:
            ModelMismatch: a context's text does not give its token ids by the primary's tokenizer.
            DeadlineExceeded, Overloaded: see ``WorkerThread``.
        """
        if not self.possible or not (told.context or told.parent_id):
            return NOTHING
        if told.context:
            return await self._read(ctx, turn, told.context)
        if not await self._may_read(ctx, told.parent_id):
            return None
        key = (ctx.tenant, told.parent_id)
        if key in self._fronts:
            self._fronts.move_to_end(key)
            return Known(self._fronts[key], None)
        return await self._stored(ctx, turn, told.parent_id)

    def chunk(self, tenant: str, ids: tuple[int, ...], front: Front) -> Chunk:
        """``ids``: the auxiliary's."""
        if not ids:
            return Chunk("", ())
        isolated_id = chunk_identity(tenant, *self._of, ids)
        if not front.last_id:
            return Chunk(isolated_id, ids, isolated_id=isolated_id)
        return Chunk(chunk_identity(tenant, *self._of, ids, front.last_id), ids, front.last_id, isolated_id)

    async def _stored(self, ctx: RequestContext, turn: Turn, parent_id: str) -> Known | None:
        """Returns the chain that ends with ``parent_id``, by the manifest of a document."""
        key = (ctx.tenant, parent_id)
        self._fronts.pop(key, None)
        chain = await self._asked(ctx, parent_id)
        if chain is None:
            return None
        links = [
            SelectionLink(self._template.replace("{text}", text), ids)
            for text, ids in zip(chain.texts, chain.links, strict=True)
        ]
        try:
            known = await self._read(ctx, turn, links)
        except ModelMismatch as error:
            log.warning("what stands behind %s is read without it: %s", parent_id, error.detail)
            return None
        self._fronts[key] = known.front
        while len(self._fronts) > _FRONTS_KEPT:
            self._fronts.popitem(last=False)
        return known

    async def _may_read(self, ctx: RequestContext, parent_id: str) -> bool:
        if reads_everything(ctx.principal) or self._store is None:
            return True
        try:
            return bool(await self._store.readable(ctx, [parent_id]))
        except KvquiltError as error:
            log.warning("what stands behind %s is read without it: %s", parent_id, error.detail)
            return False

    async def _asked(self, ctx: RequestContext, parent_id: str) -> Chain | None:
        """The store's answer, if it is to be believed."""
        try:
            chain = None if self._store is None else await self._store.chain(ctx, parent_id)
        except KvquiltError as error:
            log.warning("what stands behind %s is read without it: %s", parent_id, error.detail)
            return None
        if chain is None or chain.tenant != ctx.tenant or chain.identities[-1:] != (parent_id,):
            return None
        return chain if len(chain.texts) == len(chain.links) else None

    async def _read(self, ctx: RequestContext, turn: Turn, told: Sequence[SelectionLink]) -> Known:
        """Tokenizes the texts for the auxiliary; one without a token of it is left out."""

        def read() -> Known:
            front, links = Front(), list[Chunk]()
            for link in told:
                if ids := self._selector.link(link.text, link.token_ids):
                    front = front.fitting(self.limits, len(ids))
                    links.append(self.chunk(ctx.tenant, ids, front))
                    front = front.extended(links[-1])
            return Known(front, tuple(links))

        return await self._tokenizers.run(ctx, turn, read)

    def check_invariants(self) -> None:
        assert len(self._fronts) <= _FRONTS_KEPT
        assert all(front.first_len <= front.num_tokens for front in self._fronts.values())


class Placing:
    """Places the chunks of one request, which may stand behind each other, in its order."""

    def __init__(self, chains: Chains, ctx: RequestContext, turn: Turn) -> None:
        self._chains, self._ctx, self._turn = chains, ctx, turn
        self._known: dict[str, Known] = {}

    async def place(self, told: SelectionChunk, paired: PairedChunk) -> Placed:
        """Raises as ``Chains.front``."""
        known = self._known.get(told.parent_id) if told.parent_id and not told.context else None
        known = known or await self._chains.front(self._ctx, self._turn, told)
        front, links = known or NOTHING
        ids = paired.auxiliary.token_ids
        if ids:
            front = front.fitting(self._chains.limits, len(ids))
        chunk = self._chains.chunk(self._ctx.tenant, ids, front)
        placed = Placed(chunk, told, links, front.first_id or chunk.chunk_id, isolated=known is None)
        if ids:
            front, links = front.extended(chunk), None if links is None else (*links, chunk)
        if told.chunk_id and self._chains.possible and not placed.isolated:
            self._known[told.chunk_id] = Known(front, links)
        return placed
