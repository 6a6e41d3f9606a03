"""`kvquilt store` and `kvquilt retrieval` as an operator uses them, against a running stack: damage, loss,
moving, encodings."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.gateway.http.headers import TENANT_HEADER
from services.kv_store.tiers.memory_directory import memory_directory
from shared.clients import retrieval
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.retrieval import RetrievalClient
from shared.kv_format import inspect_chunk, write_chunk
from shared.request import RequestContext
from shared.search import IndexedChunk, IndexedDocument, IndexedIds
from tests.e2e.stack import Stack
from tests.e2e.test_http import client_of
from tests.kv_chunks import kv_of

pytestmark = pytest.mark.e2e
TEXTS = {
    "orvale.md": "# Orvale\n\nThe lamp of Orvale is violet. It was lit in 1871 by Tamsin Reed.\n",
    "selm.txt": "Selm lies on the river Ard. Its market is on Thursday.\n",
}


@pytest.fixture(scope="module")
def collection(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("upkeep")
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    assert stack.cli("ingest", str(folder), "-c", "upkeep").returncode == 0
    return "upkeep"


def chunk_ids(stack: Stack, collection: str) -> list[str]:
    asked = stack.cli("ask", "What is violet?", "-c", collection, "-k", "9", "--json", "--max-tokens", "1")
    return sorted({hit["chunk_id"] for hit in json.loads(asked.stdout)["hits"]})


def files(stack: Stack, chunk_id: str) -> list[Path]:
    return list((stack.data_dir / "kv").rglob(f"{chunk_id}.arrow"))


def everywhere(stack: Stack, chunk_id: str) -> list[Path]:
    memory = memory_directory(stack.data_dir / "kv")
    return [*files(stack, chunk_id), *memory.rglob(f"{chunk_id}.arrow")]


def tenant_bytes(stack: Stack, tenant: str) -> int:
    found = json.loads(stack.cli("store", "stats", "--json").stdout)["tenants"]
    return int(next(t["num_bytes"] for t in found if t["tenant"] == tenant))


def search_index(stack: Stack, call: str, *args: object) -> object:
    async def go() -> object:
        async with grpc.aio.insecure_channel(stack.target) as channel:
            client = RetrievalClient(GrpcTransport(channel, retrieval.SERVICE, retrieval.APPLICATION))
            return await getattr(client, call)(RequestContext.create(), *args)

    return asyncio.run(go())


def test_damage_and_loss_are_found_and_mended(stack: Stack, collection: str) -> None:
    damaged, lost = chunk_ids(stack, collection)[:2]
    assert stack.cli("store", "verify").returncode == 0
    (path,) = files(stack, damaged)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    files(stack, lost)[0].unlink()

    found = stack.cli("store", "verify")
    assert found.returncode == 1
    assert all(chunk_id in found.stdout for chunk_id in (damaged, lost))
    assert "kvquilt store repair" in found.stdout

    mended = stack.cli("store", "repair")
    assert (mended.returncode, "2 chunks computed anew" in mended.stdout) == (0, True), mended.stdout
    assert stack.cli("store", "verify").returncode == 0


def test_an_index_is_made_anew_from_the_documents(stack: Stack, collection: str) -> None:
    search_index(stack, "unindex", collection, ["orvale.md"])
    stray = IndexedDocument(
        "stray", "Stray", "f", (IndexedChunk("ab" * 20, "The lamp of Orvale is green.", (1, 2)),)
    )
    search_index(stack, "index", collection, stray)
    rebuilt = stack.cli("retrieval", "rebuild", "-c", collection)
    assert (rebuilt.returncode, rebuilt.stdout.strip()) == (
        0,
        "1 indexed, 1 as they should be, 1 removed from the index, 0 failed",
    )
    assert search_index(stack, "list_indexed", collection) == IndexedIds(("orvale.md", "selm.txt"))


def test_a_collection_moves_as_a_file_to_another_tenant_and_answers_there(
    stack: Stack, collection: str, tmp_path: Path
) -> None:
    file = tmp_path / "upkeep.kvquilt"
    assert "2 documents" in stack.cli("store", "export", "-c", collection, str(file)).stdout
    brought = stack.cli("--tenant", "acme", "store", "import", str(file), "-c", "moved")
    assert (brought.returncode, "2 documents" in brought.stdout) == (0, True), brought.stderr
    asked = stack.cli(
        "--tenant", "acme", "ask", "What colour is the lamp?", "-c", "moved", "--json", "--max-tokens", "4"
    )
    answer = json.loads(asked.stdout)
    assert answer["usage"]["reused_tokens"] > 0
    assert not {h["chunk_id"] for h in answer["hits"]} & set(chunk_ids(stack, collection))
    assert tenant_bytes(stack, "acme") > 0
    again = stack.cli("--tenant", "acme", "store", "import", str(file), "-c", "moved")
    assert again.returncode == 0
    assert stack.cli("--tenant", "acme", "delete", "--all", "-c", "moved").returncode == 0


def test_what_is_kept_over_http_moves_with_all_of_a_tenant(stack: Stack, tmp_path: Path) -> None:
    """The file, the vector store that it is in, and a response, each under its id."""
    archive, text = tmp_path / "library.kvquilt", TEXTS["orvale.md"].encode()
    from_client, to_client = (
        client_of(stack, default_headers={TENANT_HEADER: tenant}) for tenant in ("library", "branch")
    )
    uploaded = from_client.files.create(file=("orvale.md", text), purpose="assistants")
    store = from_client.vector_stores.create(name="library")
    member = from_client.vector_stores.files.create_and_poll(uploaded.id, vector_store_id=store.id)
    assert member.status == "completed", member.last_error
    asked: Any = {"model": "demo", "input": "What is violet?", "max_output_tokens": 4, "store": True}
    tool = {"type": "file_search", "vector_store_ids": [store.id]}
    response = from_client.responses.create(**asked, tools=[tool])

    exported = stack.cli("--tenant", "library", "store", "export", str(archive))
    assert exported.returncode == 0, exported.stderr
    brought = stack.cli("--tenant", "branch", "store", "import", str(archive))
    assert brought.returncode == 0, brought.stderr
    assert to_client.files.content(uploaded.id).read() == text
    assert [f.id for f in to_client.vector_stores.files.list(store.id)] == [member.id]
    assert to_client.vector_stores.retrieve(store.id).name == "library"
    found = to_client.vector_stores.search(store.id, query="What is violet?")
    assert "violet" in found.data[0].content[0].text
    assert to_client.responses.retrieve(response.id).output_text == response.output_text


def test_kv_changes_its_encoding_and_back_and_answers_all_the_time(stack: Stack, collection: str) -> None:
    exact = tenant_bytes(stack, "default")
    assert (
        "all their KV in int8" in stack.cli("store", "migrate", "-c", collection, "--encoding", "int8").stdout
    )
    assert tenant_bytes(stack, "default") < exact
    asked = stack.cli("ask", "What colour is the lamp?", "-c", collection, "--json", "--max-tokens", "4")
    assert json.loads(asked.stdout)["usage"]["reused_tokens"] > 0
    assert stack.cli("store", "migrate", "-c", collection).returncode == 0  # into the generator's own
    assert tenant_bytes(stack, "default") == exact
    assert stack.cli("store", "verify").returncode == 0


def test_pins_and_garbage(stack: Stack, collection: str) -> None:
    assert "bytes are pinned now" in stack.cli("store", "pin", "-c", collection).stdout
    assert collection in stack.cli("store", "pins").stdout
    assert stack.cli("store", "unpin", "-c", collection).stdout.startswith("0 bytes")
    assert stack.cli("store", "pin", "-c", "nowhere").returncode == 3
    collected = stack.cli("store", "gc", "--grace", "0.1s", "--dry-run")
    assert (collected.returncode, "would be removed" in collected.stdout) == (0, True)
    assert chunk_ids(stack, collection)


def test_forged_kv_is_found_by_its_seal_and_by_computing_it_again(stack: Stack, collection: str) -> None:
    """Somebody who can write the files puts other KV in the place of a chunk's, with right checksums."""
    chunk_id = chunk_ids(stack, collection)[0]
    honest = {path: path.read_bytes() for path in everywhere(stack, chunk_id)}
    for path in honest:
        assert inspect_chunk(path).key_id, "what is stored is sealed"
        header = inspect_chunk(path).header
        path.unlink()
        write_chunk(path, header, *kv_of(header))
    told = stack.cli("store", "verify", "--recompute-sample", "9999")  # all there are
    assert told.returncode == 1, told.stdout + told.stderr
    assert "1 chunks and 0 documents have no seal" in told.stdout
    assert f"{chunk_id}  default: its KV is not what the model makes of its tokens" in told.stdout
    for path in everywhere(stack, chunk_id):  # what was read may be in memory, too, by now
        path.unlink()
    for path, data in honest.items():
        path.write_bytes(data)
    told = stack.cli("store", "verify", "--recompute-sample", "5")
    assert told.returncode == 0, told.stdout + told.stderr


def test_what_was_deleted_is_nowhere_any_more(stack: Stack, tmp_path: Path) -> None:
    """Neither in a tier, in memory, in a second copy, in the index, in a log nor in what is on record."""
    secret = "Quexalotl-7719"
    (tmp_path / "secret.md").write_text(f"# Vault\n\nThe word of the vault is {secret}, says Ilse.\n")
    assert stack.cli("ingest", str(tmp_path / "secret.md"), "-c", "vault").returncode == 0
    ids = chunk_ids(stack, "vault")
    asked = stack.cli("ask", "What is the word of the vault?", "-c", "vault", "--max-tokens", "1")
    assert asked.returncode == 0
    places = [stack.data_dir, memory_directory(stack.data_dir / "kv"), Path(stack.state.ray_dir)]
    assert holding(places, secret)
    assert all(files(stack, chunk_id) for chunk_id in ids)
    assert stack.cli("delete", "secret.md", "-c", "vault").returncode == 0
    assert stack.cli("store", "gc", "--grace", "1s").returncode == 0
    assert [path for chunk_id in ids for path in files(stack, chunk_id)] == []
    assert holding(places, secret) == []


def holding(places: list[Path], text: str) -> list[Path]:
    """Files in which the text stands."""
    needle = text.encode()
    return [
        path
        for place in places
        for path in place.rglob("*")
        if path.is_file() and not path.is_symlink() and needle in path.read_bytes()
    ]


def test_who_did_what_is_on_record(stack: Stack, collection: str) -> None:
    assert stack.cli("delete", "selm.txt", "-c", "no-such").returncode != 0
    told = [json.loads(line) for line in stack.cli("audit", "--json").stdout.splitlines()]
    done = {(line["action"], line["outcome"]) for line in told}
    assert {("ingest", "OK"), ("verify", "OK"), ("gc", "OK"), ("pin", "OK")} <= done
    (ingested, *_) = [
        line for line in told if line["action"] == "ingest" and line["collection"] == collection
    ]
    assert (ingested["principal"], ingested["tenant"]) == ("operator", "default")
    assert sorted(ingested["document_ids"]) == sorted(TEXTS)
    assert not holding([stack.data_dir / "audit"], "violet")
    assert stack.cli("audit", "--verify").returncode == 0
