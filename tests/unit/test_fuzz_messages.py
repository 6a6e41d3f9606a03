"""What is thrown at RPCs: it follows from the seed, names deadlines that one can wait for, and is much of
what a descriptor allows."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from cluster.local.state import RunDirectory, StackState
from protos.kvquilt.v1 import generation_pb2
from shared.errors import InvalidRequest
from shared.limits import check_request
from shared.principals.roles import ROLES
from tests.fuzz import __main__ as fuzz
from tests.fuzz.calls import Case, method_of, methods
from tests.fuzz.messages import MOST_DEADLINE_MS, Known, Messages, parsed

KNOWN = Known(
    {"collection": ["books"], "chunk_id": ["a" * 40]},
    {"Generation.Generate": [[generation_pb2.GenerateRequest(questions=[generation_pb2.Piece(text="why")])]]},
)


def drawn(rpc: str, num: int) -> Iterator[list[bytes]]:
    for n in range(num):
        yield Messages(random.Random(f"7-{n}"), KNOWN).payloads(method_of(rpc))


def test_every_public_rpc_is_called_and_no_other() -> None:
    assert "Rag.Answer" in methods()
    assert "KvStore.Put" in methods()
    assert not [name for name in methods() if ROLES[name] == "internal"]


def test_the_same_seed_draws_the_same() -> None:
    for rpc in methods():
        assert list(drawn(rpc, 5)) == list(drawn(rpc, 5)), rpc
    assert list(drawn("Rag.Answer", 5)) != [
        Messages(random.Random(f"8-{n}"), KNOWN).payloads(method_of("Rag.Answer")) for n in range(5)
    ]


def messages_of(rpc: str, num: int) -> list[Message | None]:
    return [parsed(method_of(rpc).input_type, payload) for sent in drawn(rpc, num) for payload in sent]


def test_deadlines_are_such_that_one_can_wait_or_is_refused() -> None:
    for rpc in ("Rag.Answer", "Generation.Explore", "KvStore.Put"):
        for message in filter(None, messages_of(rpc, 60)):
            within = [message] if hasattr(message, "meta") else [m for _, m in message.ListFields()]
            for one in within:
                if hasattr(one, "meta") and not 0 < one.meta.deadline_ms <= MOST_DEADLINE_MS:
                    assert one.meta.deadline_ms > 7 * 24 * 3_600_000


def test_some_is_sound_some_is_refused_and_some_is_no_message() -> None:
    sound = refused = broken = 0
    for message in messages_of("Generation.Generate", 300):
        if message is None:
            broken += 1
            continue
        try:
            check_request(message)
            sound += 1
        except InvalidRequest:
            refused += 1
    assert min(sound, refused, broken) > 5, (sound, refused, broken)


def test_known_calls_are_among_it_changed_and_as_they_are() -> None:
    found = [
        m for m in messages_of("Generation.Generate", 200) if isinstance(m, generation_pb2.GenerateRequest)
    ]
    asked = [message for message in found if [piece.text for piece in message.questions] == ["why"]]
    assert len(asked) > 10
    assert len({message.SerializeToString(deterministic=True) for message in asked}) > 5


def test_a_case_is_kept_with_its_bytes_and_shown_as_text() -> None:
    payload = generation_pb2.GenerateRequest(reuse="full").SerializeToString()
    case = Case("1-2", "Generation.Generate", "admin", (payload, b"\xff"), (("a", "b"),), 0.5)
    assert Case.from_json(case.to_json()) == case
    assert 'reuse: "full"' in str(case)
    assert "no GenerateRequest: ff" in str(case)


def test_processes_of_a_running_system_are_found_and_that_there_is_none_is_said(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with pytest.raises(SystemExit, match="no system runs on"):
        fuzz._pids(tmp_path)
    with run.lock():
        run.write(StackState(os.getpid(), "ready", "", "", "", "", ""))
        assert fuzz._pids(tmp_path) == {}, "no process here is a service's"
    assert fuzz._pids(None) == {}
