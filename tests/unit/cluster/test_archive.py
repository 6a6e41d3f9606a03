"""A collection out of one store, into a file, into another store."""

from __future__ import annotations

import dataclasses
import io
import shutil
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest
import xxhash
from rich.console import Console

from cluster.archive.tar import Archive
from cluster.archive.transfer import Transferred, export_collection, import_collection
from services.kv_store.documents.items import Items
from services.kv_store.documents.manifest_json import encode
from services.kv_store.tiers.chunk_files import check_identity
from shared.errors import (
    CorruptData,
    FailedPrecondition,
    InvalidRequest,
    KvquiltError,
    ModelMismatch,
    NotFound,
    Unavailable,
)
from shared.generation.described import ModelDescription
from shared.identity import chunk_identity, ids_hash, kv_owner
from shared.kv_format import verify_chunk, write_chunk
from shared.kv_format.renaming import rename_chunk
from shared.kv_items import Expected, Item, ItemPage
from shared.kv_types import ChunkStat, Manifest, ManifestChunk, Origin
from shared.request import RequestContext
from shared.sharing import SharingScopes
from tests.dict_blobs import DictBlobs
from tests.kv_chunks import header_of, kv_of

QUIET = Console(file=io.StringIO())
FIRST_VERSION = Path(__file__).parents[2] / "fixtures" / "706fea9" / "towns.kvquilt"
PREFIX = (7, 8)
MODEL = ModelDescription("m", "f" * 32, "", PREFIX, "", "", 1024, "bfloat16", 1, "cpu", ())


def ctx(tenant: str = "acme") -> RequestContext:
    return RequestContext.create(tenant=tenant)


class Store:
    """``gets`` and ``puts`` are the chunks that were sent; after ``fail_after`` more of either it is away."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        self.manifests: dict[tuple[str, str, str], Manifest] = {}
        self.gets: list[str] = []
        self.puts: list[str] = []
        self.fail_after = 10**9
        self.scopes = SharingScopes()
        self.blobs = DictBlobs()
        self.items = Items(self.blobs)

    def path(self, chunk_id: str) -> Path:
        return self.directory / f"{chunk_id}.arrow"

    def add_document(self, document_id: str, *chunks: tuple[int, ...], collection: str = "books") -> Manifest:
        made = []
        for token_ids in chunks:
            chunk_id = chunk_identity("acme", MODEL.fingerprint, PREFIX, token_ids)
            header = dataclasses.replace(
                header_of(tokens=len(token_ids), chunk_id=chunk_id),
                prefix_hash=ids_hash(PREFIX),
                token_ids=token_ids,
                ids_hash=ids_hash(token_ids),
            )
            write_chunk(self.path(chunk_id), header, *kv_of(header, seed=sum(token_ids)))
            made.append(ManifestChunk(chunk_id, token_ids, text=f"text of {token_ids}"))
        manifest = Manifest(
            "acme",
            collection,
            document_id,
            f"Title {document_id}",
            "s",
            MODEL.fingerprint,
            PREFIX,
            tuple(made),
            {"k": "ü"},
            5.0,
        )
        self.manifests["acme", collection, document_id] = manifest
        return manifest

    async def list_manifests(
        self, ctx: RequestContext, collection: str = ""
    ) -> AsyncGenerator[Manifest, None]:
        for (tenant, name, _), manifest in sorted(self.manifests.items()):
            if tenant == ctx.tenant and collection in ("", name):
                yield manifest

    async def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        self._count()
        if not self.path(chunk_id).exists():
            raise NotFound(f"chunk {chunk_id}: not stored")
        data = self.path(chunk_id).read_bytes()
        for start in range(0, len(data), 700):
            yield data[start : start + 700]
        self.gets.append(chunk_id)

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        return [ChunkStat(c, self.path(c).exists()) for c in chunk_ids]

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        origin: Origin | None = None,
    ) -> bool:
        self._count()
        data = b"".join([piece async for piece in pieces])
        assert len(data) == size_bytes
        self.path(chunk_id).write_bytes(data)
        assert origin is not None
        check_identity(self.path(chunk_id), chunk_id, [self.scopes.owner(ctx.tenant)], origin)
        assert verify_chunk(self.path(chunk_id)).header.chunk_id == chunk_id
        self.puts.append(chunk_id)
        return False

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        assert manifest.tenant == ctx.tenant
        assert all(self.path(c.chunk_id).exists() for c in manifest.chunks)
        self.manifests[manifest.tenant, manifest.collection, manifest.document_id] = manifest
        return []

    async def put_item(
        self, ctx: RequestContext, item: Item, content: bytes = b"", expected: Expected = Expected.EITHER
    ) -> Item:
        self._count()
        return self.items.put(ctx.principal, item, content, expected)

    async def get_item(
        self, ctx: RequestContext, kind: str, item_id: str, with_content: bool = False
    ) -> tuple[Item, bytes]:
        if not with_content:
            return self.items.get(ctx.principal, kind, item_id), b""
        self._count()
        return self.items.content(ctx.principal, kind, item_id)

    async def item_page(
        self,
        ctx: RequestContext,
        kind: str,
        prefix: str = "",
        start_after: str = "",
        limit: int = 0,
        descending: bool = False,
    ) -> ItemPage:
        return self.items.page(ctx.principal, kind, prefix, start_after, 2, descending)

    async def delete_item(self, ctx: RequestContext, kind: str, item_id: str) -> None:
        self.items.remove(ctx.principal, kind, item_id)

    def _count(self) -> None:
        self.fail_after -= 1
        if self.fail_after < 0:
            raise Unavailable("away")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.add_document("a/1.txt", (1, 2, 3), (4, 5))
    made.add_document("2.txt", (4, 5), (6,))
    made.add_document("film", (9, 9), collection="films")
    return made


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "books.kvquilt"


async def export(store: Store, file: Path) -> Transferred:
    return await export_collection(QUIET, store, ctx(), "books", file)


async def bring(
    store: Store, file: Path, collection: str = "", tenant: str = "acme", model: ModelDescription = MODEL
) -> Transferred:
    return await import_collection(QUIET, store, ctx(tenant), model, file, collection)


async def test_what_was_exported_is_imported_byte_for_byte(store: Store, other: Store, file: Path) -> None:
    assert await export(store, file) == Transferred("books", 2, 3, 3)
    assert [p.name for p in file.parent.iterdir() if p.is_file()] == [file.name]
    assert await bring(other, file) == Transferred("books", 2, 3, 3)
    assert other.manifests == {key: m for key, m in store.manifests.items() if key[1] == "books"}
    assert len(list(other.directory.iterdir())) == 3
    for path in other.directory.iterdir():
        assert path.read_bytes() == store.path(path.stem).read_bytes()


async def test_auxiliary_kv_stays_where_its_model_is(store: Store, other: Store, file: Path) -> None:
    for key, manifest in store.manifests.items():
        chunks = tuple(dataclasses.replace(c, auxiliary_id="0" * 40) for c in manifest.chunks)
        store.manifests[key] = dataclasses.replace(manifest, chunks=chunks, auxiliary="a model")
    await export(store, file)
    assert await bring(other, file) == Transferred("books", 2, 3, 3)
    assert other.manifests == {
        key: m.without_auxiliary() for key, m in store.manifests.items() if key[1] == "books"
    }


async def test_the_file_is_an_ordinary_tar_archive_with_each_chunk_once(store: Store, file: Path) -> None:
    await export(store, file)
    with tarfile.open(file) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names)) == 1 + 3 + 2 + 1
    assert (names[0], names[-1]) == ("kvquilt.json", "end.json")


async def test_a_collection_may_be_imported_under_another_name(
    store: Store, other: Store, file: Path
) -> None:
    await export(store, file)
    await bring(other, file, "novels")
    assert {key[:2] for key in other.manifests} == {("acme", "novels")}


async def test_for_another_tenant_chunks_get_the_identity_that_they_have_there(
    store: Store, other: Store, file: Path
) -> None:
    await export(store, file)
    await bring(other, file, tenant="beta")
    for manifest in other.manifests.values():
        assert manifest.tenant == "beta"
        for chunk in manifest.chunks:
            assert chunk.chunk_id == chunk_identity("beta", MODEL.fingerprint, PREFIX, chunk.token_ids)
            assert verify_chunk(other.path(chunk.chunk_id)).header.token_ids == chunk.token_ids
    assert len(list(other.directory.iterdir())) == 3
    assert not {p.name for p in other.directory.iterdir()} & {p.name for p in store.directory.iterdir()}


async def test_into_a_scope_and_out_of_it_chunks_get_the_identity_that_they_have_there(
    store: Store, other: Store, file: Path, tmp_path: Path
) -> None:
    for manifest in list(store.manifests.values()):
        first, *rest = manifest.chunks
        of = ("acme", MODEL.fingerprint, PREFIX)
        header = chunk_identity(*of, (8, 8))
        chained = chunk_identity(*of, first.token_ids, header)
        shutil.copy(store.path(first.chunk_id), store.path(chained))
        rename_chunk(store.path(chained), chained)
        chunk = dataclasses.replace(first, chunk_id=chained, parent_id=header, header_ids=(8, 8))
        store.manifests["acme", manifest.collection, manifest.document_id] = dataclasses.replace(
            manifest, chunks=(chunk, *rest)
        )
    await export(store, file)
    other.scopes = SharingScopes({"shared": ("acme", "partner")})
    await bring(other, file, model=dataclasses.replace(MODEL, kv_scope="shared"))
    of = (kv_owner("acme", "shared"), MODEL.fingerprint, PREFIX)
    for manifest in other.manifests.values():
        assert manifest.kv_scope == "shared"
        assert manifest.chunks[0].parent_id == chunk_identity(*of, (8, 8))
    names = {path.name for path in other.directory.iterdir()}
    await bring(other, file, tenant="partner", model=dataclasses.replace(MODEL, kv_scope="shared"))
    assert {path.name for path in other.directory.iterdir()} == names
    await export_collection(QUIET, other, ctx("partner"), "books", tmp_path / "again")
    back = Store(tmp_path / "back")
    await bring(back, tmp_path / "again")
    assert back.manifests == {key: m for key, m in store.manifests.items() if key[1] == "books"}


async def test_an_interrupted_export_goes_on_after_its_last_whole_chunk(
    store: Store, other: Store, file: Path
) -> None:
    store.fail_after = 2
    with pytest.raises(Unavailable):
        await export(store, file)
    assert not file.exists()
    store.fail_after, store.gets = 10**9, []
    assert await export(store, file) == Transferred("books", 2, 3, 1)
    assert len(store.gets) == 1
    assert await bring(other, file) == Transferred("books", 2, 3, 3)


async def test_a_torn_part_is_continued_where_it_is_whole(store: Store, other: Store, file: Path) -> None:
    store.fail_after = 2
    with pytest.raises(Unavailable):
        await export(store, file)
    part = file.with_name(file.name + ".part")
    data = bytearray(part.read_bytes())
    data[-900] ^= 1  # in the last chunk
    part.write_bytes(data)
    store.fail_after, store.gets = 10**9, []
    await export(store, file)
    assert len(store.gets) == 2
    await bring(other, file)


async def test_a_part_of_other_documents_is_not_continued(store: Store, file: Path) -> None:
    store.fail_after = 2
    with pytest.raises(Unavailable):
        await export(store, file)
    store.add_document("new.txt", (1, 1))
    store.fail_after, store.gets = 10**9, []
    assert (await export(store, file)).num_sent == len(store.gets) == 4


async def test_an_interrupted_import_sends_only_what_is_not_there(
    store: Store, other: Store, file: Path
) -> None:
    await export(store, file)
    other.fail_after = 2
    with pytest.raises(Unavailable):
        await bring(other, file)
    assert not other.manifests
    other.fail_after = 10**9
    assert await bring(other, file) == Transferred("books", 2, 3, 1)
    assert len(other.puts) == 3


async def test_a_missing_or_damaged_chunk_stops_the_export_and_names_the_remedy(
    store: Store, file: Path
) -> None:
    chunk_id = store.manifests["acme", "books", "2.txt"].chunks[1].chunk_id
    whole = store.path(chunk_id).read_bytes()
    for broken in (None, whole[:-5], whole[:300] + b"x" + whole[301:]):
        store.path(chunk_id).unlink() if broken is None else store.path(chunk_id).write_bytes(broken)
        with pytest.raises(FailedPrecondition, match="kvquilt store repair"):
            await export(store, file)
    store.path(chunk_id).write_bytes(whole)
    await export(store, file)


async def test_an_unknown_collection_is_not_exported(store: Store, file: Path) -> None:
    with pytest.raises(NotFound, match="'nowhere'"):
        await export_collection(QUIET, store, ctx(), "nowhere", file)
    assert not list(file.parent.glob("books*"))


async def test_kv_of_another_model_or_prefix_is_refused_before_anything_is_sent(
    store: Store, other: Store, file: Path
) -> None:
    await export(store, file)
    for model in (
        dataclasses.replace(MODEL, fingerprint="0" * 32),
        dataclasses.replace(MODEL, prefix_ids=(7,)),
    ):
        with pytest.raises(ModelMismatch, match="serve that model to import it"):
            await bring(other, file, model=model)
    assert not other.puts


async def test_no_single_flipped_byte_and_no_cut_brings_wrong_data_in(
    store: Store, tmp_path: Path, file: Path
) -> None:
    await export(store, file)
    whole = file.read_bytes()
    wanted = {key: m for key, m in store.manifests.items() if key[1] == "books"}
    places = [("flip", at) for at in range(0, len(whole), 151)] + [
        ("cut", at) for at in range(0, len(whole), 1997)
    ]
    for n, (kind, at) in enumerate(places):
        file.write_bytes(
            whole[:at] if kind == "cut" else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        )
        target = Store(tmp_path / f"target{n}")
        try:
            await bring(target, file)
        except KvquiltError as error:
            assert isinstance(error, (CorruptData, InvalidRequest)), (kind, at, error)  # noqa: PT017
        else:  # it was in the padding of the archive
            assert target.manifests == wanted
        for chunk in target.directory.iterdir():
            assert chunk.read_bytes() == store.path(chunk.stem).read_bytes()
        assert all(wanted[key] == m for key, m in target.manifests.items())


async def test_a_file_that_is_no_export_is_refused(other: Store, file: Path) -> None:
    for data in (b"", b"hello", b"\0" * 5000, encode(Manifest("t", "c", "d"))):
        file.write_bytes(data)
        with pytest.raises((InvalidRequest, CorruptData)):
            await bring(other, file)
    with tarfile.open(file, "w") as archive:
        archive.add(__file__, "x.py")
    with pytest.raises(InvalidRequest, match="not an exported collection"):
        await bring(other, file)


def test_an_archive_of_the_first_version_is_whole_without_items() -> None:
    with Archive(FIRST_VERSION) as archive:
        archive.check_complete()
        assert (archive.version, archive.head.num_items, archive.head.num_documents) == (1, 0, 3)


def test_an_export_of_a_newer_version_is_refused_with_the_remedy(file: Path) -> None:
    body = b'{"kind":"kvquilt collection","version":3,"whatever":1}'
    data = f"{xxhash.xxh3_64_intdigest(body):016x}\n".encode() + body + b"\n"
    with tarfile.open(file, "w") as archive:
        info = tarfile.TarInfo("kvquilt.json")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    with pytest.raises(FailedPrecondition, match="a newer kvquilt wrote this export"):
        Archive(file)
