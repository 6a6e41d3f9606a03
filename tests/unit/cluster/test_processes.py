"""Whether a process has ended, as the kernel's book-keeping has it."""

from __future__ import annotations

import os
import subprocess
import sys

from cluster.local.processes import has_ended


def test_a_process_has_ended_even_if_nobody_waited_for_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not has_ended(process.pid)
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it ended, and is still to be waited for
    assert has_ended(process.pid)
    process.wait()
    assert has_ended(process.pid)


def test_one_that_is_somebody_elses_lives() -> None:
    assert not has_ended(1)
