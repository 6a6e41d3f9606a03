"""`kvquilt store` and `kvquilt retrieval` without services: help, options, what is printed, what is asked in
which order."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from cluster.cli.duration import Duration
from cluster.cli.main import main
from cluster.cli.output import as_json
from cluster.cli.store_console import (
    collections_table,
    counters_table,
    damage_lines,
    principals_table,
    stats_values,
    tenants_table,
    tiers_table,
)
from cluster.cli.store_upkeep import migrate, print_findings, print_seals, repair, verify
from shared.documents import DocumentInfo, Stage, UpsertProgress
from shared.kv_reports import (
    DamagedCopy,
    DamagedRecord,
    NodeStats,
    PrincipalStats,
    StoreStats,
    TenantStats,
    TierStats,
    VerifyProgress,
)
from shared.kv_types import AlikeDocuments, ChunkStat
from shared.request import RequestContext

STORE = ("stats", "verify", "repair", "migrate", "gc", "pin", "unpin", "pins", "export", "import")
CTX = RequestContext.create(deadline_ms=36_000_000)
STATS = StoreStats(
    nodes=(
        NodeStats(
            "n1", True, (TierStats("memory", 1, 1234567, 0, 5), TierStats("disk", 2, 22, 10**9)), {"opens": 3}
        ),
        NodeStats("n2", False, (TierStats("disk", 3, 33),), {"opens": 4}),
    ),
    objects=TierStats("objects", 4, 44),
    tenants=(
        TenantStats("acme", 2, 40, 100, (PrincipalStats("key/anna", 1, 1024, 2048),)),
        TenantStats("beta", 1, 4, num_items=3, item_bytes=5678),
    ),
)


def invoke(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(args), catch_exceptions=False)
    return result.exit_code, result.output


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=160), out


def contexts(tenant: str) -> RequestContext:
    return RequestContext.create(tenant=tenant)


@pytest.mark.parametrize(
    "command", [["store"], *(["store", name] for name in STORE), ["retrieval"], ["retrieval", "rebuild"]]
)
def test_every_command_explains_itself(command: list[str]) -> None:
    code, output = invoke(*command, "--help")
    assert code == 0
    assert "Usage:" in output


@pytest.mark.parametrize(
    "args",
    [
        ["store", "stats"],
        ["store", "verify"],
        ["store", "repair"],
        ["store", "migrate"],
        ["store", "gc"],
        ["store", "pin", "-c", "x"],
        ["store", "export", "-c", "x", "f"],
        ["retrieval", "rebuild"],
    ],
)
def test_without_a_running_system_the_remedy_is_named(args: list[str], tmp_path: Path) -> None:
    code, output = invoke("--data-dir", str(tmp_path), *args)
    assert (code, len(output.strip().splitlines())) == (3, 1)
    assert "start it with `kvquilt up`" in output
    assert "--target" in output


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30m", 1800.0), ("1h", 3600.0), ("2d", 172800.0), ("0s", 0.0)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_a_duration_without_a_unit_is_refused_with_an_example() -> None:
    code, output = invoke("store", "gc", "--grace", "10")
    assert code == 2
    assert "write 90s, 30m, 1h or 2d" in output


def test_an_object_store_that_does_not_answer_has_its_line_all_the_same() -> None:
    screen, out = console()
    screen.print(tiers_table(dataclasses.replace(STATS, objects=None, objects_detail="it is down")))
    assert ["objects", "?", "?", "?", "?"] in [line.split() for line in out.getvalue().splitlines()]
    without, out = console()
    without.print(tiers_table(dataclasses.replace(STATS, objects=None)))
    assert "objects" not in out.getvalue()


def test_statistics_are_shown_to_the_byte_and_as_json() -> None:
    screen, out = console()
    for table in (tiers_table(STATS), tenants_table(STATS), principals_table(STATS), counters_table(STATS)):
        screen.print(table)
    for part in ("1,234,567", "1,000,000,000", "objects", "acme", "n1 (home)"):
        assert part in out.getvalue()
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["opens", "7"] in lines
    assert ["acme", "key/anna", "1", "1,024", "2,048"] in lines
    parsed = json.loads(as_json(stats_values(STATS, ())))
    assert parsed["nodes"][0]["tiers"][0] == {
        "tier": "memory",
        "num_chunks": 1,
        "num_bytes": 1234567,
        "capacity_bytes": 0,
        "pinned_bytes": 5,
    }
    acme, beta = parsed["tenants"]
    assert beta == {
        "tenant": "beta",
        "num_documents": 1,
        "num_bytes": 4,
        "quota_bytes": 0,
        "principals": [],
        "num_items": 3,
        "item_bytes": 5678,
    }
    anna = {"principal": "key/anna", "num_documents": 1, "num_bytes": 1024, "limit_bytes": 2048}
    assert acme["principals"] == [anna]


def test_collections_are_shown_by_how_their_documents_were_made() -> None:
    counts = [
        AlikeDocuments("handbook", 3, "f" * 32, kv_context="document"),
        AlikeDocuments("handbook", 1, "f" * 32),
    ]
    screen, out = console()
    screen.print(collections_table(counts))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines[1:] == [["handbook", "3", "document", "f" * 32], ["handbook", "1", "none", "f" * 32]]
    parsed = json.loads(as_json(stats_values(STATS, counts)))
    assert [one["kv_context"] for one in parsed["collections"]] == ["document", ""]


def test_damage_is_listed_with_node_tier_and_reason() -> None:
    screen, out = console()
    for line in damage_lines(
        [
            DamagedCopy("c1", "n1", "disk", "fails its checksum", True),
            DamagedCopy("c2", "n2", "objects", "short"),
        ]
    ):
        screen.print(line)
    assert [line.split()[:4] for line in out.getvalue().splitlines()] == [
        ["c1", "n1", "disk", "restored"],
        ["c2", "n2", "objects", "damaged"],
    ]


@dataclass
class Store:
    progress: Sequence[VerifyProgress] = ()
    lost: dict[str, str] = field(default_factory=dict)
    """Chunk → tenant whose documents need it."""
    asked: list[object] = field(default_factory=list)

    async def stats(self, ctx: RequestContext) -> StoreStats:
        return STATS

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        return [ChunkStat(c, c not in self.lost) for c in chunk_ids]

    async def verify(
        self, ctx: RequestContext, repair: bool = False, seal: bool = False
    ) -> AsyncGenerator[VerifyProgress, None]:
        self.asked.append(("verify", repair))
        for p in self.progress:
            yield p


@dataclass
class Ingest:
    """Computes the chunks of a tenant that ``store`` lost, unless they are ``hopeless``."""

    store: Store
    documents: Sequence[DocumentInfo] = ()
    hopeless: set[str] = field(default_factory=set)
    calls: list[tuple[str, ...]] = field(default_factory=list)

    async def list(self, ctx: RequestContext, collection: str = "") -> AsyncGenerator[DocumentInfo, None]:
        for d in self.documents:
            if collection in ("", d.collection):
                yield d

    async def re_encode(self, ctx: RequestContext, collection: str) -> AsyncGenerator[UpsertProgress, None]:
        self.calls.append(("re_encode", collection))
        yield (
            UpsertProgress("a", Stage.FAILED, error="broken")
            if collection in self.hopeless
            else UpsertProgress("a", Stage.STORED)
        )

    async def refresh(
        self, ctx: RequestContext, collection: str = "", chunk_ids: Sequence[str] = (), encoding: str = ""
    ) -> AsyncGenerator[UpsertProgress, None]:
        self.calls.append(("refresh", ctx.tenant, collection, encoding, *chunk_ids))
        for chunk_id in chunk_ids:
            if self.store.lost.get(chunk_id) == ctx.tenant and chunk_id not in self.hopeless:
                del self.store.lost[chunk_id]
                yield UpsertProgress("d", Stage.STORED, 1, 1)


async def test_verifying_gathers_all_damage_and_what_is_missing() -> None:
    first, second = (
        DamagedCopy("c1", "n1", "disk", "flipped"),
        DamagedCopy("c2", "n2", "memory", "short", True),
    )
    store = Store(
        [
            VerifyProgress(1, 10, (first,)),
            VerifyProgress(5, 50, (second,)),
            VerifyProgress(9, 90, missing_chunk_ids=("c1",)),
        ]
    )
    findings = await verify(console()[0], store, CTX, repair=False)
    assert findings == VerifyProgress(9, 90, (first, second), ("c1",))
    assert store.asked == [("verify", False)]
    screen, out = console()
    print_findings(screen, findings)
    assert "9 copies of 90 bytes verified: 2 damaged" in out.getvalue()
    assert "c1  no durable good copy is left" in out.getvalue()


async def test_a_whole_store_is_whole() -> None:
    record = DamagedRecord("acme/books/1", "its manifest fails its checksum")
    told = [VerifyProgress(0, 0, damaged_records=(record,)), VerifyProgress(9, 90)]
    findings = await verify(console()[0], Store(told), CTX, repair=False)
    assert findings.damaged_records == (record,)
    shown, out = console()
    print_findings(shown, findings)
    assert "acme/books/1  damaged  its manifest fails its checksum" in out.getvalue()
    found = await verify(console()[0], Store([VerifyProgress(9, 90)]), CTX, repair=False)
    assert found == VerifyProgress(9, 90)


async def test_what_is_missing_is_computed_for_every_tenant_that_has_documents() -> None:
    store = Store(lost={"c1": "acme", "c2": "beta"})
    ingest = Ingest(store)
    assert await repair(
        console()[0],
        console()[0],
        store,
        ingest,
        contexts,
        "",
        VerifyProgress(0, 0, missing_chunk_ids=("c1", "c2")),
    )
    assert ingest.calls == [("refresh", "acme", "", "", "c1", "c2"), ("refresh", "beta", "", "", "c2")]


async def test_for_one_tenant_only_its_own_are_computed_and_the_rest_is_named() -> None:
    store = Store(lost={"c1": "acme", "c2": "beta"})
    screen, out = console()
    assert not await repair(
        screen,
        console()[0],
        store,
        Ingest(store),
        contexts,
        "acme",
        VerifyProgress(0, 0, missing_chunk_ids=("c1", "c2")),
    )
    assert "c2  could not be computed anew" in out.getvalue()
    assert "c1  could not" not in out.getvalue()


async def test_nothing_missing_needs_no_computing() -> None:
    store = Store()
    ingest = Ingest(store)
    assert await repair(console()[0], console()[0], store, ingest, contexts, "", VerifyProgress(0, 0))
    assert ingest.calls == []


def document(collection: str, current: bool) -> DocumentInfo:
    return DocumentInfo(collection, "d", "D", 1, "f", current, 0.0)


async def test_migrating_makes_documents_of_another_model_anew_and_then_brings_all_into_the_encoding() -> (
    None
):
    ingest = Ingest(
        Store(), [document("a", True), document("b", False), document("b", False), document("c", False)]
    )
    assert not (await migrate(console()[0], console()[0], ingest, contexts, "", "int8")).failed
    assert ingest.calls == [("re_encode", "b"), ("re_encode", "c"), ("refresh", "default", "", "int8")]


async def test_migrating_one_collection_leaves_the_others_alone() -> None:
    ingest = Ingest(Store(), [document("b", False), document("c", False)])
    await migrate(console()[0], console()[0], ingest, contexts, "c", "int8")
    assert ingest.calls == [("re_encode", "c"), ("refresh", "default", "c", "int8")]


async def test_migrating_stops_at_a_collection_that_cannot_be_made_anew() -> None:
    ingest = Ingest(Store(), [document("b", False), document("c", False)], hopeless={"b"})
    assert (await migrate(console()[0], console()[0], ingest, contexts, "", "int8")).failed == {"a": "broken"}
    assert ingest.calls == [("re_encode", "b")]


async def test_what_has_no_seal_is_told_with_what_helps() -> None:
    out, told = console()
    progress = (
        VerifyProgress(0, 0, num_unsealed_documents=2),
        VerifyProgress(5, 50, num_unsealed=3),
    )
    found = await verify(Console(file=io.StringIO()), Store(progress=progress), CTX, repair=False)
    print_seals(out, found)
    assert "3 chunks and 2 documents have no seal" in told.getvalue()
    assert "kvquilt store migrate" in told.getvalue()
    print_seals(out, VerifyProgress(5, 50, num_sealed=4, num_sealed_documents=1))
    assert "current key: 4 chunks, 1 documents" in told.getvalue()
