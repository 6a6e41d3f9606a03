"""A stack of gateway and ingestion alone, whose callers are answered by TLS: another stack serves all that
they call, reached by address."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from cluster.local import launcher
from cluster.local.state import RunDirectory
from shared.answer import Inquiry
from shared.clients.channels import TLS, channel_to
from shared.clients.doors import rag_client
from shared.errors import NotFound, Unavailable
from shared.principals.principal import Role
from shared.principals.roles import ROLES
from shared.request import RequestContext
from tests.certificates import Authority
from tests.e2e import stack as stacks
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
ELSEWHERE = ("kv_store", "retrieval", "generator", "selector")
COLLECTION = "brought-from-elsewhere"
TEXT = "# Quernby\n\nThe ferry of Quernby is steered by Odalys Wren. It crosses the Tarn every hour.\n"
QUESTION = "Who steers the ferry of Quernby?"


@pytest.fixture(scope="module")
def front(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Started as an operator does it; ``stack`` is the other cluster."""
    folder = tmp_path_factory.mktemp("front")
    authority = Authority.in_directory(folder / "authority", "the operator's authority")
    certificate, key = authority.issue(folder, "localhost")
    quilt = {
        "model": "demo",
        "grpc_port": launcher.free_port(),
        "http_port": launcher.free_port(),
        "ingestion": {"chunk_tokens": 96},
        "applications": {name: {"address": f"grpc://{stack.target}"} for name in ELSEWHERE},
    }
    (folder / "quilt.yaml").write_text(yaml.safe_dump(quilt), encoding="utf-8")
    data_dir = folder / "data"
    try:
        tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
        up = stacks.cli(data_dir, "up", "--config", str(folder / "quilt.yaml"), *tls)
        assert up.returncode == 0, up.stdout + up.stderr
        for name in ELSEWHERE:
            assert f"{name} is not started here: the one at {stack.target} is used" in up.stdout
        state = RunDirectory(data_dir).running()
        assert state is not None
        yield Stack(data_dir, state)
    finally:
        launcher.stop(data_dir)


def test_status_says_what_is_elsewhere_and_that_it_is_well(front: Stack, stack: Stack) -> None:
    shown = front.cli("status")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()[2:]}
    assert {name for name, row in rows.items() if f"remote {stack.target}" in row} == set(ELSEWHERE)
    assert {"gateway", "ingestion"} < rows.keys()


def test_a_document_is_ingested_asked_and_deleted_through_the_other_cluster(
    front: Stack, stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "quernby.md").write_text(TEXT, encoding="utf-8")
    ingested = front.cli("ingest", str(tmp_path), "-c", COLLECTION)
    assert ingested.returncode == 0, ingested.stdout + ingested.stderr
    assert COLLECTION in stack.cli("documents").stdout, "the other cluster's store has its manifest"
    usages = []
    for door in (front, stack):
        answered = door.cli("ask", QUESTION, "-c", COLLECTION, "--json")
        assert answered.returncode == 0, answered.stdout + answered.stderr
        usages.append(json.loads(answered.stdout)["usage"])
    assert usages[0]["reused_tokens"] == usages[1]["reused_tokens"] > 0, "nothing is prefilled twice"
    for command in (("store", "stats"), ("retrieval", "rebuild", "-c", COLLECTION)):
        done = front.cli(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert front.cli("delete", "-c", COLLECTION, "--all").returncode == 0
    assert COLLECTION not in stack.cli("documents").stdout


async def test_callers_do_not_find_what_services_alone_call(front: Stack, stack: Stack) -> None:
    """``front`` is as ``kvquilt up`` makes it; ``stack`` serves another cluster, by ``internal_calls``."""
    internal = [rpc.partition(".")[::2] for rpc, role in ROLES.items() if role is Role.INTERNAL]
    assert ("Retrieval", "Index") in internal
    async with channel_to(front.target, front.state.certificate) as channel:
        for service, method in internal:
            for application in ("gateway", "ingestion"):
                call: Any = channel.stream_stream(f"/kvquilt.v1.{service}/{method}")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(metadata=(("application", application),)).read()
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, (service, method)
    between = {"kvquilt.v1.NodeStore", "kvquilt.v1.Selection"}
    assert (listed(front) & between, listed(stack) & between) == (set(), {"kvquilt.v1.Selection"})


def listed(stack: Stack) -> set[str]:
    """The services that reflection tells of."""
    if not stack.state.certificate:
        channel = grpc.insecure_channel(stack.target)
    else:
        trusted = grpc.ssl_channel_credentials(Path(stack.state.certificate).read_bytes())
        channel = grpc.secure_channel(stack.target.removeprefix(TLS), trusted)
    with channel:
        return set(ProtoReflectionDescriptorDatabase(channel).get_services())


async def test_callers_are_answered_by_tls_alone(front: Stack) -> None:
    authority = str(Path(front.state.certificate).parent / "authority" / "ca.crt")
    asked = stacks.cli(front.data_dir, "--target", front.target, "--ca", authority, "status")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    async with rag_client(front.target.removeprefix(TLS)) as client:
        with pytest.raises(Unavailable):
            await client.status(RequestContext.create(deadline_ms=3_000))
    trusted = ssl.create_default_context(cafile=authority)
    with urllib.request.urlopen(f"{front.state.http}/-/healthz", timeout=30, context=trusted) as answered:
        assert answered.status == 200


async def test_errors_of_the_other_cluster_are_what_they_were_there(front: Stack) -> None:
    async with rag_client(front.target, ca_file=front.state.certificate) as client:
        with pytest.raises(NotFound, match="nowhere"):
            async for _ in client.answer(RequestContext.create(), Inquiry("nowhere", (QUESTION,))):
                pass


def test_what_is_not_deployed_where_it_is_asked_is_unavailable(front: Stack) -> None:
    there = ("--target", front.target, "--ca", front.state.certificate)
    asked = stacks.cli(front.data_dir, *there, "store", "stats", timeout_s=180.0)
    assert asked.returncode == 4
    assert "Application 'kv_store' is not deployed where it was called" in asked.stderr
