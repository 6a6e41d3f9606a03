from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from services.kv_store.blobs.reserve import RESERVE_BYTES
from services.kv_store.documents.documents import Documents
from shared.errors import CorruptData, FailedPrecondition, InvalidRequest, NotFound, StorageFull
from shared.identity import ids_hash
from shared.kv_types import AlikeDocuments, Chain, Manifest, ManifestChunk
from tests.kv_chunks import chunk_id_of
from tests.unit.kv_store.disks import Crash, DyingDisk, FullDisk, QuickDisk, SmallDisk

A, B, C = (chunk_id_of(n) for n in range(3))


def document(
    document_id: str, *chunk_ids: str, collection: str = "books", tenant: str = "default", text: str = "päge"
) -> Manifest:
    chunks = tuple(ManifestChunk(c, (1, 2, 3), 0, 9, text, "Part > Chapter") for c in chunk_ids)
    return Manifest(
        tenant, collection, document_id, "Title", "hash", "model", (5,), chunks, {"author": "N. N."}, 1.5
    )


@pytest.fixture
def documents(tmp_path: Path) -> Documents:
    return Documents(tmp_path, QuickDisk())


def test_a_document_comes_back_as_it_was_stored(documents: Documents) -> None:
    stored = document("file:///a b/ü.pdf", A, B)
    assert documents.put(stored) is None
    assert documents.get("default", "books", "file:///a b/ü.pdf") == stored


def test_its_file_is_json_for_whoever_wants_to_read_it(documents: Documents, tmp_path: Path) -> None:
    documents.put(document("d", A))
    (path,) = (tmp_path / "manifests" / "default" / "books").iterdir()
    assert json.loads(path.read_bytes())["manifest"]["document_id"] == "d"


def test_references_are_counted_once_per_document(documents: Documents) -> None:
    documents.put(document("1", A, A, B))
    documents.put(document("2", A))
    documents.put(document("3", A, tenant="other"))
    assert [documents.references(c) for c in (A, B, C)] == [3, 1, 0]
    removal = documents.remove("default", "books", "1")
    assert [documents.references(c) for c in (A, B, C)] == [2, 0, 0]
    assert removal.chunk_ids == (A, B)
    documents.check_invariants()


def test_what_was_replaced_or_removed_stays_pending_until_its_chunks_are_gone(
    documents: Documents, tmp_path: Path
) -> None:
    documents.put(document("1", A))
    replaced = documents.put(document("1", B))
    removed = documents.remove("default", "books", "1")
    assert replaced is not None
    assert {r.name: r.chunk_ids for r in Documents(tmp_path, QuickDisk()).pending()} == {
        replaced.name: (A,),
        removed.name: (B,),
    }
    documents.finish(replaced)
    documents.finish(removed)
    assert Documents(tmp_path, QuickDisk()).pending() == documents.pending() == []


def test_tenants_do_not_see_each_other(documents: Documents) -> None:
    documents.put(document("1", A))
    with pytest.raises(NotFound):
        documents.get("other", "books", "1")
    with pytest.raises(NotFound):
        documents.remove("other", "books", "1")
    assert documents.page("other", "", "", 0, False).manifests == ()


def test_names_and_ids_that_could_escape_are_refused(documents: Documents) -> None:
    for bad in ({"collection": "../x"}, {"collection": ""}, {"tenant": ".."}, {"tenant": "a/b"}):
        with pytest.raises(InvalidRequest):
            documents.put(document("1", A, **bad))
    for bad_id in ("", "x" * 3000):
        with pytest.raises(InvalidRequest, match="document_id"):
            documents.put(document(bad_id, A))
    documents.put(document("../../../etc/passwd", A))
    documents.check_invariants()


@pytest.mark.parametrize("collection", ["", "books"])
def test_pages_follow_each_other_in_order(documents: Documents, collection: str) -> None:
    ids = ["", "0", "a", "b/c", "ü", "zz"]
    keys = [(c, f"d{i}") for c in ("atlas", "books", "books-2") for i in ids]
    for c, document_id in reversed(keys):
        documents.put(document(document_id, A, collection=c))
    documents.put(document("d", A, tenant="zebra"))

    seen: list[Manifest] = []
    truncated = True
    while truncated:
        page = documents.page(
            "default", collection, seen[-1].cursor(collection) if seen else "", 4, summary=True
        )
        seen += page.manifests
        truncated = page.truncated
    assert [(m.collection, m.document_id) for m in seen] == [
        k for k in sorted(keys) if collection in ("", k[0])
    ]


def test_a_page_ends_early_when_it_becomes_large(documents: Documents) -> None:
    for i in range(4):
        documents.put(document(str(i), A, text="x" * 600_000))
    assert [
        len(documents.page("default", "books", "", 0, summary).manifests) for summary in (False, True)
    ] == [2, 4]


def test_a_summary_leaves_text_and_ids_out(documents: Documents) -> None:
    documents.put(document("1", A))
    (chunk,) = documents.page("default", "books", "", 0, summary=True).manifests[0].chunks
    assert chunk == ManifestChunk(A, (), 0, 9, "", "Part > Chapter")


def harm(directory: Path, document_id: str, *folders: str) -> list[Path]:
    """Changes a letter in the document's manifest: in both copies, or those in ``folders``."""
    of_it = f'"document_id":"{document_id}"'.encode()
    harmed = []
    for folder in folders or ("manifests", "copies/manifests"):
        for path in (directory / folder).glob("*/*/*.json"):
            raw = path.read_bytes()
            if of_it in raw:
                path.write_bytes(raw.replace(b"Title", b"Tytle"))
                harmed.append(path)
    return harmed


def test_a_damaged_manifest_is_restored_from_its_second_copy_while_the_store_runs_and_at_its_start(
    documents: Documents, tmp_path: Path
) -> None:
    documents.put(document("1", A))
    for read in (documents.get, lambda *key: Documents(tmp_path, QuickDisk()).get(*key)):
        (path,) = harm(tmp_path, "1", "manifests")
        assert read("default", "books", "1") == document("1", A)
        assert b"Title" in path.read_bytes()
    assert Documents(tmp_path, QuickDisk()).num_damaged == 0
    documents.remove("default", "books", "1")
    assert not list((tmp_path / "copies").glob("**/*.json")), "what is gone comes back from nowhere"


def test_while_a_document_is_damaged_every_chunk_may_be_its_own(documents: Documents, tmp_path: Path) -> None:
    documents.put(document("1", A))
    documents.put(document("2", B))
    harm(tmp_path, "1")
    reborn = Documents(tmp_path, QuickDisk())
    assert reborn.num_damaged == 1
    assert (reborn.references(A), reborn.references(C)) == (1, 1)
    with pytest.raises(FailedPrecondition, match=r"1 documents are damaged.*kvquilt store verify"):
        reborn.check_known()
    removal = reborn.remove("default", "books", "2")
    assert reborn.pending() == [], "nothing of it goes before it is known"
    reborn.check_invariants()

    again = Documents(tmp_path, QuickDisk())
    assert (again.num_damaged, again.references(C)) == (1, 1), "nor after another start"
    again.put(document("1", A))
    again.check_known()
    assert (again.references(A), again.references(C)) == (1, 0)
    assert [r.chunk_ids for r in again.pending()] == [removal.chunk_ids]
    assert not list(tmp_path.glob("**/*.damaged"))
    assert Documents(tmp_path, QuickDisk()).num_damaged == 0


def test_a_damaged_document_can_be_removed(documents: Documents, tmp_path: Path) -> None:
    documents.put(document("1", A))
    harm(tmp_path, "1")
    reborn = Documents(tmp_path, QuickDisk())
    assert reborn.remove("default", "books", "1").chunk_ids == ()
    assert (reborn.num_damaged, reborn.references(A)) == (0, 0)
    with pytest.raises(NotFound):
        reborn.remove("default", "books", "1")
    reborn.check_invariants()
    assert Documents(tmp_path, QuickDisk()).num_damaged == 0


@pytest.mark.parametrize("folder", ["manifests", "copies/manifests"])
def test_verifying_finds_either_damaged_copy_and_repairing_restores_it(
    documents: Documents, tmp_path: Path, folder: str
) -> None:
    documents.put(document("1", A))
    documents.put(document("2", B))
    (path,) = harm(tmp_path, "1", folder)
    assert [(d.name, d.restored) for d in documents.verify()] == [("default/books/1", False)]
    assert [(d.name, d.restored) for d in documents.verify(repair=True)] == [("default/books/1", True)]
    assert documents.verify() == []
    assert b"Title" in path.read_bytes()
    assert documents.num_damaged == 0
    documents.check_invariants()


def test_verifying_names_what_cannot_be_restored_also_once_it_was_set_aside(
    documents: Documents, tmp_path: Path
) -> None:
    documents.put(document("ü/1", A))
    harm(tmp_path, "\\u00fc/1")
    for store in (documents, Documents(tmp_path, QuickDisk())):
        assert [(d.name, d.restored) for d in store.verify(repair=True)] == [("default/books/ü/1", False)]
        assert store.num_damaged == 1


def test_an_earlier_versions_manifests_get_their_second_copy_and_what_is_gone_loses_it(
    documents: Documents, tmp_path: Path
) -> None:
    documents.put(document("1", A))
    documents.put(document("2", A))
    documents.put(document("3", A))
    one, two, three = sorted((tmp_path / "copies").glob("**/*.json"))
    one.unlink()
    two.write_bytes(b"of before a crash")
    (tmp_path / three.relative_to(tmp_path / "copies")).unlink()  # an earlier version removed it
    reborn = Documents(tmp_path, QuickDisk())
    reborn.renew_copies()
    assert sorted((tmp_path / "copies").glob("**/*.json")) == [one, two]
    assert all(
        copy.read_bytes() == (tmp_path / copy.relative_to(tmp_path / "copies")).read_bytes()
        for copy in (one, two)
    )


def test_a_damaged_manifest_is_reported_and_set_aside_by_the_next_life(
    documents: Documents, tmp_path: Path
) -> None:
    documents.put(document("1", A))
    documents.put(document("2", B))
    harm(tmp_path, "1")
    assert documents.put(document("2", B)) is not None  # others are not concerned
    with pytest.raises(CorruptData, match="ingest the document again"):
        documents.get("default", "books", "1")
    assert [m.document_id for m in documents.page("default", "", "", 0, True).manifests] == ["2"]

    reborn = Documents(tmp_path, QuickDisk())
    assert [m.document_id for m in reborn.page("default", "", "", 0, True).manifests] == ["2"]
    assert len(list((tmp_path / "manifests").glob("*/*/*.damaged"))) == 1
    reborn.put(document("1", A))
    reborn.check_invariants()


def test_a_damaged_or_lost_manifest_can_be_replaced_and_removed(documents: Documents, tmp_path: Path) -> None:
    for harm in (Path.unlink, lambda path: path.write_bytes(b"{}")):
        documents.put(document("1", A))
        (path,) = (tmp_path / "manifests").glob("*/*/*.json")
        harm(path)
        documents.put(document("1", B))
        assert documents.get("default", "books", "1") == document("1", B)
        assert (documents.references(A), documents.references(B)) == (0, 1)
        path.write_bytes(b"")
        documents.remove("default", "books", "1")
        assert documents.num_documents == documents.references(B) == 0


def test_a_disk_that_is_full_at_any_moment_leaves_the_old_document_or_the_new_one(tmp_path: Path) -> None:
    old, new = document("1", A), document("1", B)
    for full_at in range(100):
        directory = tmp_path / str(full_at)
        Documents(directory, QuickDisk()).put(old)
        documents = Documents(directory, FullDisk(full_at))
        try:
            documents.put(new)
        except StorageFull:
            documents.check_invariants()
            assert documents.get("default", "books", "1") in (old, new)
            assert not list((directory / "staging-documents").iterdir())
            assert Documents(directory, QuickDisk()).get("default", "books", "1") == documents.get(
                "default", "books", "1"
            )
        else:
            assert full_at >= 4
            return
    pytest.fail("the operations never end")


def test_a_full_disk_takes_no_new_document_and_lets_old_ones_go(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, RESERVE_BYTES + 100_000)
    documents = Documents(tmp_path, disk)
    documents.put(document("1", A))
    documents.put(document("2", B))
    disk.room -= disk.free_bytes(tmp_path)
    for document_id in ("1", "3"):
        with pytest.raises(StorageFull):
            documents.put(document(document_id, C))
    removal = documents.remove("default", "books", "1")
    assert [r.chunk_ids for r in Documents(tmp_path, QuickDisk()).pending()] == [(A,)]
    documents.finish(removal)
    disk.room += 2 * RESERVE_BYTES  # the KV is gone, too
    documents.hold_reserve()
    assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
    disk.room -= disk.free_bytes(tmp_path)
    documents.remove("default", "books", "2")
    assert documents.num_documents == 0


def test_a_disk_that_has_no_room_for_the_reserve_opens_all_the_same(tmp_path: Path) -> None:
    Documents(tmp_path, QuickDisk()).put(document("1", A))
    (tmp_path / "reserve").unlink()
    documents = Documents(tmp_path, SmallDisk(tmp_path, 0))
    assert documents.get("default", "books", "1") == document("1", A)
    with pytest.raises(StorageFull):
        documents.remove("default", "books", "1")
    assert documents.get("default", "books", "1") == document("1", A)


@pytest.mark.parametrize("change", ["put", "remove"])
def test_a_crash_at_any_moment_leaves_the_state_before_or_after(tmp_path: Path, change: str) -> None:
    old, new = document("1", A), document("1", B)
    for dies_at in range(100):
        directory = tmp_path / str(dies_at)
        Documents(directory, QuickDisk()).put(old)
        try:
            documents = Documents(directory, DyingDisk(dies_at))
            if change == "put":
                documents.put(new)
            else:
                documents.remove("default", "books", "1")
        except Crash:
            reborn = Documents(directory, QuickDisk())
            reborn.check_invariants()
            left = reborn.page("default", "", "", 0, False).manifests
            assert left in ((old,), (new,), ())
            # its chunks are not forgotten
            assert left == (old,) or (A,) in [r.chunk_ids for r in reborn.pending()]
        else:
            assert dies_at >= 2
            return
    pytest.fail("the operations never end")


def chained(document_id: str, tenant: str = "default") -> Manifest:
    """Two blocks: a header and two chunks; a chunk alone."""
    chunks = (
        ManifestChunk(A, (1, 2), text="first", heading="One", parent_id="h" * 40, header_ids=(8, 9)),
        ManifestChunk(B, (3,), parent_id=A),
        ManifestChunk(C, (4,)),
    )
    return Manifest(tenant, "books", document_id, "Title", "hash", "model", (5,), chunks)


def test_a_chain_is_found_by_what_it_ends_with(documents: Documents) -> None:
    documents.put(chained("1"))
    assert documents.get("default", "books", "1") == chained("1")
    links, texts = ((8, 9), (1, 2)), ("Title\nOne", "first")
    assert documents.chain("default", A) == Chain("default", "model", (5,), links, texts)
    assert documents.chain("default", "h" * 40) == Chain("default", "model", (5,), links[:1], texts[:1])
    assert documents.chain("default", B) is None, "nothing stands behind it"
    assert documents.chain("other", A) is None, "it is another tenant's"
    documents.put(chained("2"))
    documents.remove("default", "books", "1")
    assert documents.chain("default", A) == Chain("default", "model", (5,), links, texts)
    documents.remove("default", "books", "2")
    assert documents.chain("default", A) is None


def test_documents_that_were_made_alike_are_counted(documents: Documents) -> None:
    for name, manifest in {
        "1": chained("1"),
        "2": replace(chained("2"), kv_context="document"),
        "3": replace(chained("3"), kv_context="document"),
        "4": replace(chained("4"), kv_context="document", collection="films"),
        "5": chained("5", tenant="other"),
    }.items():
        documents.put(replace(manifest, document_id=name))
    made = ("model", ids_hash((5,)), "")
    assert documents.counts("default") == [
        AlikeDocuments("books", 1, *made),
        AlikeDocuments("books", 2, *made, kv_context="document"),
        AlikeDocuments("films", 1, *made, kv_context="document"),
    ]
    documents.remove("default", "films", "4")
    assert {count.collection for count in documents.counts("default")} == {"books"}
    assert documents.counts("nobody") == []


def test_a_document_without_chains_is_written_as_versions_before_wrote_it(
    documents: Documents, tmp_path: Path
) -> None:
    documents.put(document("d", A))
    (path,) = (tmp_path / "manifests" / "default" / "books").iterdir()
    assert json.loads(path.read_bytes())["version"] == 2
    documents.put(chained("d"))
    assert json.loads(path.read_bytes())["version"] == 4
