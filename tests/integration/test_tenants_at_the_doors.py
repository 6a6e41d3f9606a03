"""Two callers at every public RPC of an installation: what another tenant has is told like what is not there,
also within a scope, where nothing is shared but KV; and of the same tenant, or scope, KV is found."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from shared.answer import AnswerDone, AnswerUsage, HandedDocument, Inquiry, RetrievalOptions, Retrieved
from shared.clients.channels import channel_to
from shared.documents import SourceDocument, Stage
from shared.errors import KvquiltError, PermissionDenied
from shared.feedback import Feedback, Rating
from shared.generation.asked import SamplingParams
from shared.generation.forest import Edit
from shared.generation.orders import ForestOrder
from shared.generation.pieces import Conditioned
from shared.generation.told import DoneEvent, Usage
from shared.kv_items import Expected, Item
from shared.kv_types import Manifest, ManifestChunk, Origin
from shared.principals.principal import Role
from shared.search import SearchMode
from tests.generation_server import order_of
from tests.whole_system import Client, WholeSystem, whole_system

pytestmark = pytest.mark.usefixtures("one_thread")
SCOPES = {"shared": ("acme", "partner")}
SECRET = "Zanzibar"
PLAN = f"# Plan\n\nThe mayor of {SECRET} is Orla Venn, who has twelve bridges and a mine below the town. " * 3
OPEN = "# Towns\n\nThe mayor of the town is the founder of the mine, which lies below the bridge. " * 3
KEYS_SEEN_S = 1.0


@dataclass
class World:
    """``acme`` has a secret document, rated an answer about it, pinned it, and shares a scope with
    ``partner``; and one that its ``colleague`` may not read."""

    loop: asyncio.AbstractEventLoop
    system: WholeSystem
    acme: Client
    partner: Client
    other: Client
    colleague: Client
    secret_chunks: tuple[str, ...] = ()
    board_chunks: tuple[str, ...] = ()
    request_id: str = ""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def fill(self) -> None:
        await asyncio.sleep(KEYS_SEEN_S)
        await ingest(self.acme, "secrets", {"plan.md": PLAN})
        self.secret_chunks = await chunk_ids(self.acme, "secrets")
        told = await ask(self.acme, "secrets")
        (self.request_id,) = [event.request_id for event in told if isinstance(event, AnswerDone)]
        await self.acme.rag.rate(self.acme.ctx, Feedback(self.request_id, Rating.GOOD, SECRET))
        await self.acme.store.pin(self.acme.ctx, "secrets")
        await ingest(self.acme, "minutes", {"plan.md": f"{PLAN}\n\nThe board met."}, readers=("board",))
        self.board_chunks = await chunk_ids(self.acme, "minutes")
        for name in ("secrets", "minutes"):
            await self.acme.store.put_item(self.acme.ctx, Item("vector_store", name, {"name": SECRET}))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def build() -> World:
        directory = tmp_path_factory.mktemp("system")
        system = await stack.enter_async_context(whole_system(directory, SCOPES))
        channel = await stack.enter_async_context(channel_to(system.target))
        acme, partner, other = (
            Client.of(channel, tenant, system.key(tenant, tenant, Role.ADMIN, "*"))
            for tenant in ("acme", "partner", "other")
        )
        colleague = Client.of(channel, "acme", system.key("colleague", "acme", Role.ADMIN, "staff"))
        built = World(loop, system, acme, partner, other, colleague)
        await built.fill()
        return built

    yield loop.run_until_complete(build())
    loop.run_until_complete(stack.aclose())
    loop.close()


async def ingest(
    client: Client, collection: str, documents: dict[str, str], readers: tuple[str, ...] = ()
) -> None:
    sources = [SourceDocument(name, text.encode(), readers=readers) for name, text in documents.items()]
    ended = [event async for event in client.ingest.upsert(client.ctx, collection, sources)]
    assert not [event.error for event in ended if event.error]


async def chunk_ids(client: Client, collection: str) -> tuple[str, ...]:
    return tuple(
        [c.chunk_id async for m in client.store.list_manifests(client.ctx, collection) for c in m.chunks]
    )


async def ask(client: Client, collection: str, **options: Any) -> list[Any]:
    inquiry = Inquiry(
        *(collection, ("Who is the mayor?",)),
        sampling=SamplingParams(max_tokens=2, ignore_eos=True),
        retrieval=RetrievalOptions(k=64, mode=SearchMode.DENSE),
        **options,
    )
    return [event async for event in client.rag.answer(client.ctx, inquiry)]


async def whole(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


async def explored(client: Client, parent_id: str) -> list[Any]:
    async def nothing() -> AsyncIterator[Edit]:
        return
        yield

    order = ForestOrder((Conditioned((5, 6), parent_id=parent_id),))
    return await whole(client.forests.explore(client.ctx, order, nothing()))


async def bytes_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def behind(parent_id: str) -> Any:
    return order_of(
        [Conditioned((5, 6), parent_id=parent_id)], ["Why?"], sampling=SamplingParams(max_tokens=1)
    )


def referring(client: Client, **named: str) -> Manifest:
    scope = "shared" if client.tenant in SCOPES["shared"] else ""
    chunk = ManifestChunk(**{"chunk_id": "a" * 40, "token_ids": (1,), **named})  # type: ignore[arg-type]
    return Manifest(client.tenant, "mine", "m", chunks=(chunk,), kv_scope=scope)


Call = Callable[[Client, str], Coroutine[Any, Any, object]]
BY_COLLECTION: dict[str, Call] = {
    "Rag.Answer": lambda c, name: ask(c, name, explain=True),
    "Rag.ListFeedback": lambda c, name: whole(c.rag.ratings(c.ctx, name)),
    "Ingest.ListDocuments": lambda c, name: whole(c.ingest.list(c.ctx, name)),
    "Ingest.DeleteDocuments": lambda c, name: c.ingest.delete(c.ctx, name, ["plan.md"]),
    "Ingest.DeleteDocuments all": lambda c, name: c.ingest.delete(c.ctx, name, everything=True),
    "Ingest.Upsert re-encode": lambda c, name: whole(c.ingest.re_encode(c.ctx, name)),
    "Ingest.Rebuild": lambda c, name: whole(c.ingest.rebuild(c.ctx, name)),
    "Ingest.Refresh": lambda c, name: whole(c.ingest.refresh(c.ctx, name)),
    "Retrieval.Search": lambda c, name: c.retrieval.search(c.ctx, name, ["mayor"], 9),
    "KvStore.ListManifests": lambda c, name: whole(c.store.list_manifests(c.ctx, name)),
    "KvStore.GetManifest": lambda c, name: c.store.get_manifest(c.ctx, name, "plan.md"),
    "KvStore.Pin": lambda c, name: c.store.pin(c.ctx, name, "plan.md"),
    "KvStore.PutItem": lambda c, name: c.store.put_item(
        c.ctx, Item("vector_store", name), expected=Expected.THERE
    ),
    "KvStore.GetItem": lambda c, name: c.store.get_item(c.ctx, "vector_store", name),
    "KvStore.ListItems": lambda c, name: c.store.item_page(c.ctx, "vector_store", name),
    "KvStore.DeleteItem": lambda c, name: c.store.delete_item(c.ctx, "vector_store", name),
    "KvStore.Pin undone": lambda c, name: c.store.pin(c.ctx, name, "", unpin=True),
}
BY_CHUNK: dict[str, Call] = {
    "Generation.Generate": lambda c, i: whole(c.generation.generate(c.ctx, behind(i))),
    "Generation.Explore": explored,
    "Generation.Prefill": lambda c, i: whole(c.generation.prefill(c.ctx, [Conditioned((5, 6), parent_id=i)])),
    "Generation.Recompute": lambda c, i: whole(
        c.generation.recompute(c.ctx, [Conditioned((5, 6), parent_id=i)])
    ),
    "KvStore.Stat": lambda c, i: c.store.stat(c.ctx, [i]),
    "KvStore.Get": lambda c, i: whole(c.store.get(c.ctx, i)),
    "KvStore.Put": lambda c, i: c.store.put(c.ctx, i, 9, bytes_of(b"x" * 9), Origin()),
    "KvStore.PutManifest": lambda c, i: c.store.put_manifest(c.ctx, referring(c, chunk_id=i)),
    "KvStore.PutManifest auxiliary": lambda c, i: c.store.put_manifest(c.ctx, referring(c, auxiliary_id=i)),
    "KvStore.PutManifest parent": lambda c, i: c.store.put_manifest(c.ctx, referring(c, parent_id=i)),
    "Ingest.Refresh": lambda c, i: whole(c.ingest.refresh(c.ctx, "", [i])),
}
BY_REQUEST: dict[str, Call] = {
    "Rag.Feedback": lambda c, i: c.rag.rate(c.ctx, Feedback(i, Rating.BAD)),
}


async def told(call: Coroutine[Any, Any, object], name: str) -> str:
    """All that a caller is told, but for the names that he asked by and those that follow from them."""
    try:
        said = repr(await call)
    except KvquiltError as error:
        said = f"{type(error).__name__}: {error.detail}"
    said = said.replace(name, "NAME")
    return re.sub(r"\b[0-9a-f]{32,40}\b|\d+\.\d+(e-\d+)?", "#", said)


@pytest.mark.parametrize("who", ["other", "partner"])
@pytest.mark.parametrize(
    ("calls", "call"),
    [(calls, call) for calls in ("BY_COLLECTION", "BY_CHUNK", "BY_REQUEST") for call in globals()[calls]],
)
def test_what_another_tenant_has_is_told_like_what_is_not_there(
    world: World, calls: str, call: str, who: str
) -> None:
    client: Client = getattr(world, who)
    theirs, absent = {
        "BY_COLLECTION": ("secrets", "nowhere"),
        "BY_CHUNK": (world.secret_chunks[0], "0" * 40),
        "BY_REQUEST": (world.request_id, "nobody-asked"),
    }[calls]
    answers = [world.run(told(globals()[calls][call](client, name), name)) for name in (theirs, absent)]
    assert answers[0] == answers[1]
    assert SECRET not in answers[0]
    assert world.run(chunk_ids(world.acme, "secrets")) == world.secret_chunks, "and nothing happened to it"


@pytest.mark.parametrize(
    ("calls", "call"),
    [(calls, call) for calls in ("BY_COLLECTION", "BY_CHUNK") for call in globals()[calls]],
)
def test_what_a_caller_may_not_read_of_his_own_tenant_is_told_like_what_is_not_there(
    world: World, calls: str, call: str
) -> None:
    new = [chunk_id for chunk_id in world.board_chunks if chunk_id not in world.secret_chunks]
    theirs, absent = {"BY_COLLECTION": ("minutes", "nowhere"), "BY_CHUNK": (new[0], "0" * 40)}[calls]
    asked = globals()[calls][call]
    answers = [world.run(told(asked(world.colleague, name), name)) for name in (theirs, absent)]
    assert answers[0] == answers[1]
    assert SECRET not in answers[0]
    assert world.run(chunk_ids(world.acme, "minutes")) == world.board_chunks, "and nothing happened to it"


@pytest.mark.parametrize("call", [call for call in BY_COLLECTION if "Item" in call])
def test_what_front_doors_keep_is_moved_by_who_reads_everything(world: World, call: str) -> None:
    with pytest.raises(PermissionDenied, match=r"one with the group \*"):
        world.run(BY_COLLECTION[call](world.colleague, "minutes"))
    kept, _ = world.run(world.acme.store.get_item(world.acme.ctx, "vector_store", "minutes"))
    assert kept.stored_by == "key/acme"


@pytest.mark.parametrize("who", ["other", "partner"])
def test_lists_counts_answers_and_citations_are_of_ones_own_documents(world: World, who: str) -> None:
    client: Client = getattr(world, who)

    async def everything() -> list[Any]:
        await ingest(client, "own", {"towns.md": OPEN})
        found = [
            await ask(client, "own", explain=True),
            await whole(client.ingest.list(client.ctx, "")),
            await client.retrieval.list_collections(client.ctx),
            await whole(client.rag.ratings(client.ctx)),
            await whole(client.store.list_manifests(client.ctx)),
            await client.store.count_documents(client.ctx),
            await client.store.list_pins(client.ctx),
        ]
        await client.ingest.delete(client.ctx, "own", everything=True)
        return found

    answer, documents, collections, ratings, manifests, counts, pins = world.run(everything())
    (retrieved,) = [event for event in answer if isinstance(event, Retrieved)]
    assert {hit.document_id for hit in retrieved.hits} == {"towns.md"}
    assert [d.document_id for d in documents] == ["towns.md"]
    assert [c.name for c in collections] == ["own"]
    assert [(m.tenant, m.document_id) for m in manifests] == [(who, "towns.md")]
    assert [(c.collection, c.num_documents) for c in counts] == [("own", 1)]
    assert (ratings, pins) == ([], [])
    said = repr([answer, documents, collections, manifests, counts])
    assert not [word for word in (SECRET, "secrets", "plan.md", *world.secret_chunks) if word in said]


def counted(events: list[Any]) -> dict[str, int]:
    (usage,) = [event.usage for event in events if isinstance(event, (AnswerUsage, DoneEvent))]
    return {f.name: n for f in fields(Usage) if isinstance(n := getattr(usage, f.name), int)}


def test_kv_is_found_by_its_tenant_and_its_scope_and_by_nobody_else(world: World) -> None:
    """In the store when documents come in, in memory when questions are asked, by the counts of cached tokens
    and by what the store holds; and it goes with the last document of the scope."""
    acme, partner, other = world.acme, world.partner, world.other

    async def stored() -> int:
        return len((await world.system.agent.list_page(acme.ctx)).chunks)

    async def paired() -> None:
        before, steps = await stored(), []
        for client in (acme, partner, other):
            await ingest(client, "towns", {"towns.md": OPEN})
            steps.append(await stored())
        ids = {client.tenant: await chunk_ids(client, "towns") for client in (acme, partner, other)}
        num = num_auxiliary = len(set(ids["acme"]))
        assert num > 1
        own = num + num_auxiliary
        assert [step - before for step in steps] == [own, own + num_auxiliary, 2 * own + num_auxiliary]
        assert ids["acme"] == ids["partner"]
        assert not set(ids["acme"]) & set(ids["other"])
        assert all(stat.exists for stat in await partner.store.stat(partner.ctx, ids["acme"]))
        assert not any(stat.exists for stat in await other.store.stat(other.ctx, ids["acme"]))

        world.system.generator.forget([*ids["acme"], *ids["other"]])
        cold, again, same, foreign = [
            counted(await ask(client, "towns")) for client in (acme, acme, partner, other)
        ]
        assert cold["loaded_tokens"] > 0 == again["loaded_tokens"]
        assert same == again
        assert foreign == cold
        assert counted(await ask(other, "towns")) == again

        deleted = await acme.ingest.delete(acme.ctx, "towns", everything=True)
        assert (deleted.num_documents, deleted.num_chunks) == (1, num)
        assert await stored() == before + 2 * own
        world.system.generator.forget(ids["acme"])
        assert counted(await ask(partner, "towns")) == cold
        deleted = await partner.ingest.delete(partner.ctx, "towns", everything=True)
        assert (deleted.num_documents, deleted.num_chunks) == (1, num)
        assert await stored() == before + own
        await other.ingest.delete(other.ctx, "towns", everything=True)
        assert await stored() == before
        world.system.agent.check_invariants()

    world.run(paired())


@pytest.mark.parametrize("who", ["other", "partner"])
def test_lost_kv_is_computed_behind_what_ones_own_document_says(world: World, who: str) -> None:
    client: Client = getattr(world, who)

    async def lost() -> tuple[dict[str, int], dict[str, int]]:
        await ingest(client, "lost", {"towns.md": OPEN})
        ids, answers = await chunk_ids(client, "lost"), []
        for _ in range(2):
            world.system.generator.forget(ids)
            answers.append(counted(await ask(client, "lost")))
            for chunk_id in ids:
                await world.system.agent._tiers.delete(chunk_id)
        await client.ingest.delete(client.ctx, "lost", everything=True)
        return answers[0], answers[1]

    stored, computed = world.run(lost())
    assert stored["loaded_tokens"] > 0 == computed["loaded_tokens"]
    assert computed["recomputed_tokens"] == stored["recomputed_tokens"] + stored["loaded_tokens"]
    assert computed["isolated_tokens"] == 0


def test_a_document_in_the_scope_is_stored_as_its_tenants(world: World) -> None:
    async def made() -> tuple[Stage, str]:
        sources = [SourceDocument("a.md", OPEN.encode())]
        ended = [event async for event in world.partner.ingest.upsert(world.partner.ctx, "one", sources)]
        manifest = await world.partner.store.get_manifest(world.partner.ctx, "one", "a.md")
        await world.partner.ingest.delete(world.partner.ctx, "one", everything=True)
        return ended[-1].stage, f"{manifest.tenant} in {manifest.kv_scope}"

    assert world.run(made()) == (Stage.STORED, "partner in shared")


def test_kv_of_what_a_caller_may_not_read_is_counted_as_if_it_were_not_there(world: World) -> None:
    """He has the text, or guesses it: by `Generate`, and handed over in a question."""
    acme, colleague = world.acme, world.colleague

    async def generated(client: Client, chunk: ManifestChunk) -> dict[str, int]:
        piece = Conditioned(chunk.token_ids, (chunk.header_ids,)) if chunk.header_ids else chunk.token_ids
        order = order_of([piece], ["Why?"], sampling=SamplingParams(max_tokens=1))
        return counted(await whole(client.generation.generate(client.ctx, order)))

    async def handed(client: Client) -> dict[str, int]:
        inquiry = Inquiry(
            *("", ("Why?",)),
            sampling=SamplingParams(max_tokens=1),
            documents=(HandedDocument("", f"{OPEN} Nobody may know."),),
        )
        return counted([event async for event in client.rag.answer(client.ctx, inquiry)])

    async def asked() -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        await ingest(acme, "board", {"b.md": f"The board sold the mine.\n\n{OPEN}"}, readers=("board",))
        first = (await acme.store.get_manifest(acme.ctx, "board", "b.md")).chunks[0]
        hidden = [await generated(client, first) for client in (colleague, colleague, acme)]
        await acme.ingest.delete(acme.ctx, "board", everything=True)
        world.system.generator.forget([first.chunk_id])
        hidden.append(await generated(colleague, first))
        return hidden, [await handed(client) for client in (acme, acme, colleague, colleague)]

    (stored, again, reader, absent), (computed, cached, other, repeated) = world.run(asked())
    assert stored == again == absent
    assert reader["reused_tokens"] > absent["reused_tokens"], "it was there"
    assert other == repeated == computed
    assert cached["reused_tokens"] > computed["reused_tokens"]
    assert computed["written_tokens"] > 0 == cached["written_tokens"]


@pytest.mark.parametrize("who", ["other", "partner", "colleague"])
@pytest.mark.parametrize("naming", ["chunk_id", "auxiliary_id"])
def test_kv_that_is_no_documents_yet_is_named_by_nobody_who_does_not_say_of_what_it_is(
    world: World, naming: str, who: str
) -> None:
    client: Client = getattr(world, who)

    async def told_of() -> list[str]:
        acme = world.acme
        (chunk,) = await whole(acme.generation.prefill(acme.ctx, ["The mine below the bridge is closed."]))
        assert (await world.system.agent.stat(acme.ctx, [chunk.chunk_id]))[0].exists
        put = client.store.put_manifest
        return [
            await told(put(client.ctx, referring(client, **{naming: kv_id})), kv_id)
            for kv_id in (chunk.chunk_id, "0" * 40)
        ]

    theirs, absent = world.run(told_of())
    assert theirs == absent
    assert "not stored" in theirs


def test_a_manifest_may_name_what_its_own_tokens_say(world: World) -> None:
    async def named() -> None:
        acme = world.acme
        model = await acme.generation.describe(acme.ctx)
        (one,) = await whole(acme.generation.prefill(acme.ctx, ["The mine below the bridge is open."]))
        chunk = ManifestChunk(one.chunk_id, one.token_ids)
        manifest = Manifest(
            *("acme", "mine", "m"),
            model_fingerprint=model.fingerprint,
            prefix_ids=model.prefix_ids,
            chunks=(chunk,),
            kv_scope="shared",
        )
        await acme.store.put_manifest(acme.ctx, manifest)
        again = replace(manifest, document_id="n", model_fingerprint="")
        await acme.store.put_manifest(acme.ctx, again)  # a document that acme reads has it
        await acme.ingest.delete(acme.ctx, "mine", everything=True)

    world.run(named())
