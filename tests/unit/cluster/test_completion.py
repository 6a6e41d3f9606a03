"""What a shell completes, asked of the shell itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cluster.cli.completion_command import SHELLS
from cluster.cli.main import main

COMPLETE = """
set -e
eval "$(kvquilt completion bash)"
COMP_WORDS=(kvquilt "$@")
COMP_CWORD=$#
_kvquilt_completion kvquilt
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(directory: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    program = directory / "kvquilt"
    run = 'from cluster.cli.main import main; main(prog_name="kvquilt")'
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{run}' \"$@\"\n")
    program.chmod(0o755)
    environ = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"}
    script = ["bash", "--norc", "-c", COMPLETE, "bash", *words]
    told = subprocess.run(script, env=environ, capture_output=True, text=True, check=True, timeout=120)
    return set(told.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_their_values(tmp_path: Path) -> None:
    assert completed(tmp_path, "sto") == {"store"}
    assert {"--collection", "--reuse"} <= completed(tmp_path, "ask", "--")
    assert {"reordered", "full"} <= completed(tmp_path, "ask", "--reuse", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_is_told_how_to_complete(shell: str) -> None:
    told = CliRunner().invoke(main, ["completion", shell])
    assert told.exit_code == 0
    assert f"_KVQUILT_COMPLETE={shell}_complete" in told.stdout
    as_json = CliRunner().invoke(main, ["completion", shell, "--output", "json"])
    assert json.loads(as_json.stdout) == {"shell": shell, "script": told.stdout.removesuffix("\n")}


def test_an_unknown_shell_is_refused_by_name() -> None:
    told = CliRunner().invoke(main, ["completion", "tcsh"])
    assert told.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in told.stderr
