"""Lets Ray Serve's controller look after replicas and proxies by a clock that nobody sets.

Ray Serve 2.60 times its health checks by the clock of the day: after that was set back by an hour, a replica
or a proxy that dies is noticed an hour later. ``use_steady_clock`` is what the controller calls when it
starts (`RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH`). Autoscaling stays with the clock of the day, since it
compares it with what other processes say of theirs.
"""

from __future__ import annotations

import time
from typing import Any


def environment() -> dict[str, str]:
    """Variables for the process of Ray Serve's controller."""
    return {"RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": f"{__name__}.{use_steady_clock.__name__}"}


def use_steady_clock() -> None:
    """In this process, for the health checks of replicas and proxies and what else is timed with them."""
    from ray._common import utils  # only the controller's process should load it for this
    from ray.serve._private import deployment_state

    steady = SteadyTime()
    deployment_state.time = steady
    utils.Timer.time = lambda timer: steady.time()


class SteadyTime:
    """The module ``time``, but for the date, which goes on as it was when this was made."""

    def __init__(self) -> None:
        self._began_s = time.time() - time.monotonic()

    def time(self) -> float:
        return self._began_s + time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
