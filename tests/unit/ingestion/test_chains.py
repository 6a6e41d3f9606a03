"""Documents as chains of chunks, each behind those in front of it."""

from shared.documents import Stage
from shared.generation.pieces import Conditioned
from shared.kv_types import KvContext
from tests.ingestion_world import (
    CHAPTERS,
    CONTEXT_TOKENS,
    WordTokenizer,
    World,
    book,
    context,
    outcome,
    text,
    upsert,
)


async def test_a_document_is_prefilled_as_chains_and_the_index_knows_the_parents() -> None:
    world = World()
    await upsert(world.service(), book())
    manifest = world.manifests["default", "c", "book.md"]
    headers = [chunk.header_ids for chunk in manifest.chunks if chunk.header_ids]
    assert headers == [WordTokenizer().encode_chunk(f"One {name}") for name in CHAPTERS]
    for i, piece in enumerate(world.pieces):
        chunk, links = manifest.chunks[i], manifest.links_of(i)
        assert sum(map(len, links)) <= CONTEXT_TOKENS
        # what is in front of a block's first chunk is said, of the others the piece before them
        assert piece == (
            Conditioned(chunk.token_ids, links)
            if chunk.header_ids
            else Conditioned(chunk.token_ids, parent_id=chunk.parent_id)
        )
    indexed = world.indexed["default", "c", "book.md"].chunks
    assert [c.parent_id for c in indexed] == [c.parent_id for c in manifest.chunks]
    world.check_settled()


async def test_what_a_call_has_not_said_yet_is_said_with_its_first_chunk() -> None:
    world = World()
    await upsert(world.service(prefill_batch=2), book())
    manifest = world.manifests["default", "c", "book.md"]
    for i, (piece, chunk) in enumerate(zip(world.pieces, manifest.chunks, strict=True)):
        assert isinstance(piece, Conditioned)
        assert piece.context == (() if i % 2 and not chunk.header_ids else manifest.links_of(i))
    world.check_settled()


async def test_the_index_knows_places_and_blocks() -> None:
    world = World()
    await upsert(world.service(), book(), text("a.txt", "Short."))
    indexed = world.indexed["default", "c", "book.md"]
    manifest = world.manifests["default", "c", "book.md"]
    assert indexed.kv_context == manifest.kv_context == "document"
    assert [chunk.place for chunk in indexed.chunks] == list(range(1, 1 + len(manifest.chunks)))
    for index, chunk in enumerate(indexed.chunks):
        block = chunk.block
        assert block is not None
        assert block.first == manifest.block_start(index) + 1
        assert (block.number, block.heading) == (list(CHAPTERS).index(chunk.heading) + 1, chunk.heading)
        assert block.has_header
    plain = World(kv_context=KvContext.NONE)
    await upsert(plain.service(), book())
    indexed = plain.indexed["default", "c", "book.md"]
    assert (indexed.kv_context, {chunk.block for chunk in indexed.chunks}) == ("", {None})


async def test_an_edit_costs_its_block() -> None:
    world = World()
    await upsert(world.service(), book())
    before = {c.chunk_id: c.heading for c in world.manifests["default", "c", "book.md"].chunks}
    world.num_prefilled = 0
    await upsert(world.service(), book(Two=CHAPTERS["Two"].replace("Two3 ", "Two3 changed ")))
    after = world.manifests["default", "c", "book.md"].chunks
    assert {c.heading for c in after if c.chunk_id not in before} == {"Two"}
    assert world.num_prefilled == len([c for c in after if c.chunk_id not in before])


async def test_another_title_costs_the_document() -> None:
    world = World()
    await upsert(world.service(), book(One=CHAPTERS["One"]))
    world.num_prefilled = 0
    await upsert(world.service(), book(One=CHAPTERS["One"].replace("# One", "# First")))
    assert world.num_prefilled == len(world.manifests["default", "c", "book.md"].chunks)


async def test_a_lost_chunk_is_prefilled_behind_its_chain() -> None:
    world = World()
    service = world.service()
    await upsert(service, book())
    chunk = world.manifests["default", "c", "book.md"].chunks[2]
    world.kv.discard(chunk.chunk_id)
    events = [e async for e in service.upkeep.refresh(context(), "c", [chunk.chunk_id], "")]
    assert outcome(events) == {"book.md": Stage.STORED}
    world.check_settled()
