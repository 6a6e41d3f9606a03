"""`kvquilt chat`, `kvquilt mcp` and `--output json` as processes, against all services over gRPC."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from cluster.paths import PROJECT_ROOT
from shared.clients.channels import channel_to
from shared.documents import SourceDocument, Stage
from shared.principals.principal import Role
from tests.whole_system import Client as Caller
from tests.whole_system import whole_system

pytestmark = pytest.mark.usefixtures("one_thread")
KEY_SEEN_S = 1.0
PLAN = "# Plan\n\nThe mayor of Zanzibar is Orla Venn, who has twelve bridges and a mine below the town.\n" * 3
QUESTION = "Who is the mayor of Zanzibar?"
COLLECTION = "plans"


class Kvquilt:
    """The command line of a caller with a key of his own."""

    def __init__(self, directory: Path, target: str, key: str) -> None:
        self.arguments = ["-m", "cluster.cli.main", "--data-dir", str(directory), "--target", target]
        self.environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT), "KVQUILT_API_KEY": key}

    async def __call__(self, *args: str, stdin: str = "") -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *self.arguments, *args),
            env=self.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def value(self, *args: str) -> Any:
        code, out, err = await self(*args, "--output", "json")
        assert (code, err) == (0, ""), err
        return json.loads(out)


@pytest.fixture
async def kvquilt(tmp_path: Path) -> AsyncIterator[Kvquilt]:
    async with whole_system(tmp_path / "system") as system, channel_to(system.target) as channel:
        key = system.key("anna", "acme", Role.ADMIN)
        await asyncio.sleep(KEY_SEEN_S)
        writer = Caller.of(channel, "acme", key)
        document = SourceDocument("plan.md", PLAN.encode())
        async for told in writer.ingest.upsert(writer.ctx, COLLECTION, [document]):
            assert told.stage is not Stage.FAILED, told.error
        yield Kvquilt(tmp_path / "here", system.target, key)


async def test_a_conversation_an_agent_and_a_program_read_the_same_documents(kvquilt: Kvquilt) -> None:
    await a_conversation_goes_on_line_by_line(kvquilt)
    await an_agent_calls_the_tools(kvquilt)
    await commands_tell_programs_what_came_of_them(kvquilt)


async def a_conversation_goes_on_line_by_line(kvquilt: Kvquilt) -> None:
    asked = ("chat", "-c", COLLECTION, "--max-tokens", "8", "--reuse", "reordered")
    lines = f"{QUESTION}\n/mode full\n{QUESTION}\n/modes\n/sources\n/quit\nnever asked\n"
    code, out, err = await kvquilt(*asked, stdin=lines)
    assert code == 2
    assert out.count("sources: ") == 2
    assert "reordered: " in out
    assert "full: " in out
    assert "[1] plan.md" in out
    assert "/modes: there is no such command" in err
    code, out, err = await kvquilt(*asked, "--output", "json", stdin=f"{QUESTION}\nAnd its mine?\n")
    first, second = map(json.loads, out.splitlines())
    assert (code, err) == (0, "")
    assert first["usage"]["reuse"] == "reordered"
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    code, out, err = await kvquilt("chat", "-c", "nowhere", "--output", "json", stdin=f"{QUESTION}\n")
    assert (code, out, json.loads(err)["error"]["code"]) == (3, "", "NOT_FOUND")


async def an_agent_calls_the_tools(kvquilt: Kvquilt) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=[*kvquilt.arguments, "mcp"], env=kvquilt.environment
    )
    async with Client(server) as tools:
        assert {tool.name for tool in (await tools.list_tools()).tools} == {
            "search",
            "ask",
            "list_documents",
        }
        listed = (await tools.call_tool("list_documents", {})).structured_content
        found = (
            await tools.call_tool("search", {"query": QUESTION, "collection": COLLECTION})
        ).structured_content
        asked = {"question": QUESTION, "collection": COLLECTION, "mode": "reordered", "max_tokens": 8}
        answer = (await tools.call_tool("ask", asked)).structured_content
        refused: Any = await tools.call_tool("ask", asked | {"collection": "nowhere"})
    assert listed is not None
    assert found is not None
    assert answer is not None
    assert [one["document_id"] for one in listed["documents"]] == ["plan.md"]
    assert "Orla Venn" in found["passages"][0]["text"]
    assert (answer["mode"], answer["sources"][0]["document_id"]) == ("reordered", "plan.md")
    assert answer["cached_tokens"] > 0
    assert refused.is_error
    assert "NOT_FOUND: " in refused.content[0].text


async def commands_tell_programs_what_came_of_them(kvquilt: Kvquilt) -> None:
    answer = await kvquilt.value("ask", QUESTION, "-c", COLLECTION, "--max-tokens", "4")
    rated = await kvquilt.value("feedback", "rate", answer["request_id"], "good")
    assert rated == {"request_id": answer["request_id"], "rating": "good", "question": 1}
    assert (await kvquilt.value("status"))["services"][0]["service"] == "gateway"
    (document,) = await kvquilt.value("documents")
    assert document["document_id"] == "plan.md"
    assert (await kvquilt.value("store", "pin", "-c", COLLECTION))["pinned_bytes"] > 0
    assert (await kvquilt.value("store", "pins"))[0]["collection"] == COLLECTION
    assert (await kvquilt.value("store", "unpin", "-c", COLLECTION))["pinned_bytes"] == 0
    verified = await kvquilt.value("store", "verify", "--recompute-sample", "1")
    assert (verified["whole"], verified["recomputed_alike"]) == (True, True)
    assert (await kvquilt.value("store", "gc"))["num_chunks"] == 0
    assert (await kvquilt.value("retrieval", "rebuild"))["num_unchanged"] == 1
    migrated = await kvquilt.value("store", "migrate", "-c", COLLECTION)
    assert (migrated["failed"], migrated["seals"]["num_unsealed"]) == ({}, 0)
    code, out, _ = await kvquilt(
        "explore", QUESTION, "-c", COLLECTION, "--output", "json", stdin="start a Who?\n"
    )
    assert code == 0
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["context", "applied", "done"]
    code, out, err = await kvquilt("delete", "plan.md", "gone.md", "-c", COLLECTION, "--output", "json")
    assert (code, err) == (3, "")
    assert json.loads(out)["num_documents"] == 1
    assert json.loads(out)["not_found"] == ["gone.md"]
