"""A document that is more than its tenant or its principal may keep is refused before anything of it is
computed."""

from __future__ import annotations

import pytest

from shared.documents import Stage
from shared.generation.described import ModelDescription
from shared.kv_buffers import DTYPES, ENCODINGS, ITEM_SIZES, buffers_of
from tests.ingestion_world import World, context, outcome, text, upsert

WORDS = "one two three four five six seven eight nine ten"


async def test_nothing_of_a_refused_document_is_computed_or_stored_and_the_old_one_stays() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "Short."))
    world.calls.clear()
    world.quota_bytes = 5
    *_, last = await upsert(world.service(), text("a.txt", WORDS))
    assert (last.stage, last.error_code) == (Stage.FAILED, "STORAGE_FULL")
    assert "more than the 5 bytes" in last.error
    assert world.calls["prefill"] == world.calls["put_manifest"] == world.calls["index"] == 0
    assert world.texts() == {"a.txt": "Short."}
    world.check_settled()


async def test_what_is_stored_already_is_not_counted_as_to_come() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", WORDS))
    world.quota_bytes = 0
    assert outcome(await upsert(world.service(), text("a.txt", WORDS))) == {"a.txt": Stage.UNCHANGED}


async def test_a_document_that_is_made_anew_is_looked_at_as_well() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", WORDS))
    world.fingerprint, world.quota_bytes = "model-b", 5
    events = [event async for event in world.service().re_encode(context(), "c")]
    assert outcome(events) == {"a.txt": Stage.FAILED}
    assert world.manifests["default", "c", "a.txt"].model_fingerprint == "model-a"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kv_takes_no_less_than_a_model_says_and_little_more(encoding: str, dtype: str) -> None:
    num_tokens, head_dim = 512, 128
    exact = 2 * head_dim * ITEM_SIZES[dtype]
    of = ("", (), "", "", 4096, dtype, exact, "cpu", (), encoding)
    least = ModelDescription("m", "f" * 32, *of).least_stored_bytes_per_token * num_tokens
    layer = sum(spec.row_bytes for spec in buffers_of(encoding, num_tokens, head_dim, dtype))
    assert least <= layer <= 1.5 * least
