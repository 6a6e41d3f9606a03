"""A stack whose data directory is full keeps its log, and ends in good order."""

from __future__ import annotations

import errno
import io
import os
import shutil
import threading
from pathlib import Path
from typing import TextIO, cast

from cluster.config import load_quilt
from cluster.local.lossy_output import LossyOutput
from cluster.local.state import RunDirectory, StackState
from cluster.local.supervisor import Supervisor
from cluster.models.names import DEMO


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Log(io.StringIO):
    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise no_space()
        return super().write(text)


def test_what_a_full_disk_cannot_take_of_the_log_is_missing_and_said_to_be() -> None:
    inner = Log()
    out = cast(TextIO, LossyOutput(inner))
    print("first", file=out)
    inner.full = True
    print("second", file=out)
    out.writelines(["third\n"])
    inner.full = False
    print("fourth", file=out, flush=True)
    told = ["first", "2 lines are missing here: No space left on device", "fourth"]
    assert inner.getvalue().splitlines() == told
    assert not out.isatty()


class FullRun(RunDirectory):
    def write(self, state: StackState) -> None:
        raise no_space()


def test_a_supervisor_that_cannot_write_down_how_it_ends_ends_all_the_same(tmp_path: Path) -> None:
    config = load_quilt({"model": DEMO, "data_dir": str(tmp_path)}, {})
    supervisor = Supervisor(config, FullRun(tmp_path), threading.Event())
    assert supervisor._failed("no reason") == 1
    supervisor._describe(phase="stopping")
    shutil.rmtree(supervisor._state.ray_dir)
