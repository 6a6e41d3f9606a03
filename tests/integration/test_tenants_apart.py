"""Tenants of one generator: what one has computed, another neither uses nor sees in counts, residency or
errors; and KV that is not what the model makes of its tokens is told."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from services.generator.service import Generator
from shared.errors import NotFound
from shared.generation.asked import SamplingParams
from shared.generation.described import RecomputedChunk
from shared.generation.pieces import Conditioned, Piece
from shared.generation.told import DoneEvent, Usage
from shared.identity import chunk_identity
from shared.kv_format import inspect_chunk, write_chunk
from tests.generation_server import Served, context, order_of, serving
from tests.kv_chunks import kv_of
from tests.kv_directory import DirectoryStore
from tests.oracles import VOCAB, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
Ids = tuple[int, ...]


def ids(seed: int, num_tokens: int) -> Ids:
    draw = random.Random(seed)
    return tuple(draw.randrange(3, VOCAB) for _ in range(num_tokens))


PREFIX, FIRST, SECOND, QUESTION = ids(1, 4), ids(2, 12), ids(3, 9), ids(4, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model("qwen2").save_pretrained(folder)
    return folder


@pytest.fixture
async def served(model: Path, tmp_path: Path) -> AsyncIterator[Served]:
    store = DirectoryStore(tmp_path / "kv")
    scopes = {"shared": ["east", "west"]}
    async with serving(model, store, kv_encoding="exact", sharing_scopes=scopes) as running:
        running.store = store  # type: ignore[attr-defined]
        yield running


async def usage(served: Served, tenant: str, chunks: Sequence[Piece] = (FIRST,)) -> Usage:
    order = order_of(chunks, (QUESTION,), "reordered", sampling=SamplingParams(max_tokens=1), prefix=PREFIX)
    async with aclosing(served.client.generate(context(tenant=tenant), order)) as events:
        done = [event async for event in events][-1]
    assert isinstance(done, DoneEvent)
    return done.usage


async def recomputed(served: Served, tenant: str, chunks: Sequence[Piece]) -> list[RecomputedChunk]:
    async with aclosing(served.client.recompute(context(tenant=tenant), chunks, PREFIX)) as found:
        return [one async for one in found]


async def prefill(served: Served, tenant: str, chunks: Sequence[Piece]) -> list[bool]:
    async with aclosing(served.client.prefill(context(tenant=tenant), chunks, PREFIX)) as found:
        return [one.existed async for one in found]


async def test_what_one_tenant_asked_is_cached_for_him_and_not_for_another(served: Served) -> None:
    first = await usage(served, "acme")
    again = await usage(served, "acme")
    other = await usage(served, "other")
    assert again.recomputed_tokens < first.recomputed_tokens
    assert (other.reused_tokens, other.recomputed_tokens, other.loaded_tokens) == (
        first.reused_tokens,
        first.recomputed_tokens,
        first.loaded_tokens,
    ), "the other is told what the first one was told at first"
    store: DirectoryStore = served.store  # type: ignore[attr-defined]
    assert {tenant for tenant, _ in store.asked_for} == {"acme", "other"}, "whose floor it counts for"


async def test_what_one_tenant_prefilled_does_not_exist_for_another(served: Served) -> None:
    assert await prefill(served, "acme", [FIRST]) == [False]
    assert await prefill(served, "acme", [FIRST]) == [True]
    assert await prefill(served, "other", [FIRST]) == [False]


async def test_in_a_scope_kv_is_computed_once_and_used_by_all_its_tenants(served: Served) -> None:
    store: DirectoryStore = served.store  # type: ignore[attr-defined]
    assert await prefill(served, "east", [FIRST, Conditioned(SECOND, (FIRST,))]) == [False, False]
    assert await prefill(served, "west", [FIRST, Conditioned(SECOND, (FIRST,))]) == [True, True]
    assert len(store.chunk_ids()) == 2
    assert await prefill(served, "shared", [FIRST]) == [False], "a tenant called like the scope"
    assert {tenant for tenant, _ in store.origins.values()} == {"east", "shared"}
    assert (await served.client.describe(context(tenant="west"))).kv_scope == "shared"
    assert (await served.client.describe(context(tenant="shared"))).kv_scope == ""


async def test_in_a_scope_what_one_asked_is_resident_for_all_its_tenants(served: Served) -> None:
    first, alone = await usage(served, "east"), await usage(served, "acme")
    same, foreign = await usage(served, "west"), await usage(served, "other")
    again = await usage(served, "east")
    assert same.recomputed_tokens == again.recomputed_tokens < first.recomputed_tokens
    for one in (alone, foreign):
        assert (one.reused_tokens, one.recomputed_tokens, one.loaded_tokens) == (
            *(first.reused_tokens, first.recomputed_tokens, first.loaded_tokens),
        )
    assert isinstance(served.generator, Generator)
    assert len(served.generator.resident_chunk_ids()) == 3


async def test_stored_kv_is_its_tenants_with_the_identity_that_says_so(served: Served) -> None:
    await prefill(served, "acme", [FIRST])
    store: DirectoryStore = served.store  # type: ignore[attr-defined]
    assert isinstance(served.generator, Generator)
    (chunk_id,) = store.chunk_ids()
    assert chunk_id == chunk_identity("acme", served.generator.model.fingerprint, PREFIX, FIRST)
    tenant, origin = store.origins[chunk_id]
    assert tenant == "acme"
    assert origin is not None
    assert origin.prefix_ids == PREFIX


async def test_a_prefix_is_resident_for_its_tenant_alone(served: Served) -> None:
    await usage(served, "acme", ())
    await usage(served, "other", ())
    assert isinstance(served.generator, Generator)
    pool = served.generator._engine._cache._pool
    assert {key.split(":")[1] for key in pool._entries if key.startswith("prefix:")} == {"acme", "other"}


# ---- computing once more


@pytest.mark.parametrize("encoding", ["exact", "int8", "int4"])
async def test_honest_kv_is_within_what_rounding_and_its_encoding_explain(
    model: Path, tmp_path: Path, encoding: str
) -> None:
    async with serving(model, DirectoryStore(tmp_path / "kv"), kv_encoding=encoding) as served:
        behind = Conditioned(SECOND, (FIRST,))
        await prefill(served, "acme", [FIRST, behind])
        found = await recomputed(served, "acme", [FIRST, behind])
    assert [(one.index, one.encoding, one.forged) for one in found] == [
        (0, encoding, False),
        (1, encoding, False),
    ]
    assert all(one.deviation < one.tolerance / 2 for one in found), found


@pytest.mark.parametrize("encoding", ["exact", "int8", "int4"])
async def test_kv_of_other_tokens_with_right_checksums_is_told(
    model: Path, tmp_path: Path, encoding: str
) -> None:
    """As whoever can write the store's files could make it: Monday's KV under Sunday's identity."""
    store = DirectoryStore(tmp_path / "kv")
    async with serving(model, store, kv_encoding=encoding) as served:
        await prefill(served, "acme", [FIRST, SECOND])
        assert isinstance(served.generator, Generator)
        sunday = chunk_identity("acme", served.generator.model.fingerprint, PREFIX, FIRST)
        header = inspect_chunk(store.path_of(sunday)).header
        write_chunk(store.path_of(sunday), header, *kv_of(header, seed=9))
        found = await recomputed(served, "acme", [FIRST, SECOND])
    assert [one.forged for one in found] == [True, False]


async def test_one_tokens_kv_in_the_place_of_anothers_is_told(model: Path, tmp_path: Path) -> None:
    import numpy as np

    from shared.kv_format import ChunkFile

    store = DirectoryStore(tmp_path / "kv")
    async with serving(model, store) as served:
        await prefill(served, "acme", [FIRST])
        (chunk_id,) = store.chunk_ids()
        with ChunkFile.open(store.path_of(chunk_id)) as file:
            header, layers = file.header, []
            for layer in range(file.header.num_layers):
                out = file.empty_layer()
                file.read_layer(layer, *out)
                layers.append([np.array(array) for array in out])
        layers[0][1][:, 3] = layers[0][1][:, 7]
        write_chunk(store.path_of(chunk_id), header, *([layer[i] for layer in layers] for i in range(2)))
        found = await recomputed(served, "acme", [FIRST])
    assert [one.forged for one in found] == [True]


async def test_computing_once_more_stores_nothing_and_another_tenants_chunks_are_not_there(
    served: Served,
) -> None:
    await prefill(served, "acme", [FIRST])
    store: DirectoryStore = served.store  # type: ignore[attr-defined]
    before = store.chunk_ids()
    await recomputed(served, "acme", [FIRST])
    assert store.chunk_ids() == before
    with pytest.raises(NotFound):
        await recomputed(served, "other", [FIRST])
