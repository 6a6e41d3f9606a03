"""What an earlier version wrote opens, answers and is exported: a state directory, a bucket, an export
(``tests/fixtures/706fea9/README.md``)."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from minio import Minio

from cluster.local import launcher
from load_tests.servers.s3 import S3Server
from tests.e2e import stack as stacks
from tests.e2e.stack import Stack
from tests.minio_server import new_bucket

pytestmark = pytest.mark.e2e
WRITTEN = Path(__file__).parents[1] / "fixtures" / "706fea9"
ANSWERS: dict[str, dict[str, dict[str, Any]]] = json.loads((WRITTEN / "answers.json").read_text("utf-8"))
DOCUMENTS = ["almwick.pdf", "rudeley.html", "tambach.md"]
COLLECTION = "towns"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("model", tmp_path_factory.mktemp("earlier"))


def test_a_state_directory_opens_answers_and_is_exported_and_an_export_comes_back(
    tmp_path: Path, model: Path
) -> None:
    quotas = {"default_bytes": 100_000_000, "tenants": {"acme": 50_000_000}}
    with opened(unpacked("directory", tmp_path), model=str(model), kv_store={"quotas": quotas}) as stack:
        assert documents(stack) == DOCUMENTS
        assert pinned(stack) == [COLLECTION, "tambach.md"]
        assert [p for p in stack.data_dir.rglob("*") if p.stat().st_mode & 0o077] == [], "private since then"
        assert_answers_as_before(stack, ANSWERS["directory"])
        first = next(iter(ANSWERS["directory"].items()))
        selected = ask(stack, first[0], "--reuse", "cacheclip", "--recompute-ratio", "0.2")
        assert selected["usage"]["reuse"] == "cacheclip"
        assert_exports(stack, tmp_path / "again.kvquilt")

        acme = ("--tenant", "acme")
        brought = stack.cli(*acme, "store", "import", str(WRITTEN / "towns.kvquilt"))
        assert (brought.returncode, "3 documents" in brought.stdout) == (0, True), brought.stderr
        assert_answers_as_before(stack, dict([first]), tenant=acme)

        # it was computed behind the prefix alone, which is told with the remedy
        assert "towns (3 of kv_context none; 3 documents)" in status(stack)
        note = ask(stack, first[0])["usage"]["note"]
        assert "computed under kv_context none, and document is configured" in note
        assert note.endswith("`kvquilt ingest --collection towns --re-encode`")
        moved = stack.cli("ingest", "-c", COLLECTION, "--re-encode")
        assert moved.returncode == 0, moved.stdout + moved.stderr
        answer = ask(stack, first[0])
        assert answer["usage"]["note"] == ""
        assert answer["answers"][0]["citations"][0]["conditioned_on"].startswith("header")
        assert "kv_context none" not in status(stack)


def test_a_bucket_opens_on_a_new_machine_answers_and_is_exported(
    tmp_path: Path, model: Path, s3_server: S3Server
) -> None:
    objects = {"endpoint": s3_server.endpoint, "bucket": uploaded(s3_server, tmp_path), "secure": False}
    settings = {"kv_store": {"objects": objects}, "selector": {"model": ""}}
    with opened(tmp_path / "data", model=str(model), **settings) as stack:
        rebuilt = stack.cli("retrieval", "rebuild")
        assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
        assert documents(stack) == DOCUMENTS
        assert pinned(stack) == [COLLECTION, "tambach.md"]
        assert_answers_as_before(stack, ANSWERS["bucket"])
        assert_exports(stack, tmp_path / "again.kvquilt")


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(WRITTEN / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def uploaded(server: S3Server, folder: Path) -> str:
    """The bucket's objects in a bucket of the test's own."""
    client = Minio(server.endpoint, server.access_key, server.secret_key, secure=False, region="us-east-1")
    client.make_bucket(bucket := new_bucket())
    root = unpacked("bucket", folder)
    for path in (p for p in root.rglob("*") if p.is_file()):
        client.fput_object(bucket, str(path.relative_to(root)), str(path))
    return bucket


@contextmanager
def opened(data_dir: Path, **settings: object) -> Iterator[Stack]:
    loading = {"engine": {"late_rows": 0}}  # however busy this machine is
    try:
        yield stacks.start(data_dir, **{"generator": loading} | settings)
    finally:
        launcher.stop(data_dir)


def ask(stack: Stack, question: str, *options: str, tenant: tuple[str, ...] = ()) -> dict[str, Any]:
    asked = stack.cli(*tenant, "ask", question, "-c", COLLECTION, "--json", *options)
    assert asked.returncode == 0, asked.stderr
    answer: dict[str, Any] = json.loads(asked.stdout)
    return answer


def assert_answers_as_before(
    stack: Stack, answers: dict[str, dict[str, Any]], tenant: tuple[str, ...] = ()
) -> None:
    """The same text, from the chunk that was the best one then, and no token computed that was not computed
    then. The others may be chosen otherwise."""
    for question, before in answers.items():
        answer = ask(stack, question, tenant=tenant)
        assert answer["answers"][0]["text"] == before["text"]
        if not tenant:  # whose name is part of every chunk's
            assert before["chunk_ids"][0] in [hit["chunk_id"] for hit in answer["hits"]]
        usage = answer["usage"]
        assert usage["recomputed_tokens"] == before["usage"]["recomputed_tokens"]
        assert usage["reused_tokens"] == usage["prompt_tokens"] - usage["recomputed_tokens"]


def assert_exports(stack: Stack, file: Path) -> None:
    exported = stack.cli("store", "export", "-c", COLLECTION, str(file))
    assert (exported.returncode, "3 documents and 9 chunks" in exported.stdout) == (0, True), exported.stderr


def documents(stack: Stack, *options: str) -> list[str]:
    listed = stack.cli(*options, "documents", "-c", COLLECTION)
    assert listed.returncode == 0, listed.stderr
    return [line.split()[1] for line in listed.stdout.splitlines()[1:] if line.strip()]


def status(stack: Stack) -> str:
    return " ".join(stack.cli("status").stdout.split())


def pinned(stack: Stack) -> list[str]:
    """Collection and document of the only pin."""
    (line,) = [line for line in stack.cli("store", "pins").stdout.splitlines()[1:] if line.strip()]
    return line.split()[:2]
