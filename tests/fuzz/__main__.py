"""Fuzzes for as long as it is told: `make fuzz`, or `python -m tests.fuzz --seconds 3600 --seed 7`.

Without a target, half of the time is for damaged files at every parser, and half for calls of every RPC of a
system in this process. A round of calls that finds something is kept in `build/fuzz`, and `--replay` makes
them again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.local.processes import session_members
from cluster.local.state import RunDirectory
from tests.fuzz.calls import Case
from tests.fuzz.rounds import Findings, fuzz_calls, fuzz_files, make_again
from tests.fuzz.targets import Target, target_at, target_of
from tests.whole_system import whole_system

KEPT = Path("build/fuzz")
KEY_VARIABLE = "KVQUILT_FUZZ_KEY"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="of an earlier run")
    parser.add_argument(
        "--target",
        default="",
        help="grpc://HOST:PORT of a running system whose data may be lost: its RPCs are fuzzed, for all the "
        f"time. {KEY_VARIABLE} is an administrator's key with the group *, where it asks for one",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="of the system, where it runs on this machine by `kvquilt up`: its memory is looked at",
    )
    parser.add_argument("--replay", type=Path, help="a file of build/fuzz: its calls are made again")
    asked = parser.parse_args()
    sys.exit(_run(asked))


def _run(asked: argparse.Namespace) -> int:
    if asked.replay is not None:
        cases = [Case.from_json(line) for line in asked.replay.read_text(encoding="utf-8").splitlines()]
        return _tell(asyncio.run(_on_target(asked, lambda target: make_again(target, cases))))
    print(f"seed {asked.seed}", flush=True)
    wrong = 0
    if not asked.target:
        asked.seconds /= 2
        wrong += _tell(fuzz_files(asked.seconds, asked.seed))
    found = asyncio.run(_on_target(asked, lambda target: fuzz_calls(target, asked.seconds, asked.seed)))
    wrong += _tell(found)
    if found.wrong:
        KEPT.mkdir(parents=True, exist_ok=True)
        path = KEPT / f"{found.cases[0].name}.jsonl"
        path.write_text("".join(f"{case.to_json()}\n" for case in found.cases), encoding="utf-8")
        print(f"make these calls again: python -m tests.fuzz --replay {path}")
    return int(wrong > 0)


async def _on_target(
    asked: argparse.Namespace, do: Callable[[Target], Coroutine[Any, Any, Findings]]
) -> Findings:
    async with _target(asked) as target:
        return await do(target)


@asynccontextmanager
async def _target(asked: argparse.Namespace) -> AsyncIterator[Target]:
    async with AsyncExitStack() as stack:
        if asked.target:
            key, pids = os.environ.get(KEY_VARIABLE, ""), _pids(asked.data_dir)
            yield await stack.enter_async_context(target_at(asked.target, key, pids))
            return
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        system = await stack.enter_async_context(whole_system(directory))
        target = await stack.enter_async_context(target_of(system))
        target.pids = {"this process": os.getpid()}
        yield target


def _pids(data_dir: Path | None) -> dict[str, int]:
    """Of the services' processes."""
    if data_dir is None:
        return {}
    state = RunDirectory(data_dir).running()
    if state is None:
        sys.exit(f"--data-dir: no system runs on {data_dir}; leave it out for one on another machine")
    titles = {pid: _title(pid) for pid in session_members(state.pid)}
    return {f"{title} {pid}": pid for pid, title in titles.items() if title.startswith("ray::")}


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").partition("\0")[0]
    except OSError:
        return ""


def _tell(findings: Findings) -> int:
    """Returns how much was wrong."""
    print(f"{findings.rounds} rounds")
    for what, times in sorted(findings.told.items()):
        print(f"  {times:7d} {what}")
    for what in findings.wrong:
        print(f"WRONG: {what}")
    return len(findings.wrong)


if __name__ == "__main__":
    main()
