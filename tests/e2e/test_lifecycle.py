"""Starting, stopping and starting again with another model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertForMaskedLM

from cluster.local import launcher
from cluster.local.processes import session_members
from cluster.local.state import RunDirectory
from cluster.paths import DEMO_MODEL
from shared.answer import AnswerDone, AnswerEvent, Inquiry
from shared.clients.doors import rag_client
from shared.generation.asked import SamplingParams
from shared.generation.told import TokenEvent
from shared.request import RequestContext
from tests.e2e import stack as stacks
from tests.e2e.stack import wait_for
from tests.tiny_embedders import write_embedder

pytestmark = pytest.mark.e2e
LONG_ANSWER, PATIENCE_S = 1500, 100.0


def ports() -> list[str]:
    return ["--grpc-port", str(launcher.free_port()), "--http-port", str(launcher.free_port())]


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    """The demo model with one weight changed: the same tokenizer, another fingerprint."""
    path = tmp_path / "other-model"
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(DEMO_MODEL).save_pretrained(path)
    (path / "kvquilt.json").write_text(
        (DEMO_MODEL / "kvquilt.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
    return path


def test_documents_survive_a_restart_and_another_model_is_refused_until_they_are_made_anew(
    tmp_path: Path, documents: Path, other_model: Path
) -> None:
    data = tmp_path / "data"
    try:
        up = stacks.cli(data, "up", "--model", "demo", *ports())
        assert up.returncode == 0, up.stderr
        assert stacks.cli(data, "ingest", str(documents), "-c", "towns").returncode == 0
        state = RunDirectory(data).running()
        assert state is not None
        assert stacks.cli(data, "down").returncode == 0
        assert session_members(state.pid) == []
        assert not Path(state.ray_dir).exists()
        assert stacks.cli(data, "status").returncode == 3

        assert stacks.cli(data, "up", "--model", str(other_model), *ports()).returncode == 0
        refused = stacks.cli(data, "ask", "Who is the mayor of Almwick?", "-c", "towns")
        assert refused.returncode == 1
        assert "--re-encode" in refused.stderr
        assert "made for another model" in stacks.cli(data, "documents").stdout
        made_anew = stacks.cli(data, "ingest", "-c", "towns", "--re-encode")
        assert made_anew.returncode == 0, made_anew.stdout + made_anew.stderr
        answer = stacks.cli(data, "ask", "Who is the mayor of Almwick?", "-c", "towns", "--json")
        assert json.loads(answer.stdout)["hits"]
    finally:
        launcher.stop(data)


def test_another_embedder_is_told_and_takes_over_when_everything_is_indexed_anew(
    tmp_path: Path, documents: Path
) -> None:
    data, config = tmp_path / "data", tmp_path / "quilt.yaml"
    embedder = write_embedder(tmp_path / "embedder")
    config.write_text(json.dumps({"retrieval": {"embedder": str(embedder)}}), encoding="utf-8")

    def hits() -> list[str]:
        question = ("Which day is market day in Tambach?", "-c", "towns", "-k", "2", "--search", "dense")
        asked = stacks.cli(data, "ask", *question, "--max-tokens", "1", "--json")
        assert asked.returncode == 0, asked.stderr
        return [hit["chunk_id"] for hit in json.loads(asked.stdout)["hits"]]

    try:
        assert stacks.cli(data, "up", "--model", "demo", *ports()).returncode == 0
        assert stacks.cli(data, "ingest", str(documents), "-c", "towns").returncode == 0
        before = hits()
        assert "another embedder" not in stacks.cli(data, "status").stdout
        assert stacks.cli(data, "down").returncode == 0

        up = stacks.cli(data, "up", "--model", "demo", "--config", str(config), *ports())
        assert up.returncode == 0, up.stderr
        told = stacks.cli(data, "status").stdout
        assert "1 collections are indexed with another embedder" in told
        assert "kvquilt retrieval rebuild" in told
        assert hits() == before
        command = stacks.command(data, "retrieval", "rebuild")
        environment = stacks.environment()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as rebuild:
            while rebuild.poll() is None:
                assert len(hits()) == len(before)
            assert rebuild.stdout is not None
            assert "6 indexed" in rebuild.stdout.read()
        assert rebuild.returncode == 0
        told = stacks.cli(data, "status").stdout
        assert "another embedder" not in told
        assert "dim 16" in told
        assert len(hits()) == len(before)
    finally:
        launcher.stop(data)


def test_an_answer_on_its_way_is_finished_before_the_services_end(tmp_path: Path, documents: Path) -> None:
    data = tmp_path / "data"
    try:
        running = stacks.start(
            data,
            gateway={"deployment": {"drain_s": PATIENCE_S}},
            generator={"engine": {"speculation": 0}},  # a text in a loop would be drafted, and soon be over
        )
        assert running.cli("ingest", str(documents), "-c", "towns").returncode == 0
        down: list[subprocess.Popen[str]] = []

        async def answer() -> list[AnswerEvent]:
            """Of many tokens, eight times, as a fast machine soon has one; at the first token everything is
            told to stop."""
            sampling = SamplingParams(max_tokens=LONG_ANSWER, ignore_eos=True, n=8, temperature=1.0)
            events = []
            async with rag_client(running.target) as client:
                ctx = RequestContext.create(deadline_ms=120_000)
                async for event in client.answer(ctx, Inquiry("towns", ("Who?",), sampling=sampling)):
                    events.append(event)
                    if isinstance(event, TokenEvent) and not down:
                        down.append(subprocess.Popen(stacks.command(data, "down"), env=stacks.environment()))
            return events

        began = time.monotonic()
        events = asyncio.run(answer())
        assert isinstance(events[-1], AnswerDone)
        assert time.monotonic() - began > 5, "too short an answer to show anything"
        assert down[0].wait(timeout=PATIENCE_S + 60) == 0
        assert session_members(running.state.pid) == []
    finally:
        launcher.stop(data)


def test_ctrl_c_while_starting_takes_everything_down_and_is_told_as_such(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = stacks.command(data, "up", "--model", "demo", *ports())
    up = subprocess.Popen(
        command,
        env=stacks.environment(),
        stderr=subprocess.PIPE,
        # tests that run in the background of a shell ignore it, and so would what they start
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        state = wait_for(lambda: RunDirectory(data).running(), "supervisor")
        up.send_signal(signal.SIGINT)
        _, stderr = up.communicate(timeout=120)
        assert (up.returncode, stderr.decode()) == (130, "kvquilt: interrupted\n")
        assert session_members(state.pid) == []
    finally:
        launcher.stop(data)


def test_a_killed_supervisor_leaves_no_lock_and_the_next_up_clears_what_it_left(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = stacks.start(data)
    try:
        os.kill(first.state.pid, signal.SIGKILL)
        wait_for(lambda: True if RunDirectory(data).running() is None else None, "end of the supervisor")
        second = stacks.start(data)
        assert session_members(first.state.pid) == []
        assert not Path(first.state.ray_dir).exists()
        assert second.cli("status").returncode == 0
    finally:
        launcher.stop(data)


def test_a_model_that_is_no_causal_lm_stops_the_start_with_its_reason_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    model = tmp_path / "bert"
    BertForMaskedLM(
        BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
    ).save_pretrained(model)
    AutoTokenizer.from_pretrained(DEMO_MODEL).save_pretrained(model)
    data = tmp_path / "data"
    shown = stacks.cli(data, "up", "--model", str(model), *ports())
    assert shown.returncode == 4
    assert "generator: " in shown.stderr
    assert "Traceback" not in shown.stderr
    assert RunDirectory(data).running() is None
