"""Traces of a running stack, and what it writes and says: every stage that the docs show is there, and
nothing of what was said."""

from __future__ import annotations

import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster.cli.trace_tree import SpanNode, trees_of
from shared.tracing.kept import KeptSpan, kept_spans
from tests.e2e.conftest import SECRET
from tests.e2e.stack import Stack
from tests.e2e.test_metrics import scraped, total
from tests.unit.tracing.test_docs import shown

pytestmark = pytest.mark.e2e

COLLECTION, TENANT = "planted", "traces"
WORDS = ("Quennimore", "Zandervelt", "Ossibark")
"""They stand in documents, titles and questions, and nowhere else."""
DOCUMENT = f"# {WORDS[0]}\n\nThe mayor of {WORDS[0]} is {WORDS[1]}.\n"
QUESTION = f"Who is the mayor of {WORDS[0]}, not of {WORDS[2]}?"
KEY = "kvq_planted_key_that_nobody_has"
PLANTED = (*WORDS, SECRET, KEY)


@pytest.fixture(scope="module")
def planted(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "mayor.md").write_text(DOCUMENT)
    ingested = stack.cli("--tenant", TENANT, "ingest", str(folder), "-c", COLLECTION)
    assert ingested.returncode == 0, ingested.stdout + ingested.stderr
    return stack


def ask(stack: Stack, *options: str) -> dict[str, object]:
    asked = stack.cli("--tenant", TENANT, "ask", QUESTION, "-c", COLLECTION, "--json", *options)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    found: dict[str, object] = json.loads(asked.stdout)
    return found


def parents(nodes: tuple[SpanNode, ...], above: str = "") -> Iterator[tuple[str, str]]:
    for node in nodes:
        yield node.span.name, above
        yield from parents(node.children, node.span.name)


def test_every_stage_of_an_answer_is_in_its_trace(planted: Stack) -> None:
    before = scraped(planted)
    found = ask(planted, "--trace", "--reuse", "cacheclip", "--recompute-ratio", "0.5")
    spans = [KeptSpan(**span) for span in found["spans"]]  # type: ignore[attr-defined]
    tree = set(parents(trees_of(spans)))
    tiers = {name.removeprefix("load ") for name, above in tree if above == "load"}
    assert tiers, tree
    assert {pair for pair in shown() if pair[1] != "load"} <= tree
    after, loaded = scraped(planted), "kvquilt_loaded_bytes_total"
    assert all(total(after, loaded, tier=tier) > total(before, loaded, tier=tier) for tier in tiers)
    assert {span.trace_id for span in spans} == {found["trace_id"]}
    assert {span.service for span in spans} >= {
        "gateway",
        "retrieval",
        "generator",
        "selector",
        "kv_store_agent",
    }
    printed = planted.cli("trace", str(found["trace_id"]))
    assert "stitch and prefill" in printed.stdout
    listed = planted.cli("trace")
    assert str(found["trace_id"]) in listed.stdout


def test_what_nobody_asked_to_be_traced_is_not(planted: Stack) -> None:
    before = {span.trace_id for span in kept_spans(planted.data_dir / "traces")}
    found = ask(planted)
    assert "spans" not in found
    assert {span.trace_id for span in kept_spans(planted.data_dir / "traces")} == before


def test_neither_what_was_said_nor_a_secret_is_in_anything_that_is_written_or_told(
    planted: Stack, tmp_path: Path
) -> None:
    ask(planted, "--trace")
    shown = {name: planted.cli(*name.split()).stdout for name in ("status", "trace", "store stats")}
    answers = [*refused(planted), over_http(planted, "user", n="many"), over_http(planted, WORDS[2])]
    bundle = tmp_path / "bundle.tar.gz"
    shown["doctor"] = planted.cli("doctor", "--bundle", str(bundle)).stdout
    with tarfile.open(bundle) as tar:
        packed = {m.name: tar.extractfile(m).read().decode() for m in tar}  # type: ignore[union-attr]
    assert {name.rpartition("/")[2] for name in packed} >= {"status.json", "kvquilt.log", "traces.jsonl"}
    kept = [planted.data_dir / name for name in ("logs", "traces", "run")]
    written = dict(written_below([*kept, Path(planted.state.ray_dir) / "ray"]))
    assert sum("/traces/" in name for name in written) > 3
    assert sum("/logs/" in name for name in written) > 10
    texts = shown | packed | written
    assert {name: hits for name, text in texts.items() if (hits := hits_in(text, PLANTED))} == {}
    # whoever asked may read what he said himself, and nothing of the documents
    assert [hits_in(text, (WORDS[1], SECRET)) for text in answers] == [[]] * len(answers)


def hits_in(text: str, planted: Sequence[str]) -> list[str]:
    return [line[:500] for line in text.splitlines() if any(word in line for word in planted)]


def written_below(roots: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Logs, traces and states, but what Ray keeps in its own form."""
    for path in (path for root in roots for path in root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield str(path), path.read_text(encoding="utf-8", errors="replace")


def refused(stack: Stack) -> Iterator[str]:
    for command in (
        ("ask", QUESTION, "-c", "nothing"),
        ("ask", QUESTION * 2000, "-c", COLLECTION),
        ("documents", "-c", f"no {WORDS[2]} name"),
    ):
        answer = stack.cli("--tenant", TENANT, *command)
        assert answer.returncode == 2 or answer.returncode == 3, command[0]
        yield answer.stdout + answer.stderr


def over_http(stack: Stack, role: str, **more: object) -> str:
    asked = {"model": "demo", "messages": [{"role": role, "content": QUESTION}], **more}
    request = urllib.request.Request(
        f"{stack.state.http}/v1/chat/completions",
        json.dumps(asked | {"collection": COLLECTION, "tenant": TENANT}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {KEY}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
