"""Asks the reference what was answered by a verdict: ``full`` over the whole blocks of the chunks that were
retrieved."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace

from services.gateway.ports import GeneratorPort, ManifestSource
from shared.errors import NotFound
from shared.generation.modes import ReuseMode
from shared.generation.orders import GenerationOrder, Reuse
from shared.generation.told import BranchDoneEvent, TokenEvent, Usage
from shared.measuring.reference import Place, within_reach
from shared.request import RequestContext
from shared.search import SearchHit

_LEAST_ROOM = 64


@dataclass(frozen=True, slots=True)
class AnsweredOrder:
    """One question, as it came and as the generator was asked it over ``hits`` of a collection, and what was
    answered."""

    tenant: str
    collection: str
    question: str
    hits: tuple[SearchHit, ...]
    order: GenerationOrder
    text: str
    usage: Usage

    @property
    def key(self) -> int:
        """The same where the same is asked."""
        return hash((self.tenant, self.collection, self.order.questions))


class Reference:
    def __init__(self, generator: GeneratorPort, store: ManifestSource) -> None:
        self._generator = generator
        self._store = store

    async def answer(self, ctx: RequestContext, answered: AnsweredOrder) -> str:
        """In the generator's idle time.

        Raises:
            NotFound: a document has changed meanwhile. Overloaded, DeadlineExceeded: there was no idle time.
        """
        order = await self._order(ctx, answered)
        text = ""
        async with aclosing(self._generator.generate(ctx, order)) as events:
            async for event in events:
                if isinstance(event, TokenEvent | BranchDoneEvent):
                    text += event.text
        return text

    async def _order(self, ctx: RequestContext, answered: AnsweredOrder) -> GenerationOrder:
        """Orders the chunks. Where the whole blocks are longer than the model reads, those chunks of them
        that are nearest to the retrieved ones."""
        model = await self._generator.describe(ctx)
        names = dict.fromkeys(hit.document_id for hit in answered.hits)
        documents = {i: await self._store.get_manifest(ctx, answered.collection, i) for i in names}
        numbers = {(i, c.chunk_id): at for i, doc in documents.items() for at, c in enumerate(doc.chunks)}
        ids = [(hit.document_id, hit.chunk.chunk_id) for hit in answered.hits]
        if not numbers.keys() >= set(ids):
            raise NotFound("a document that the answer was read from has changed since")
        retrieved = [(key[0], numbers[key]) for key in ids]
        blocks = [
            (i, at)
            for i, document in documents.items()
            for at in sorted({n for name, at in retrieved if name == i for n in document.block(at)})
        ]

        def num_tokens(place: Place) -> int:
            return len(documents[place[0]].chunks[place[1]].token_ids)

        usage, most = answered.usage, answered.order.sampling.max_tokens
        to_come = most or max(2 * usage.generated_tokens, _LEAST_ROOM)
        room = model.max_positions - usage.prompt_tokens - to_come
        kept = within_reach(blocks, retrieved, num_tokens, room)
        return replace(
            answered.order,
            chunks=tuple(documents[i].chunks[at].token_ids for i, at in kept),
            reuse=Reuse(ReuseMode.FULL),
            kv_context=None,
            chunk_ids=(),
            explain=False,
            idle=True,
        )
