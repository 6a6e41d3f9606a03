"""`kvquilt sync` as it is typed, against ingestion behind a real gRPC server, from folders and a real S3
server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from minio import Minio

from cluster.cli.main import main
from cluster.paths import PROJECT_ROOT
from load_tests.servers.s3 import S3Server
from protos.kvquilt.v1 import ingest_pb2_grpc
from services.ingestion.handlers import IngestHandlers
from tests.ingestion_world import World
from tests.minio_server import new_bucket


@dataclass
class Kvquilt:
    """The command line, against a server of the test's own."""

    target: str
    data_dir: Path

    async def __call__(self, *args: str) -> Result:
        options = ["--data-dir", str(self.data_dir), "--target", self.target]
        return await asyncio.to_thread(CliRunner().invoke, main, [*options, *args], catch_exceptions=False)

    async def sync(self, *args: str, code: int = 0) -> dict[str, Any]:
        result = await self("sync", *args, "-c", "c", "--json")
        assert result.exit_code == code, result.output
        values: dict[str, Any] = json.loads(result.stdout)
        return values


@dataclass
class Bucket:
    """A bucket of the test's own."""

    client: Minio
    name: str

    def put(self, **contents: str) -> None:
        for name, text in contents.items():
            key = f"team docs/{name}.md"
            self.client.put_object(self.name, key, BytesIO(text.encode()), len(text.encode()))

    def remove(self, *names: str) -> None:
        for name in names:
            self.client.remove_object(self.name, f"team docs/{name}.md")

    @property
    def uri(self) -> str:
        return f"s3://{self.name}/team docs"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def kvquilt(world: World, tmp_path: Path) -> AsyncIterator[Kvquilt]:
    server = grpc.aio.server()
    ingest_pb2_grpc.add_IngestServicer_to_server(IngestHandlers(world.service(), run_deadline_s=60), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Kvquilt(f"127.0.0.1:{port}", tmp_path / "data")
    await server.stop(0)


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    server, keys = s3_server.endpoint, (s3_server.access_key, s3_server.secret_key)
    bucket = Bucket(Minio(server, *keys, secure=False, region="us-east-1"), new_bucket())
    bucket.client.make_bucket(bucket.name)
    return bucket


@pytest.fixture
def endpoint(s3_server: S3Server) -> str:
    return f"http://{s3_server.endpoint}"


async def test_a_folder_that_was_ingested_is_brought_in_step(
    kvquilt: Kvquilt, world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.txt").write_text(f"The lamp {name}.", encoding="utf-8")
    assert (await kvquilt("ingest", str(folder), "-c", "c")).exit_code == 0
    (folder / "b.txt").unlink()
    (folder / "c.txt").write_text("Another lamp.", encoding="utf-8")
    world.calls.clear()
    told = await kvquilt.sync(str(folder), "--delete", "--dry-run")
    assert (told["changed"], told["unchanged"], told["vanished"]) == (["c.txt"], ["a.txt"], ["b.txt"])
    assert not world.calls.keys() & {"prefill", "put_manifest", "index", "unindex"}
    done = await kvquilt.sync(str(folder), "--delete")
    assert (done["changed"], done["unchanged"], done["deleted"]) == (["c.txt"], ["a.txt"], ["b.txt"])
    assert set(world.texts()) == {"a.txt", "c.txt"}
    world.check_settled()
    shown = await kvquilt("documents", "-c", "c", "--json")
    assert {d["source"] for d in json.loads(shown.stdout)} == {folder.as_uri()}


async def test_an_interrupted_run_goes_on_where_it_stopped(
    kvquilt: Kvquilt, world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"The lamp {i}.", encoding="utf-8")
    command = [sys.executable, "-m", "cluster.cli.main", "--target", kvquilt.target]
    running = await asyncio.create_subprocess_exec(
        *(*command, "sync", str(folder), "-c", "c"),
        env=os.environ | {"PYTHONPATH": str(PROJECT_ROOT)},
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )

    def interrupt_at_the_tenth(step: str) -> None:
        if step == "manifest_put" and len(world.manifests) == 10:
            running.send_signal(signal.SIGINT)
            time.sleep(1)  # the service is busy until the signal has arrived

    world.step = interrupt_at_the_tenth
    _, told = await running.communicate()
    assert (running.returncode, b"the same command goes on" in told) == (130, True), told
    assert 10 <= (stored := len(world.manifests)) < 40
    report = await kvquilt.sync(str(folder))
    assert len(report["added"]) == 40 - stored
    assert len(report["unchanged"]) + len(report["changed"]) == stored
    world.check_settled()


async def test_a_prefix_of_a_bucket_is_brought_in_step(
    kvquilt: Kvquilt, world: World, bucket: Bucket, endpoint: str
) -> None:
    bucket.put(a="The lamp a.", b="The lamp ä.", **{"sub folder/c": "The lamp c."})
    bucket.client.put_object(bucket.name, "elsewhere.md", BytesIO(b"Not below."), 10)
    first = await kvquilt.sync(bucket.uri, "--endpoint", endpoint)
    assert first["added"] == ["a.md", "b.md", "sub folder/c.md"]
    assert first["source"] == f"s3://{endpoint.removeprefix('http://')}/{bucket.name}/team docs/"
    bucket.put(a="Another lamp.", d="The lamp d.")
    bucket.remove("b")
    prefilled = world.num_prefilled
    kept = await kvquilt.sync(bucket.uri, "--endpoint", endpoint)
    assert (kept["added"], kept["changed"], kept["unchanged"], kept["vanished"], kept["deleted"]) == (
        ["d.md"],
        ["a.md"],
        ["sub folder/c.md"],
        ["b.md"],
        [],
    )
    assert world.num_prefilled == prefilled + 2
    done = await kvquilt.sync(bucket.uri + "/", "--endpoint", endpoint, "--delete")
    assert (done["deleted"], len(done["unchanged"])) == (["b.md"], 3)
    assert set(world.texts()) == {"a.md", "d.md", "sub folder/c.md"}
    world.check_settled()


async def test_keys_of_any_characters_are_read_and_deleted(
    kvquilt: Kvquilt, world: World, bucket: Bucket, endpoint: str
) -> None:
    names = ["100%25 +&=?#", "[b] 'q' \"r\"", "ä/漢字/\U0001f999", "x" * 180]
    bucket.put(**{name: f"The lamp {i}." for i, name in enumerate(names)})
    first = await kvquilt.sync(bucket.uri, "--endpoint", endpoint)
    assert first["added"] == sorted(f"{name}.md" for name in names)
    bucket.remove(*names[1:])
    done = await kvquilt.sync(bucket.uri, "--endpoint", endpoint, "--delete")
    assert (done["unchanged"], len(done["deleted"])) == ([f"{names[0]}.md"], 3)
    assert world.texts() == {f"{names[0]}.md": "The lamp 0."}


async def test_the_server_and_its_keys_come_from_a_configuration(
    kvquilt: Kvquilt, bucket: Bucket, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put(a="The lamp a.")
    keys = {"access_key": s3_server.access_key, "secret_key": s3_server.secret_key}
    (tmp_path / "keys.json").write_text(json.dumps(keys), encoding="utf-8")
    objects = {"endpoint": s3_server.endpoint, "secure": False, "bucket": "another"}
    objects["credentials_file"] = str(tmp_path / "keys.json")
    config = tmp_path / "quilt.yaml"
    config.write_text(json.dumps({"kv_store": {"objects": objects}}), encoding="utf-8")
    for name in s3_server.environment:
        monkeypatch.delenv(name)
    assert (await kvquilt.sync(bucket.uri, "--config", str(config)))["added"] == ["a.md"]


async def test_a_bucket_that_cannot_be_read_is_named_and_nothing_is_deleted(
    kvquilt: Kvquilt, world: World, bucket: Bucket, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put(a="The lamp a.", b="The lamp b.")
    await kvquilt.sync(bucket.uri, "--endpoint", endpoint)
    delete = ("-c", "c", "--delete", "--yes", "--endpoint", endpoint)

    bucket.remove("a", "b")
    empty = await kvquilt("sync", bucket.uri, *delete)
    assert (empty.exit_code, "no documents in s3://" in empty.output) == (2, True), empty.output
    absent = await kvquilt("sync", "s3://no-such-bucket/x", *delete)
    assert (absent.exit_code, "s3://no-such-bucket/x/: no such bucket" in absent.output) == (1, True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = await kvquilt("sync", bucket.uri, *delete)
    assert (refused.exit_code, "refuses these credentials" in refused.output) == (1, True), refused.output
    assert "objects." not in refused.output
    assert len(world.manifests) == 2


async def test_a_server_that_is_down_deletes_nothing(
    kvquilt: Kvquilt, world: World, bucket: Bucket, unused_tcp_port: int
) -> None:
    endpoint = f"http://127.0.0.1:{unused_tcp_port}"
    nobody = await kvquilt("sync", bucket.uri, "-c", "c", "--delete", "--endpoint", endpoint)
    assert (nobody.exit_code, "the object store cannot be reached" in nobody.output) == (4, True)
