"""OpenAI's official client keeps files, makes vector stores of them and searches these, against a running
stack."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from cluster.paths import PROJECT_ROOT
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack, wait_for
from tests.e2e.test_http import client_of

pytestmark = pytest.mark.e2e
TEXT = b"# Bridges\n\nOrla Venn built the bridge of Zannau in 1874. It has three arches of red stone.\n"
OTHER = b"The mayor of Almwick keeps bees behind the town hall, and sells honey on Fridays.\n"


@pytest.fixture
def store(stack: Stack) -> Iterator[str]:
    """An empty vector store."""
    stores = client_of(stack).vector_stores
    made = stores.create(name=f"store-{uuid.uuid4().hex[:8]}")
    yield made.id
    stores.delete(made.id)


def upload(stack: Stack, name: str, content: bytes) -> str:
    return client_of(stack).files.create(file=(name, content), purpose="assistants").id


def attach(stack: Stack, store: str, file_id: str, **more: Any) -> Any:
    files = client_of(stack).vector_stores.files
    return files.create_and_poll(file_id, vector_store_id=store, poll_interval_ms=200, **more)


def test_a_file_is_uploaded_attached_found_and_asked_about(stack: Stack, store: str) -> None:
    client = client_of(stack)
    ids = [upload(stack, "bridges.md", TEXT), upload(stack, "mayor.txt", OTHER)]
    done = [attach(stack, store, ids[i], attributes={"kind": kind, "n": i}) for i, kind in enumerate("ab")]
    assert [(file.status, file.last_error) for file in done] == [("completed", None)] * 2, done
    found = client.vector_stores.search(store, query="Who built the bridge?")
    best = found.data[0]
    assert (best.file_id, best.filename) == (ids[0], "bridges.md")
    assert "Orla Venn" in best.content[0].text
    assert best.attributes == {"kind": "a", "n": 0}
    assert 0 < best.score <= 1
    only: Any = {"type": "eq", "key": "n", "value": 1}
    filtered = client.vector_stores.search(store, query="Who built the bridge?", filters=only)
    assert {hit.file_id for hit in filtered.data} == {ids[1]}
    answer: Any = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Who built the bridge of Zannau?"}],
        max_tokens=8,
        extra_body={"collection": store},
    )
    cited = {source["document_id"] for source in answer.kvquilt["sources"]}
    assert f"{ids[0]}/bridges.md" in cited
    assert client.files.content(ids[0]).read() == TEXT
    assert client.vector_stores.retrieve(store).file_counts.completed == 2


def test_what_is_detached_is_found_no_more_and_the_file_stays(stack: Stack, store: str) -> None:
    client = client_of(stack)
    file_id = upload(stack, "bridges.md", TEXT)
    attach(stack, store, file_id)
    assert client.vector_stores.search(store, query="bridge").data
    client.vector_stores.files.delete(file_id, vector_store_id=store)
    assert client.vector_stores.search(store, query="bridge").data == []
    assert client.files.retrieve(file_id).bytes == len(TEXT)
    client.files.delete(file_id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file_id)


def test_a_file_of_a_kind_that_nothing_reads_says_so(stack: Stack, store: str) -> None:
    failed = attach(stack, store, upload(stack, "picture.xyz", bytes(range(256))))
    assert failed.status == "failed"
    assert failed.last_error.code == "unsupported_file"
    assert failed.last_error.message


def test_a_batch_of_files_is_ingested(stack: Stack, store: str) -> None:
    ids = [upload(stack, f"{i}.txt", OTHER + str(i).encode()) for i in range(3)]
    batches = client_of(stack).vector_stores.file_batches
    batch = batches.create_and_poll(store, file_ids=ids, poll_interval_ms=200)
    assert (batch.status, batch.file_counts.completed, batch.file_counts.failed) == ("completed", 3, 0)
    listed = client_of(stack).vector_stores.files.list(store, limit=2, order="asc")
    assert [file.id for file in listed] == ids


def test_the_collection_of_the_command_line_is_a_store(stack: Stack) -> None:
    client = client_of(stack)
    assert COLLECTION in {one.id for one in client.vector_stores.list()}
    listed = list(client.vector_stores.files.list(COLLECTION, limit=2))
    assert client.vector_stores.retrieve(COLLECTION).file_counts.completed == len(listed) >= 6
    assert all(
        client.vector_stores.files.retrieve(one.id, vector_store_id=COLLECTION) == one for one in listed
    )
    (best, *_) = client.vector_stores.search(COLLECTION, query="Which day is market day in Tambach?").data
    assert best.file_id in {one.id for one in listed}


def test_vectors_are_near_where_meanings_are(stack: Stack) -> None:
    texts = ["The bridge was built in 1874.", "In 1874 they finished the bridge.", "Bees make honey."]
    answer = client_of(stack).embeddings.create(model="minilm", input=texts)
    one, same, other = (each.embedding for each in answer.data)
    assert math.isclose(sum(value * value for value in one), 1, rel_tol=1e-3)
    assert _product(one, same) > _product(one, other) + 0.2
    assert answer.usage.prompt_tokens > len(texts)
    with pytest.raises(openai.NotFoundError, match="'minilm' does"):
        client_of(stack).embeddings.create(model="demo", input="x")


def test_a_body_of_100_megabytes_is_refused_and_the_gateway_goes_on(stack: Stack) -> None:
    replica = stack.replica_pid("gateway")
    with pytest.raises((openai.APIStatusError, openai.APIConnectionError)) as refused:
        upload(stack, "large.txt", b"x" * 100_000_000)
    if isinstance(refused.value, openai.APIStatusError):
        assert refused.value.status_code == 413
    assert stack.replica_pid("gateway") == replica
    assert client_of(stack).files.list(limit=1)


def test_what_is_under_way_when_the_gateway_dies_arrives(stack: Stack, store: str) -> None:
    file_id = upload(stack, "bridges.md", TEXT + b"Once more.\n")
    client_of(stack).vector_stores.files.create(store, file_id=file_id)
    stack.kill_replica("gateway")

    def arrived() -> bool | None:
        try:
            files = client_of(stack, timeout=5).vector_stores.files
            return files.retrieve(file_id, vector_store_id=store).status == "completed" or None
        except openai.APIError:
            return None

    wait_for(arrived, "the file to be a document")


def test_the_example_of_vector_stores_in_the_documentation_runs(stack: Stack, tmp_path: Path) -> None:
    text = (PROJECT_ROOT / "docs/http.md").read_text(encoding="utf-8")
    (example,) = [
        one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "vector_stores" in one
    ]
    (tmp_path / "handbook.md").write_bytes(TEXT)
    made = f'from openai import OpenAI\nclient = OpenAI(base_url="{stack.state.http}/v1", api_key="none")\n'
    ran = subprocess.run(
        [sys.executable, "-c", made + example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Orla Venn" in ran.stdout


def _product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
