"""Documents whose truth is an object store: here a dict, which also fails, dies and is restored on demand."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import xxhash

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.documents.documents import Documents
from services.kv_store.documents.manifest_json import decode, encode
from services.kv_store.documents.manifest_mirror import MARKER
from services.kv_store.documents.manifest_names import name_of
from shared.errors import (
    CorruptData,
    FailedPrecondition,
    KvquiltError,
    NewerFormat,
    NotFound,
    StorageFull,
    Unavailable,
)
from shared.kv_types import Manifest, ManifestChunk
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import DyingBlobs, FailingBlobs, FlakyBlobs, HookedBlobs, LyingBlobs
from tests.kv_chunks import chunk_id_of
from tests.unit.kv_store.disks import Crash, DyingDisk, FullDisk, QuickDisk

A, B, C = (chunk_id_of(n) for n in range(3))
DOWN = Unavailable("the object store cannot be reached")


def document(document_id: str, *chunk_ids: str, created_s: float = 0.0) -> Manifest:
    return Manifest(
        "acme",
        "books",
        document_id,
        chunks=tuple(ManifestChunk(c, (1, 2)) for c in chunk_ids),
        created_s=created_s,
    )


def documents_on(directory: Path, objects: Blobs | None) -> Documents:
    return Documents(directory, QuickDisk(), objects)


def ids_in(documents: Documents) -> list[str]:
    return [m.document_id for m in documents.page("acme", "", "", 0, True).manifests]


def manifests_in(objects: DictBlobs) -> dict[str, Manifest]:
    found = (decode(data) for name, data in objects.data.items() if name.startswith("manifests/"))
    return {m.document_id: m for m in found}


def name_in(objects: DictBlobs, document_id: str) -> str:
    return next(
        n
        for n, d in objects.data.items()
        if n.startswith("manifests/") and decode(d).document_id == document_id
    )


@pytest.fixture
def objects() -> DictBlobs:
    return DictBlobs()


def test_a_stored_document_lies_in_the_bucket_and_is_read_without_it(
    objects: DictBlobs, tmp_path: Path
) -> None:
    store = FailingBlobs(objects)
    documents = documents_on(tmp_path, store)
    documents.put(document("1", A, B))
    assert manifests_in(objects) == {"1": document("1", A, B)}
    store.failure = DOWN
    assert documents.get("acme", "books", "1") == document("1", A, B)
    assert ids_in(documents) == ["1"]
    with pytest.raises(NotFound):
        documents.get("acme", "books", "2")
    documents.check_invariants()


def test_a_new_home_with_an_empty_directory_finds_everything_in_the_bucket(
    objects: DictBlobs, tmp_path: Path
) -> None:
    old = documents_on(tmp_path / "old", objects)
    old.put(document("1", A))
    old.put(document("2", B))
    removal = old.remove("acme", "books", "1")

    new = documents_on(tmp_path / "new", objects)
    assert ids_in(new) == ["2"]
    assert new.pending() == [removal]
    assert (new.references(A), new.references(B)) == (0, 1)
    new.finish(removal)
    assert not [n for n in objects.data if n.startswith("removed/")]
    new.check_invariants()


def test_a_mirror_that_is_out_of_date_follows_the_bucket_and_fetches_only_what_differs(
    objects: DictBlobs, tmp_path: Path
) -> None:
    first = documents_on(tmp_path / "first", objects)
    for i in range(20):
        first.put(document(str(i), A))
    elsewhere = documents_on(tmp_path / "elsewhere", objects)
    elsewhere.remove("acme", "books", "3")
    elsewhere.put(document("4", B))
    elsewhere.put(document("new", C))
    for removal in elsewhere.pending():
        elsewhere.finish(removal)

    read: list[str] = []
    again = documents_on(
        tmp_path / "first", HookedBlobs(objects, lambda method, name: read.append(f"{method} {name}"))
    )
    again.sync()
    assert sorted(ids_in(again)) == sorted([*(str(i) for i in range(20) if i != 3), "new"])
    assert again.get("acme", "books", "4") == document("4", B)
    assert sorted(r for r in read if r.startswith("read manifests/")) == sorted(
        f"read {name_in(objects, document_id)}" for document_id in ("4", "new")
    )
    assert (again.references(A), again.references(B), again.references(C)) == (18, 1, 1)
    again.check_invariants()


def swap(objects: DictBlobs, one: str, other: str) -> None:
    """What is stored as either of two documents is the other one's from now on."""
    a, b = name_in(objects, one), name_in(objects, other)
    objects.data[a], objects.data[b] = objects.data[b], objects.data[a]


def test_a_whole_manifest_in_the_place_of_another_is_not_taken_for_it(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents = documents_on(tmp_path, objects)
    documents.put(document("1", A))
    documents.put(document("2", B))
    swap(objects, "1", "2")

    again = documents_on(tmp_path, objects)
    again.sync()
    assert again.get("acme", "books", "1") == document("1", A)
    assert again.num_damaged == 0
    assert decode(objects.data[name_of(("acme", "books", "1"))]).document_id == "1", "it is restored there"
    again.check_invariants()

    swap(objects, "1", "2")
    assert sorted(record.name for record in again.verify()) == ["acme/books/1", "acme/books/2"]
    with pytest.raises(NotFound):
        documents_on(tmp_path / "new home", objects).get("acme", "books", "1")


def test_an_object_store_that_lies_for_a_moment_loses_no_document(objects: DictBlobs, tmp_path: Path) -> None:
    old = documents_on(tmp_path / "old", objects)
    for n in range(8):
        old.put(document(str(n), A))
    others = {name: objects.data[name_in(objects, str(7 - int(m)))] for m, name in named(objects).items()}
    lied: set[str] = set()

    def once(name: str, data: bytes) -> bytes:
        if name in lied or name not in others:
            return data
        lied.add(name)
        return others[name]

    new = documents_on(tmp_path / "new", LyingBlobs(objects, once))
    assert ids_in(new) == ids_in(old)
    assert lied == set(others)
    assert new.num_damaged == 0
    new.check_invariants()


def test_a_marker_that_is_read_differently_twice_is_no_other_bucket(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents = documents_on(tmp_path, objects)
    documents.put(document("1", A))
    elsewhere = documents_on(tmp_path / "elsewhere", objects)
    elsewhere.finish(elsewhere.remove("acme", "books", "1"))
    lies = iter([True])

    def once(name: str, data: bytes) -> bytes:
        return data.replace(b'"id": "', b'"id": "f') if name == MARKER and next(lies, False) else data

    again = documents_on(tmp_path, LyingBlobs(objects, once))
    with pytest.raises(Unavailable, match="now this and now that"):
        again.sync()
    again.sync()
    assert ids_in(again) == [], "what was removed elsewhere does not come back"


def named(objects: DictBlobs) -> dict[str, str]:
    """Names of manifests, by document."""
    return {decode(d).document_id: name for name, d in objects.data.items() if name.startswith("manifests/")}


def test_documents_from_before_there_was_an_object_store_are_uploaded(
    objects: DictBlobs, tmp_path: Path
) -> None:
    alone = documents_on(tmp_path, None)
    alone.put(document("1", A))
    alone.put(document("2", B))
    removal = alone.remove("acme", "books", "2")

    documents = documents_on(tmp_path, objects)
    documents.sync()
    assert manifests_in(objects) == {"1": document("1", A)}
    assert removal.name in objects.data
    assert MARKER in objects.data
    assert documents.pending() == [removal]


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_during_the_first_upload_leaves_nothing_behind(tmp_path: Path, after: bool) -> None:
    ids = ["0", "1", "2", "3", "4"]
    for dies_at in range(100):
        objects, directory = DictBlobs(), tmp_path / str(dies_at)
        alone = documents_on(directory, None)
        for document_id in ids:
            alone.put(document(document_id, A))
        try:
            documents_on(directory, DyingBlobs(objects, dies_at, Crash, after)).sync()
        except Crash:
            assert ids_in(documents_on(directory, objects)) == sorted(manifests_in(objects)) == ids
        else:
            assert dies_at == 6
            return
    pytest.fail("the operations never end")


def test_what_was_stored_while_the_object_store_was_turned_off_is_not_lost(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents_on(tmp_path, objects).put(document("1", A, created_s=1.0))
    alone = documents_on(tmp_path, None)
    alone.put(document("2", B, created_s=2.0))
    alone.put(document("1", C, created_s=3.0))
    again = documents_on(tmp_path, objects)
    assert ids_in(again) == ["1", "2"]
    assert manifests_in(objects) == {
        "1": document("1", C, created_s=3.0),
        "2": document("2", B, created_s=2.0),
    }
    again.check_invariants()


def test_while_the_object_store_is_down_at_the_start_documents_are_unavailable_and_nothing_else(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents_on(tmp_path, objects).put(document("1", A))
    store = FailingBlobs(objects, DOWN)
    documents = documents_on(tmp_path, store)
    for call in (
        lambda: documents.get("acme", "books", "1"),
        lambda: documents.page("acme", "", "", 0, False),
        lambda: documents.put(document("2", B)),
        lambda: documents.remove("acme", "books", "1"),
        lambda: documents.references(A),
        lambda: documents.sync(),
    ):
        with pytest.raises(Unavailable):
            call()
    assert (documents.ready, documents.sure, documents.pending()) == (False, False, [])
    store.failure = None
    documents.sync()
    assert (documents.ready, documents.sure) == (True, True)
    assert ids_in(documents) == ["1"]


def eventually(call: object) -> None:
    for _ in range(100):
        with contextlib.suppress(Unavailable):
            call()  # type: ignore[operator]
            return
    pytest.fail("it never works")


def test_a_refusing_object_store_is_named_as_the_reason(objects: DictBlobs, tmp_path: Path) -> None:
    documents = documents_on(tmp_path, FailingBlobs(objects, FailedPrecondition("set AWS_ACCESS_KEY_ID")))
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match="AWS_ACCESS_KEY_ID"):
            documents.get("acme", "books", "1")


def test_a_change_that_failed_half_way_is_looked_up_before_the_next(
    objects: DictBlobs, tmp_path: Path
) -> None:
    store = HookedBlobs(objects, lambda method, name: None)
    documents = documents_on(tmp_path, store)
    documents.put(document("1", A))

    def lose_the_answer(method: str, name: str) -> None:
        if method == "put" and name.startswith("manifests/"):
            objects.put(name, bytes_of(document("1", B)))
            raise DOWN

    store.hook = lose_the_answer
    with pytest.raises(Unavailable):
        documents.put(document("1", B))
    assert not documents.sure
    with pytest.raises(Unavailable):
        documents.references(B)
    assert documents.pending() == []
    assert documents.get("acme", "books", "1") == document("1", A)
    store.hook = lambda method, name: None
    documents.sync()
    assert documents.get("acme", "books", "1") == document("1", B)
    assert (documents.references(A), documents.references(B)) == (0, 1)
    assert [r.chunk_ids for r in documents.pending()] == [(A,)]
    documents.check_invariants()


def bytes_of(manifest: Manifest) -> bytes:
    return encode(manifest)


def test_an_object_store_that_fails_now_and_then_never_leads_the_two_apart(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents = documents_on(tmp_path, FlakyBlobs(objects, rate=0.2))
    kept: dict[str, Manifest] = {}
    for i in range(60):
        manifest = document(str(i % 7), chunk_id_of(i))
        try:
            documents.put(manifest)
            kept[manifest.document_id] = manifest
        except Unavailable:
            kept.pop(manifest.document_id, None)  # either is right
        documents.check_invariants()
    eventually(documents.sync)
    assert {k: m for k, m in manifests_in(objects).items() if k in kept} == kept
    assert {m.document_id: m for m in documents.page("acme", "", "", 0, False).manifests} == manifests_in(
        objects
    )


@pytest.mark.parametrize("change", ["put", "replace", "remove"])
@pytest.mark.parametrize(
    "where", ["before an object is written", "after an object is written", "at the disk"]
)
def test_a_crash_at_any_moment_leaves_the_state_before_or_after(
    tmp_path: Path, change: str, where: str
) -> None:
    old, new = document("1", A), document("1", B)
    for dies_at in range(100):
        directory, objects = tmp_path / str(dies_at), DictBlobs()
        before = documents_on(directory, objects)
        before.put(document("0", C))
        if change != "put":
            before.put(old)
        dying = (
            Documents(directory, DyingDisk(dies_at), objects)
            if where == "at the disk"
            else documents_on(directory, DyingBlobs(objects, dies_at, Crash, where.startswith("after")))
        )
        try:
            if change == "remove":
                dying.remove("acme", "books", "1")
            else:
                dying.put(new)
        except Crash:
            if dies_at % 2:
                shutil.rmtree(directory)  # the home moves to a new node
            reborn = documents_on(directory, objects)
            left = [m for m in reborn.page("acme", "", "", 0, False).manifests if m.document_id == "1"]
            assert left in ([old], [new], [])
            assert left == [old] or change == "put" or (A,) in [r.chunk_ids for r in reborn.pending()]
            assert {d.document_id: d.chunk_ids for d in reborn.documents()} == {
                k: tuple(c.chunk_id for c in m.chunks) for k, m in manifests_in(objects).items()
            }
            reborn.check_invariants()
        else:
            assert dies_at >= 1
            return
    pytest.fail("the operations never end")


def test_a_full_disk_leaves_the_bucket_and_the_mirror_to_be_made_the_same(tmp_path: Path) -> None:
    for full_at in range(100):
        objects = DictBlobs()
        documents_on(tmp_path / str(full_at), objects).put(document("1", A))
        documents = Documents(tmp_path / str(full_at), FullDisk(full_at), objects)
        try:
            documents.put(document("1", B))
        except StorageFull:
            documents.sync()
            documents.check_invariants()
            assert documents.get("acme", "books", "1") == manifests_in(objects)["1"]
        else:
            return
    pytest.fail("the operations never end")


def test_a_damaged_file_is_healed_from_the_bucket_while_the_store_runs_and_at_its_start(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents = documents_on(tmp_path, objects)
    documents.put(document("1", A))
    path = tmp_path / name_in(objects, "1")
    for harm in (Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-7])):
        harm(path)
        assert documents.get("acme", "books", "1") == document("1", A)
        assert path.read_bytes() == objects.data[name_in(objects, "1")]
        documents.check_invariants()

        harm(path)
        reborn = documents_on(tmp_path, objects)
        assert reborn.get("acme", "books", "1") == document("1", A)
        assert reborn.references(A) == 1


def test_a_damaged_object_is_healed_from_the_mirror(objects: DictBlobs, tmp_path: Path) -> None:
    documents_on(tmp_path, objects).put(document("1", A))
    name, good = next((n, d) for n, d in objects.data.items() if n.startswith("manifests/"))
    objects.put(name, good.replace(b"books", b"cooks"))
    assert ids_in(documents_on(tmp_path, objects)) == ["1"]
    assert objects.data[name] == good


def test_what_is_damaged_in_both_places_is_reported_and_can_be_ingested_again(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents = documents_on(tmp_path, objects)
    documents.put(document("1", A))
    name = name_in(objects, "1")
    (tmp_path / name).write_bytes(b"{}")
    objects.put(name, b"{}")
    with pytest.raises(CorruptData, match="ingest the document again"):
        documents.get("acme", "books", "1")
    reborn = documents_on(tmp_path, objects)
    assert ids_in(reborn) == []
    elsewhere = documents_on(tmp_path / "elsewhere", objects)
    for store in (documents, reborn, elsewhere):
        store.sync()
        assert (store.num_damaged, store.references(B)) == (1, 1), "any chunk may be its own"
    reborn.put(document("1", B))
    assert (reborn.num_damaged, reborn.references(A)) == (0, 0)
    assert ids_in(documents_on(tmp_path / "new", objects)) == ["1"]


def test_verifying_finds_a_damaged_object_or_mirror_and_repairing_restores_it(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents = documents_on(tmp_path, objects)
    documents.put(document("1", A))
    name, good = name_in(objects, "1"), objects.data[name_in(objects, "1")]
    for harm in (lambda: objects.put(name, b"{}"), lambda: (tmp_path / name).write_bytes(b"{}")):
        harm()
        assert [d.restored for d in documents.verify()] == [False]
        assert [d.restored for d in documents.verify(repair=True)] == [True]
        assert objects.data[name] == (tmp_path / name).read_bytes() == good
        assert (documents.verify(), documents.num_damaged) == ([], 0)


def test_a_document_of_a_later_version_is_refused_kept_and_keeps_every_chunk(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents_on(tmp_path / "first", objects).put(document("1", A))
    name = name_in(objects, "1")
    body = '"version":99,"manifest":{"later":true}'
    newer = f'{{"xxh3_64":"{xxhash.xxh3_64_hexdigest(body.encode())}",{body}}}\n'.encode()
    objects.put(name, newer)
    for directory in (tmp_path / "first", tmp_path / "empty"):
        documents = documents_on(directory, objects)
        for call in (
            lambda d=documents: d.get("acme", "books", "1"),
            lambda d=documents: d.put(document("1", B)),
            lambda d=documents: d.remove("acme", "books", "1"),
        ):
            with pytest.raises(NewerFormat, match="update kvquilt"):
                call()
        assert documents.references(A) == documents.references(C) == 1
        documents.put(document("2", B))
        assert ids_in(documents) == ["2"]
        documents.check_invariants()
    assert objects.data[name] == newer


def test_a_bucket_of_a_later_version_or_of_another_program_is_left_alone(
    objects: DictBlobs, tmp_path: Path
) -> None:
    documents_on(tmp_path, None).put(document("1", A))
    for marker, error in (
        (json.dumps({"version": 2, "id": "x"}), NewerFormat),
        ("hello", FailedPrecondition),
    ):
        objects.put(MARKER, marker.encode())
        with pytest.raises(error, match=r"objects\.bucket"):
            documents_on(tmp_path, objects).put(document("2", B))
        assert objects.data == {MARKER: marker.encode()}


def test_names_that_could_escape_are_not_taken_over(objects: DictBlobs, tmp_path: Path) -> None:
    objects.put("manifests/../../evil.json", b"{}")
    objects.put("manifests/a/b/evil.json", b"{}")
    objects.put("removed/../evil.json", b"{}")
    documents_on(tmp_path / "store", objects).sync()
    assert not list(tmp_path.rglob("evil.json"))


def test_what_quotas_need_is_known_per_tenant(objects: DictBlobs, tmp_path: Path) -> None:
    documents = documents_on(tmp_path, objects)
    documents.put(document("1", A, B))
    documents.put(document("2", B))
    documents.put(Manifest("other", "books", "1", chunks=(ManifestChunk(C, (1,)),)))
    assert sorted((d.tenant, d.document_id, d.chunk_ids) for d in documents.documents()) == [
        ("acme", "1", (A, B)),
        ("acme", "2", (B,)),
        ("other", "1", (C,)),
    ]


def test_every_error_of_the_object_store_reaches_the_caller_as_it_is(
    objects: DictBlobs, tmp_path: Path
) -> None:
    failure: KvquiltError
    for failure in (DOWN, StorageFull("full"), FailedPrecondition("set something")):
        store = FailingBlobs(objects)
        documents = documents_on(tmp_path / failure.code, store)
        documents.sync()
        store.failure = failure
        with pytest.raises(type(failure), match=failure.detail):
            documents.put(document("1", A))
