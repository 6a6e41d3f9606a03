"""`--output json` of every command: that there is one, and that errors obey it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cluster.cli.main import main

WITH_JSON_FLAG = ("ask", "audit", "doctor", "documents", "key list", "models", "store stats", "sync", "trace")
WRONG: dict[str, list[str]] = {  # or away: nothing runs
    "up": ["--model", "/no/such/model"],
    "status": [],
    "ingest": ["nowhere", "-c", "x"],
    "sync": ["nowhere", "-c", "x"],
    "ask": ["?", "-c", "x"],
    "chat": ["-c", "x"],
    "explore": ["?", "-c", "x"],
    "documents": [],
    "delete": ["-c", "x"],
    "key create": ["a", "--terminator", "--group", "b"],
    "key list": [],
    "key revoke": ["a"],
    "models pull": ["/no/such/model"],
    "gate": ["--modes", "fastest"],
    "eval": ["--suite", "everything"],
    "train adapter": ["--out", "x"],
    "train auxiliary": ["--out", "x"],
    "train packets": ["--out", "x"],
    "train sft": ["--out", "x"],
    "feedback rate": ["a", "good"],
    "feedback export": [],
    "store stats": [],
    "store verify": [],
    "store repair": [],
    "store migrate": [],
    "store gc": [],
    "store pin": ["-c", "x"],
    "store unpin": ["-c", "x"],
    "store pins": [],
    "store export": ["f", "-c", "x"],
    "retrieval rebuild": [],
    "trace": ["0af7651916cd43dd8448eb211c80319c"],
    "audit": [],
    "mcp": [],
    "top": [],
}
RIGHT: dict[str, list[str]] = {
    "down": [],
    "models": [],
    "trace": [],
    "key create": ["anna"],
    "completion": ["zsh"],
    "size": ["--model", "demo"],
}
"""What needs nothing that runs."""
NOT_TRIED = {"demo", "doctor", "store import"}
"""It starts everything; it looks at everything; its file must be there."""


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every one that does something by itself."""
    for name, command in group.commands.items():
        here = (*path, name)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield " ".join(here), command
        if isinstance(command, click.Group):
            yield from commands(command, here)


COMMANDS = dict(commands())


def invoke(where: Path, name: str, *args: str) -> Result:
    return CliRunner().invoke(main, ["--data-dir", str(where), *name.split(), *args], catch_exceptions=False)


def error_of(result: Result) -> dict[str, object]:
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    error: dict[str, object] = json.loads(line)["error"]
    return error


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_asked_for_json(name: str) -> None:
    (output,) = [one for one in COMMANDS[name].params if "--output" in one.opts]
    assert isinstance(output.type, click.Choice)
    assert list(output.type.choices) == ["json", "text"]
    flags = {"--json"} & {opt for one in COMMANDS[name].params for opt in one.opts if one.name == "json_flag"}
    assert bool(flags) == (name in WITH_JSON_FLAG)


def test_every_command_is_tried() -> None:
    assert {*WRONG, *RIGHT, *NOT_TRIED} == set(COMMANDS)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_as_json_with_its_code(name: str, tmp_path: Path) -> None:
    plain = invoke(tmp_path, name, *WRONG[name])
    result = invoke(tmp_path, name, *WRONG[name], "--output", "json")
    error = error_of(result)
    assert error["code"] in {"INVALID_REQUEST", "CONFIG_ERROR", "NOT_FOUND", "UNREADABLE_DOCUMENT"}
    assert str(error["message"]) in plain.stderr
    assert result.exit_code == plain.exit_code != 0


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("output", [["--output", "json"], ["--output=json"]])
def test_what_cannot_even_be_parsed_is_told_as_json(name: str, output: list[str], tmp_path: Path) -> None:
    result = invoke(tmp_path, name, *output, "--no-such-option")
    assert result.exit_code == 2
    error = error_of(result)
    assert error["code"] == "INVALID_REQUEST"
    assert "--no-such-option" in str(error["message"])


def test_text_stays_text(tmp_path: Path) -> None:
    for args in ([], ["--output", "text"]):
        result = invoke(tmp_path, "status", *args)
        assert result.stderr.startswith("kvquilt: kvquilt is not running")
    assert "Error: No such option" in invoke(tmp_path, "status", "--no-such-option").stderr
    assert "is not one of 'json', 'text'" in invoke(tmp_path, "status", "--output", "yaml").stderr


@pytest.mark.parametrize("name", RIGHT)
def test_what_came_of_it_is_one_document(name: str, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    result = invoke(tmp_path, name, *RIGHT[name], "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    json.loads(result.stdout)


def test_a_key_is_told_with_its_id_and_listed_a_line_each(tmp_path: Path) -> None:
    made = [json.loads(invoke(tmp_path, "key create", name, "--output", "json").stdout) for name in "ab"]
    assert all(one["key"].startswith(f"kvq_{one['id']}_") for one in made)
    for flag in (["--json"], ["--output", "json"]):
        lines = invoke(tmp_path, "key list", *flag).stdout.splitlines()
        assert [json.loads(line)["id"] for line in lines] == [one["id"] for one in made]
    revoked = json.loads(invoke(tmp_path, "key revoke", made[0]["id"], "--output", "json").stdout)
    assert revoked["id"] == made[0]["id"]
    assert json.loads(invoke(tmp_path, "key list", "--json").stdout.splitlines()[0])["state"] == "revoked"
