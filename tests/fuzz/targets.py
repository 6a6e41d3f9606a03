"""Systems whose RPCs are fuzzed: what they are given before, by which callers they are called, and what must
still work afterwards."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from google.protobuf.message import Message

from protos.kvquilt.v1 import kv_store_pb2, rag_pb2
from shared.answer import AnswerDone, Inquiry
from shared.clients import generation, ingest, kv_store, rag, retrieval
from shared.clients.channels import channel_to
from shared.clients.grpc_transport import GrpcTransport
from shared.documents import SourceDocument, Stage
from shared.errors import NotFound
from shared.generation.orders import ASKED_MODES
from shared.principals.credentials import Credentials, bearer, no_credentials
from shared.principals.principal import Role
from shared.request import RequestContext
from shared.wire.kv_store import MANIFEST
from tests.e2e.attack_inputs import EXPLORED, QUESTIONS, question
from tests.fuzz.messages import Known
from tests.whole_system import WholeSystem

COLLECTION = "fuzzed"
OF_ANOTHER, OF_THE_BOARD = "zwergplanet-6e1f0c", "vorstandsbezug-93b7aa"
"""Words of a document of another tenant, and of one that only its readers may read."""
_TOWN = b"# Tambach\n\nThe mayor is Orla Venn. It has 12 bridges.\n\n## Market\n\nMarket day is Monday.\n"
_OF_ALL = "town.md"
_PROBE_S = 60.0
_PIECE_BYTES = 20_000


@dataclass(frozen=True)
class Owner:
    """Whose documents these are, and by which credentials they come."""

    tenant: str
    credentials: Credentials
    word: str = ""


@dataclass
class Target:
    """
    callers: by name; those of fuzzed calls.
    owner: of most of what is asked for; prober: of what must go on working; another: whose documents nobody
    among the callers may see, None: there is none.
    secrets: by caller, what no answer to it may hold.
    pids: of the system's processes, where they are known.
    """

    channel: grpc.aio.Channel
    callers: Mapping[str, Credentials]
    owner: Owner
    prober: Owner
    another: Owner | None = None
    secrets: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    pids: Mapping[str, int] = field(default_factory=dict)

    async def plant(self) -> Known:
        """Brings documents in, and finds out what is there.

        Raises:
            KvquiltError, AssertionError: that does not work.
        """
        for whose in (self.owner, self.prober, self.another):
            if whose is not None:
                await self._ingest(whose)
        return await _Looked(self).known()

    async def probe(self) -> None:
        """Asks what anybody might. Raises as ``plant``."""
        await self._ingest(self.prober)
        client = rag.RagClient(self.to(rag, self.prober), self.to(rag, self.prober, rag.ADMIN_SERVICE))
        events = [event async for event in client.answer(_ctx(self.prober), INQUIRY)]
        assert isinstance(events[-1], AnswerDone)
        for part in (ingest, retrieval, generation, kv_store, rag):
            health = await kv_store.KvStoreClient(self.to(part, self.prober)).health(_ctx(self.prober))
            assert health.ready, f"{health.service}: {health.detail}"

    def to(self, part: object, whose: Owner, service: str = "") -> GrpcTransport:
        """``part``: a module of ``shared.clients``."""
        named = service or getattr(part, "SERVICE")  # noqa: B009
        application = getattr(part, "APPLICATION")  # noqa: B009
        return GrpcTransport(self.channel, named, application, credentials=whose.credentials)

    async def _ingest(self, whose: Owner) -> None:
        said = f"\n\nThe word is {whose.word}.\n".encode() if whose.word else b""
        documents = [SourceDocument(_OF_ALL, _TOWN + said, metadata={"lang": "en"})]
        if whose is self.owner:
            of_board = b"# Minutes\n\nThe word is %s.\n" % OF_THE_BOARD.encode()
            documents.append(SourceDocument("minutes.md", of_board, readers=("board",)))
        client = ingest.IngestClient(self.to(ingest, whose))
        async for event in client.upsert(_ctx(whose), COLLECTION, documents):
            assert event.stage is not Stage.FAILED, f"{event.document_id}: {event.error}"


INQUIRY = Inquiry(COLLECTION, ("Who is the mayor of Tambach?",))


class _Looked:
    """At what a target's owners have."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._texts: dict[str, list[str]] = defaultdict(list)
        self._requests: dict[str, list[list[Message]]] = defaultdict(list)

    async def known(self) -> Known:
        for whose in (self._target.owner, self._target.another):
            if whose is not None:
                with suppress(NotFound):  # somebody removed it again
                    await self._documents(whose)
        await self._model()
        texts = {
            "collection": [COLLECTION, COLLECTION, "other"],
            "reuse": list(map(str, ASKED_MODES)),
            "encoding": ["", "exact", "int8", "int4"],
            "adapter": ["", "none"],
            "refusal": ["", "off", "strict"],
            "kv_context": ["", "document", "header", "none"],
            "field": ["lang", "document_id"],
            "value": ["en"],
            "reader": ["board", "staff"],
            "media_type": [
                "",
                "text/plain",
                "text/markdown",
                "text/html; charset=latin-1",
                "application/pdf",
            ],
            "tenant": ["", self._target.owner.tenant, "third"],
            "principal": [""],
            "node_id": [""],
            "traceparent": ["", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        }
        self._requests["Generation.Explore"] += [commands for commands in EXPLORED.values() if commands]
        asked = [rag_pb2.AnswerRequest.FromString(question(**given)) for given, _ in QUESTIONS.values()]
        for request in asked:
            request.collection = COLLECTION
        self._requests["Rag.Answer"] += [[request] for request in asked]
        found = {name: sorted(set(values)) for name, values in self._texts.items()}
        return Known({**found, **texts}, self._requests)

    async def _documents(self, whose: Owner) -> None:
        store = kv_store.KvStoreClient(self._target.to(kv_store, whose))
        async for manifest in store.list_manifests(_ctx(whose), COLLECTION):
            self._texts["document_id"].append(manifest.document_id)
            self._texts["start_after"].append(manifest.document_id)
            self._texts["heading"] += [chunk.heading for chunk in manifest.chunks]
            for chunk in manifest.chunks:
                self._texts["chunk_id"].append(chunk.chunk_id)
                self._texts["parent_id"].append(chunk.parent_id)
            if whose is self._target.owner and manifest.document_id == _OF_ALL:
                request = kv_store_pb2.PutManifestRequest(manifest=MANIFEST.to_pb(manifest))
                self._requests["KvStore.PutManifest"].append([request])
                chunk = manifest.chunks[0]
                pieces = [piece async for piece in store.get(_ctx(whose), chunk.chunk_id)]
                await self._put(whose, chunk.chunk_id, chunk.parent_id, b"".join(pieces))

    async def _put(self, whose: Owner, chunk_id: str, parent_id: str, data: bytes) -> None:
        model = await generation.GenerationClient(self._target.to(generation, whose)).describe(_ctx(whose))
        header = kv_store_pb2.PutHeader(
            chunk_id=chunk_id, size_bytes=len(data), prefix_ids=model.prefix_ids, parent_id=parent_id
        )
        starts = range(0, len(data), _PIECE_BYTES)
        pieces = [kv_store_pb2.PutRequest(data=data[at : at + _PIECE_BYTES]) for at in starts]
        self._requests["KvStore.Put"].append([kv_store_pb2.PutRequest(header=header), *pieces])

    async def _model(self) -> None:
        """Asks, so that there is an answer to rate."""
        owner = self._target.owner
        client = rag.RagClient(self._target.to(rag, owner), self._target.to(rag, owner, rag.ADMIN_SERVICE))
        async for event in client.answer(_ctx(owner), INQUIRY):
            if isinstance(event, AnswerDone):
                self._texts["request_id"].append(event.request_id)


def _ctx(whose: Owner) -> RequestContext:
    return RequestContext.create(tenant=whose.tenant, deadline_ms=int(_PROBE_S * 1000))


@asynccontextmanager
async def target_of(system: WholeSystem) -> AsyncIterator[Target]:
    """Called by keys of every role, and by nobody."""

    def key(name: str, tenant: str, role: Role, *groups: str) -> Credentials:
        return bearer(system.key(name, tenant, role, *groups))

    owner = Owner("acme", key("admin", "acme", Role.ADMIN, "*"))
    callers = {
        "admin": owner.credentials,
        "writer": key("writer", "acme", Role.WRITER),
        "reader": key("reader", "acme", Role.READER, "staff"),
        "neighbour": key("neighbour", "beta", Role.ADMIN, "*"),
        "stranger": no_credentials,
    }
    another = Owner("victim", key("victim", "victim", Role.ADMIN, "*"), OF_ANOTHER)
    prober = Owner("prober", key("prober", "prober", Role.ADMIN, "*"))
    secrets = {name: [OF_ANOTHER.encode(), OF_THE_BOARD.encode()] for name in callers}
    secrets["admin"] = [OF_ANOTHER.encode()]
    await asyncio.sleep(1)  # until the keys are known
    async with channel_to(system.target) as channel:
        yield Target(channel, callers, owner, prober, another, secrets)


@asynccontextmanager
async def target_at(
    address: str, key: str = "", pids: Mapping[str, int] | None = None
) -> AsyncIterator[Target]:
    """A running system. ``key``: an administrator's, with the group `*`; empty: it asks nobody, and tenants
    are those that requests name."""
    async with channel_to(address) as channel:
        known: Mapping[str, int] = pids or {}
        if key:
            admin = Owner("", bearer(key))
            yield Target(
                channel, {"admin": bearer(key), "stranger": no_credentials}, admin, admin, pids=known
            )
            return
        owner, prober = (Owner(f"fuzz-{name}", no_credentials) for name in ("owner", "prober"))
        another = Owner("fuzz-another", no_credentials, OF_ANOTHER)
        secrets = {"operator": [OF_ANOTHER.encode()]}
        yield Target(channel, {"operator": no_credentials}, owner, prober, another, secrets, known)


def resident_bytes(pid: int) -> int:
    """0: it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * 4096
