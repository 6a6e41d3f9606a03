"""`kvquilt explore`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click

from cluster.cli.output import output_option
from cluster.cli.reuse_options import ADAPTER_OPTION, FOREST_MODES, OneOf
from cluster.cli.session import Session
from shared.errors import ModelMismatch, NotFound
from shared.generation.asked import SamplingParams
from shared.generation.orders import AskedMode, ForestOrder, Reuse
from shared.request import RequestContext
from shared.search import SearchHit, common_kv_context

DEADLINE_MS = 3_600_000


@click.command()
@click.argument("topic")
@click.option("--collection", "-c", required=True, help="The documents to read.")
@click.option("--reuse", type=OneOf(FOREST_MODES), help="As of `kvquilt ask`.")
@ADAPTER_OPTION
@click.option("-k", type=click.IntRange(min=1), help="Chunks in the context.")
@click.option("--temperature", type=float, default=0.0, help="0: always the most likely token.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Equal seeds sample equally.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Of `grow` without a number.")
@output_option(help="For people (text), or a line of JSON for everything that happens (json).")
@click.pass_obj
def explore(
    session: Session,
    topic: str,
    collection: str,
    reuse: AskedMode | None,
    adapter: str,
    k: int | None,
    temperature: float,
    seed: int,
    max_tokens: int | None,
) -> None:
    """Grow, fork, rewind, prune and merge answers while they run, over the chunks that TOPIC finds.

    Commands are lines of standard input; branches have the names you give them. The forest lives until the
    input ends and all branches rest, at most an hour. Exit code 2 when a line was refused.

    \b
    start A Who signed it?     a branch: the question (its tokens count, too)
    grow A 40                  continue it, here by at most 40 tokens
    fork B A 12                another with its first 12 tokens; without a number with all
    rewind A 5                 take its last 5 tokens away; it stops growing
    append A  And why?         continue it with this text, as it is
    prune B                    end it; its memory is free at once
    merge C A B                A, then what B has of its own, computed again: exact
    place C A B                the same with B's KV as it is: no work, but an approximation

    \b
    kvquilt explore "the lease" -c handbook < commands.txt
    """
    from cluster.cli.conversation import COMMANDS, Conversation, Lines, lines_of
    from shared.clients.doors import forest_client

    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)

    async def go() -> int:
        ctx = session.context(DEADLINE_MS)
        hits = await _context(session, ctx, collection, topic, k or 0)
        chunks = tuple(hit.chunk.piece for hit in hits)
        tell_line = session.tell_line if session.as_json else None
        conversation = Conversation(session.out, Lines(sampling), tell_line)
        if sys.stdin.isatty():
            session.err.print(f"{COMMANDS}; end with Ctrl-D", style="dim", soft_wrap=True)
        async with session.connect(forest_client) as client:
            commands = conversation.commands(lines_of(sys.stdin))
            how = Reuse(reuse, adapter=adapter)
            order = ForestOrder(chunks, reuse=how, kv_context=common_kv_context(hits))
            await conversation.show(client.explore(ctx, order, commands))
        return conversation.num_refused

    if asyncio.run(go()):
        sys.exit(2)


async def _context(
    session: Session, ctx: RequestContext, collection: str, topic: str, k: int
) -> Sequence[SearchHit]:
    """
    Raises:
        NotFound: nothing matches.
        ModelMismatch: the collection was made for another model.
    """
    from shared.clients.doors import generation_client, retrieval_client

    async with (
        session.connect(retrieval_client) as retrieval,
        session.connect(generation_client) as generation,
    ):
        (hits,) = (await retrieval.search(ctx, collection, [topic], k)).rankings
        model = await generation.describe(ctx)
    if not hits:
        raise NotFound(f"nothing in collection {collection!r} matches")
    if what := next(filter(None, (hit.made_for.differs_from(model.made_for) for hit in hits)), ""):
        raise ModelMismatch(
            f"collection {collection!r} was ingested for another {what}; run `kvquilt ingest -c "
            f"{collection} --re-encode`"
        )
    if session.as_json:
        session.tell_line({"event": "context", "documents": [hit.document_id for hit in hits]})
    for number, hit in enumerate(hits):
        session.out.print(f"[{number + 1}] {hit.document_id}", style="dim", markup=False, soft_wrap=True)
    return hits
