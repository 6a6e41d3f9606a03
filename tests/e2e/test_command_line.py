"""`kvquilt` as a person uses it, against a running stack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import stack as stacks
from tests.e2e.conftest import COLLECTION, K
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
QUESTION = "Which day is market day in Tambach?"


def test_status_shows_six_ready_services(stack: Stack) -> None:
    shown = stack.cli("status")
    assert shown.returncode == 0
    assert sum(" ready" in line for line in shown.stdout.splitlines()) == 6


def test_asking_streams_an_answer_with_sources_usage_and_stages(stack: Stack) -> None:
    shown = stack.cli("ask", QUESTION, "-c", COLLECTION, "-k", K, "--max-tokens", "16")
    assert shown.returncode == 0, shown.stderr
    for part in ("sources: ", "block 1", "conditioned on header", "prompt tokens", "retrieve", "first token"):
        assert part in shown.stdout


def test_asking_for_json_gives_one_object(stack: Stack) -> None:
    shown = stack.cli(
        "ask", "-q", QUESTION, "-q", "Who is the mayor of Almwick?", "-c", COLLECTION, "-k", K, "--json"
    )
    answer = json.loads(shown.stdout)
    assert [a["question"] for a in answer["answers"]] == [QUESTION, "Who is the mayor of Almwick?"]
    assert len(answer["hits"]) == int(K)
    assert answer["usage"]["reused_tokens"] > 0


def test_cacheclip_computes_anew_what_the_selector_chose_and_explains_it(stack: Stack) -> None:
    asked = (
        "ask",
        QUESTION,
        "-c",
        COLLECTION,
        "-k",
        K,
        "--max-tokens",
        "8",
        "--reuse",
        "cacheclip",
        "--recompute-ratio",
        "0.3",
    )
    answer = json.loads(stack.cli(*asked, "--explain", "--json").stdout)
    (selected,) = answer["selected"]
    usage = answer["usage"]
    assert (usage["reuse"], usage["note"]) == ("cacheclip", "")
    assert len(selected["tokens"]) == usage["selected_tokens"] > 0
    assert usage["recomputed_tokens"] >= usage["selected_tokens"] <= 0.4 * usage["prompt_tokens"]
    assert usage["grouped_tokens"] > 0
    assert len(selected["chunks"]) == len(answer["hits"])
    told = [
        (span["text"], hit["text"])
        for spans, hit in zip(selected["chunks"], answer["hits"], strict=True)
        for span in spans
    ]
    assert told
    assert all(part and part in text for part, text in told)
    assert answer["timings_ms"]["select"] > 0
    shown = stack.cli(*asked, "--explain")
    assert shown.returncode == 0, shown.stderr
    for part in ("context, computed anew: ", "⟦", "selector: ", "choosing took ", "chosen by cacheclip"):
        assert part in shown.stdout


@pytest.mark.parametrize("mode", ["epic", "random", "query_attention", "cacheblend", "ape"])
def test_every_mode_answers_from_stored_kv(stack: Stack, mode: str) -> None:
    options = ("-c", COLLECTION, "-k", K, "--max-tokens", "4", "--json", "--reuse", mode)
    answer = json.loads(stack.cli("ask", QUESTION, *options).stdout)
    assert (answer["usage"]["reuse"], answer["usage"]["note"]) == (mode, "")
    assert answer["usage"]["reused_tokens"] > 0


def test_a_ratio_out_of_range_is_named(stack: Stack) -> None:
    for ratio in ("1.5", "nan"):
        shown = stack.cli("ask", QUESTION, "-c", COLLECTION, "--reuse", "epic", "--recompute-ratio", ratio)
        assert (shown.returncode, f"recompute.ratio: {ratio} is out of range" in shown.stderr) == (2, True), (
            shown.stderr
        )


def test_equal_seeds_sample_equally(stack: Stack) -> None:
    options = (
        "-c",
        COLLECTION,
        "-k",
        K,
        "--json",
        "--temperature",
        "1",
        "--seed",
        "5",
        "--n",
        "2",
        "--max-tokens",
        "8",
    )
    first, second = (json.loads(stack.cli("ask", QUESTION, *options).stdout)["answers"] for _ in range(2))
    assert first == second
    assert len(first) == 2


def test_ingesting_again_changes_nothing_and_a_changed_document_is_replaced(
    stack: Stack, tmp_path: Path
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    note = folder / "note.md"
    note.write_text("# Note\n\nThe lamp of Orvale is green.\n", encoding="utf-8")
    assert "1 stored" in stack.cli("ingest", str(folder), "-c", "notes").stdout
    assert "0 stored" in (again := stack.cli("ingest", str(folder), "-c", "notes").stdout)
    assert "1 unchanged" in again
    note.write_text("# Note\n\nThe lamp of Orvale is violet.\n", encoding="utf-8")
    assert "1 stored" in stack.cli("ingest", str(folder), "-c", "notes").stdout
    hits = json.loads(stack.cli("ask", "What colour is the lamp of Orvale?", "-c", "notes", "--json").stdout)[
        "hits"
    ]
    assert [("violet" in h["text"], "green" in h["text"]) for h in hits] == [(True, False)]


def test_a_folder_is_kept_in_step(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "guide"
    folder.mkdir()
    for name, colour in (("one", "green"), ("two", "violet"), ("three", "brown")):
        (folder / f"{name}.md").write_text(f"# Lamps\n\nLamp {name} is {colour}.\n", encoding="utf-8")
    assert "3 stored" in stack.cli("ingest", str(folder), "-c", "guide").stdout
    (folder / "one.md").rename(folder / "uno.md")
    (folder / "two.md").write_text("# Lamps\n\nLamp two is orange.\n", encoding="utf-8")
    told = stack.cli("sync", str(folder), "-c", "guide", "--delete", "--dry-run")
    assert "would be: 1 added, 1 changed" in told.stdout
    assert "one.md" in stack.cli("documents", "-c", "guide").stdout
    done = json.loads(stack.cli("sync", str(folder), "-c", "guide", "--delete", "--json").stdout)
    assert (done["added"], done["changed"], done["unchanged"], done["deleted"]) == (
        ["uno.md"],
        ["two.md"],
        ["three.md"],
        ["one.md"],
    )
    assert done["num_chunks_reused"] == 1  # the renamed one's title is in its text
    hits = json.loads(stack.cli("ask", "Which colour are the lamps?", "-c", "guide", "--json").stdout)["hits"]
    assert {hit["document_id"] for hit in hits} == {"uno.md", "two.md", "three.md"}
    assert "3 unchanged, 0 deleted" in stack.cli("sync", str(folder), "-c", "guide", "--delete").stdout


def test_unreadable_files_are_named_and_the_rest_goes_in(stack: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "good.txt").write_text("Orvale lies on the river Sem.", encoding="utf-8")
    (folder / "empty.txt").write_text("", encoding="utf-8")
    (folder / "binary.md").write_bytes(bytes(range(256)) * 8)
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 but no more")
    shown = stack.cli("ingest", str(folder), "-c", "mixed")
    assert shown.returncode == 1
    assert "1 stored" in shown.stdout
    for name in ("empty.txt: ", "binary.md: ", "broken.pdf: "):
        assert name in shown.stdout


def test_documents_are_listed_and_deleted(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "gone.txt").write_text("Soon this is gone.", encoding="utf-8")
    stack.cli("ingest", str(tmp_path / "gone.txt"), "-c", "brief")
    assert "gone.txt" in stack.cli("documents", "-c", "brief").stdout
    assert "1 documents and 1 chunks removed" in stack.cli("delete", "gone.txt", "-c", "brief").stdout
    assert stack.cli("documents", "-c", "brief").returncode == 3
    missing = stack.cli("delete", "gone.txt", "-c", COLLECTION)
    assert (missing.returncode, "gone.txt" in missing.stderr) == (3, True)


def test_a_second_up_says_what_runs_and_where(stack: Stack) -> None:
    shown = stack.cli("up", "--model", "demo")
    assert shown.returncode != 0
    assert "running already" in shown.stderr
    assert stack.target in shown.stderr


def test_a_port_that_is_taken_is_named_by_its_setting(stack: Stack, tmp_path: Path) -> None:
    shown = stacks.cli(
        tmp_path / "other", "up", "--model", "demo", "--grpc-port", stack.target.rpartition(":")[2]
    )
    assert shown.returncode != 0
    assert "grpc_port: port" in shown.stderr
    assert "--grpc-port" in shown.stderr


def test_an_unknown_collection_is_one_line_and_exit_code_three(stack: Stack) -> None:
    shown = stack.cli("ask", "x", "-c", "nowhere")
    assert shown.returncode == 3
    assert len(shown.stderr.strip().splitlines()) == 1


def test_a_rated_answer_becomes_a_question_of_the_gate(stack: Stack, tmp_path: Path) -> None:
    """Asked, rated, exported, and judged over what the running system retrieves."""
    questions, verdict = tmp_path / "questions.jsonl", tmp_path / "verdict.json"
    for question in (QUESTION, "Who is the mayor of Almwick?"):
        answer = json.loads(stack.cli("ask", question, "-c", COLLECTION, "-k", K, "--json").stdout)
        rated = stack.cli("feedback", "rate", answer["request_id"], "good", "--comment", "Right.")
        assert rated.returncode == 0, rated.stderr
    unknown = stack.cli("feedback", "rate", "nobody", "bad")
    assert (unknown.returncode, "no answer 'nobody' is remembered here" in unknown.stderr) == (3, True)
    exported = stack.cli("feedback", "export", "-c", COLLECTION, "-o", str(questions))
    assert exported.returncode == 0, exported.stderr
    lines = [json.loads(line) for line in questions.read_text().splitlines()]
    assert [line["question"] for line in lines] == [QUESTION, "Who is the mayor of Almwick?"]
    assert all(line["evidence"] and line["feedback"]["reuse"] == "reordered" for line in lines)
    assert all(len(line["feedback"]["chunk_ids"]) == int(K) for line in lines)
    command = ("gate", "--model", "demo", "--questions", str(questions), "-c", COLLECTION, "-k", K)
    options = ("--modes", "reordered", "--processes", "1", "--verdict", str(verdict))
    judged = stack.cli(*command, *options)
    assert judged.returncode == 2
    assert "too few to tell" in judged.stderr
    both = ("--kv-context", "none,document", "--tolerance", "1", "--alpha", "0.5")
    judged = stack.cli("--target", stack.target, *command, *options, *both)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "own questions; margin 100 points" in judged.stdout
    assert "advised: ingestion.kv_context none, generator.kv_encoding exact" in judged.stdout
    made = [(v["mode"], v["questions"], v["kv_context"]) for v in json.loads(verdict.read_text())]
    assert made == [("reordered", "own", "document"), ("reordered", "own", "none")]


def test_a_model_that_writes_no_questions_is_not_trained_on_a_collection(
    stack: Stack, tmp_path: Path
) -> None:
    train = ("train", "adapter", "--model", "demo", "--out", str(tmp_path / "adapter"), "--contexts", "2")
    refused = stack.cli(*train, "--collection", COLLECTION)
    assert refused.returncode == 2
    assert "--collection: no questions can be generated: of 2 contexts of 'towns'" in refused.stderr
    nowhere = stack.cli(*train, "--collection", "nowhere")
    assert nowhere.returncode == 3
    assert "--collection: 'nowhere' has no documents; run `kvquilt ingest DIRECTORY" in nowhere.stderr
    assert not (tmp_path / "adapter").exists()
