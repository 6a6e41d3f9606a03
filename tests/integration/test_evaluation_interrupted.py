"""`kvquilt eval`, interrupted while it asks in two processes: what was answered is kept, and is not asked
again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path

COMMAND = [sys.executable, "-m", "cluster.cli.main", "eval", "--model", "demo", "--suite", "ruler"]
COMMAND += ["--length", "500", "--tasks", "niah_single_1,vt", "--modes", "reordered", "--processes", "2"]
COMMAND += ["--max-tokens", "16", "--kv-context", "none"]


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


async def begun(kept: Path, num_cases: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        "--answers",
        str(kept),
        "--cases",
        str(num_cases),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


async def test_what_was_answered_is_kept_and_the_exit_code_says_so(tmp_path: Path) -> None:
    kept = tmp_path / "answers.jsonl"
    running = await begun(kept, 100)
    while num_lines(kept) < 2:
        assert running.returncode is None
        await asyncio.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    told, _ = await running.communicate()
    assert (running.returncode, b"the same command goes on from here" in told) == (130, True), told
    answered = kept.read_bytes()
    assert num_lines(kept) >= 2

    again = await begun(kept, 4)
    told, _ = await again.communicate()
    assert again.returncode == 0, told
    assert b"only KL is reported" in told
    assert kept.read_bytes().startswith(answered)
