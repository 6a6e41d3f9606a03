"""What a trace tells of a document: parsed, cut, prefilled, stored, indexed; and nothing of what is in it."""

from __future__ import annotations

from shared.documents import Stage
from tests.ingestion_world import Selector, World, outcome, text, upsert
from tests.recorded_spans import recorded_spans, traced

STAGES = ("parse", "chunk", "prefill", "encode auxiliary", "store", "index")


async def test_every_step_of_a_document_is_a_stage_with_its_chunks() -> None:
    world = World()
    world.selector = Selector(world.kv)
    with recorded_spans() as spans:
        events = await upsert(world.service(), text("lease.txt", "Orla Venn signed it. " * 8), ctx=traced())
        assert outcome(events) == {"lease.txt": Stage.STORED}
        assert spans.parent("ingest document") == "caller"
        for stage in STAGES:
            assert spans.parent(stage) == "ingest document", stage
        (num_chunks,) = {spans.attributes(s)["kvquilt.chunks"] for s in STAGES if s != "parse"}
        assert num_chunks > 1
        told = "".join(span.to_json() for span in spans.all())
        assert "lease" not in told
        assert "Orla" not in told
